"""This node's identity, which is stable across restarts of the agent, and its incarnation."""

import contextlib
import fcntl
import os
import socket
import zlib
from pathlib import Path

from ...rendezvous.protocol.messages import NodeSpec
from ..machine.user_folder import user_folder
from ..options import LaunchOptions
from ..workers.worker_command import WorkerCommands

_MOST_PER_HOST = 4096
_MACHINE_IDS = ("/etc/machine-id", "/var/lib/dbus/machine-id")


class NodeIdentity:
    """The identity of this agent, held for as long as the process lives.

    It consists of the host name and the first number that no other agent of the same job on this
    host has. A lock on a file in a directory that only this user can write to holds the number: the
    kernel releases it with the process, so an agent restarted on the same host is the same node
    again. If the master has assigned another number because of a duplicate host name, the file
    contains it. The agent removes the file at its end, unless a restarted agent needs that number;
    a killed agent leaves it.
    """

    def __init__(self, job_id: str) -> None:
        """Take the first number that is free among one user's agents of this job on this host."""
        self.host = socket.gethostname()
        self.incarnation = os.urandom(8).hex()
        self._path = Path()
        self._file, number = self._claim_number(job_id)
        self.node_id = f"{self.host}/{number}"
        """Proposed to the master, or assigned by it because of a duplicate host name."""

    def given(self, node_id: str) -> None:
        """Take the identity that the master assigned; a restarted agent starts with it."""
        self.node_id = node_id
        number = node_id.rpartition("/")[2]
        if number.isascii() and number.isdecimal():
            self._write(number)

    def close(self, *, is_over: bool = False) -> None:
        """Release the number; if the job is over, also forget a number assigned by the master."""
        if self._file is not None:
            if is_over or not os.fstat(self._file).st_size:
                with contextlib.suppress(OSError):  # a cleaner of /tmp was faster
                    self._path.unlink()
            os.close(self._file)
            self._file = None

    def _claim_number(self, job_id: str) -> tuple[int | None, int]:
        # Two IDs with the same checksum only skip numbers. Each network namespace is a host.
        name = f"{zlib.crc32(job_id.encode(errors='surrogateescape')):08x}.{_network()}"
        taken: set[int] = set()
        try:
            folder = user_folder()
            for slot in range(_MOST_PER_HOST):
                self._path = folder / f"{name}.{slot}"
                file, is_locked = _lock(self._path)
                number = _number_in(file, slot)
                if not is_locked:
                    os.close(file)
                    taken.add(number)
                    continue
                while number in taken:  # the master assigned this number to another agent here
                    number += 1
                return file, number
        except OSError:
            pass
        return None, int.from_bytes(os.urandom(4), "big")

    def _write(self, number: str) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):  # a full disk: a restart requests the old number
                os.ftruncate(self._file, 0)
                os.pwrite(self._file, number.encode(), 0)


def node_spec(
    identity: NodeIdentity, options: LaunchOptions, address: str, commands: WorkerCommands
) -> NodeSpec:
    """Return the specification of this node for the master."""
    return NodeSpec(
        node_id=identity.node_id,
        incarnation=identity.incarnation,
        host=identity.host,
        address=address,
        role=options.role,
        local_world_size=commands.local_world_size,
        wanted_rank=options.rendezvous.node_rank,
        segment=options.rendezvous.segment or "",
    )


def machine_id() -> str:
    """Return the content of ``/etc/machine-id`` (``man 5 machine-id``); empty if there is none.

    A container has the ID of its image, which may be the same on several machines.
    """
    for path in _MACHINE_IDS:
        with contextlib.suppress(OSError), open(path, encoding="ascii", errors="replace") as file:
            if found := file.read(64).strip():
                return found
    return ""


def _lock(path: Path) -> tuple[int, bool]:
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return file, False
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file), path.lstat()):
                return file, True
        os.close(file)  # its last owner has removed it in the meantime


def _number_in(file: int, slot: int) -> int:
    text = os.pread(file, 16, 0).decode(errors="replace")
    return int(text) if text.isascii() and text.isdecimal() else slot


def _network() -> int:
    try:
        return Path("/proc/self/ns/net").stat().st_ino
    except OSError:
        return 0
