"""The saver process: executes one order at a time until its agent exits.

It may block on storage indefinitely: the agent does not wait for it, and the kernel kills it when
the agent dies.
"""

import mmap
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence

from ...training.worker import snapshot_page as page
from ..processes.ipc import Incoming, send
from ..processes.prctl import die_with_parent
from ..processes.typed_messages import as_json, reader
from .order import WriteOrder, WriteResult
from .writing import write

_NICENESS = 10


def main(arguments: list[str]) -> int:
    """Run the saver; arguments are the socket to the agent and the agent's process ID."""
    channel, agent = socket.socket(fileno=int(arguments[0])), int(arguments[1])
    channel.set_inheritable(False)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)  # the agent handles them
    die_with_parent(agent)
    os.nice(_NICENESS)
    incoming = Incoming[WriteOrder](channel, reader(WriteOrder))
    try:
        while (orders := incoming.receive()) is not None:
            for order in orders:
                send(channel, as_json(_done(order, incoming)))
    except ConnectionError:
        pass  # the agent has exited
    return 0


def _done(order: WriteOrder, incoming: Incoming[WriteOrder]) -> WriteResult:
    try:
        fds = incoming.take_fds(len(order.entries) + order.pages)
    except OSError as error:
        return WriteResult(str(error))
    try:
        buffers, pages = fds[: len(order.entries)], fds[len(order.entries) :]
        return write(order, buffers, tick=_ticking(pages))
    finally:
        for fd in fds:
            os.close(fd)


def _ticking(fds: Sequence[int]) -> Callable[[], None]:
    """Return a function that counts progress in the pages."""
    pages = [memoryview(mmap.mmap(fd, page.PAGE_BYTES)) for fd in fds]

    def tick() -> None:
        for one in pages:
            page.tick(one)

    return tick


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
