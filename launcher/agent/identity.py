"""This node's identity, which stays the same when its agent is restarted, and its incarnation."""

import os
import socket

_MOST_PER_HOST = 4096


class NodeIdentity:
    """The identity of this agent, held for as long as the process lives.

    It is the host's name and the first number that no other agent of this job on this host has.
    The number is held by an abstract Unix socket, which the kernel frees with the process:
    an agent that is restarted in place finds its old number free and is the same node again.
    """

    def __init__(self, job_id: str) -> None:
        self.host = socket.gethostname()
        self.incarnation = os.urandom(8).hex()
        self._socket, number = _claim_number(job_id)
        self.node_id = f"{self.host}/{number}"

    def close(self) -> None:
        """Free the number."""
        if self._socket is not None:
            self._socket.close()


def _claim_number(job_id: str) -> tuple[socket.socket | None, int]:
    holder = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    # An abstract name has at most 107 bytes; equal prefixes of long ids only skip numbers.
    name = job_id.encode(errors="surrogateescape")[:64]
    for number in range(_MOST_PER_HOST):
        try:
            holder.bind(b"\0ft-run/%d/%s/%d" % (os.getuid(), name, number))
        except OSError:
            continue
        return holder, number
    holder.close()
    return None, int.from_bytes(os.urandom(4), "big")
