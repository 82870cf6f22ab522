"""The process of the saver: takes one order after the other until the agent is gone.

It may wait for a storage for as long as that takes: nothing waits for it. The kernel ends it with
the agent.
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
from .order import Order, Written
from .writing import forget, write

_NICENESS = 10


def main(arguments: list[str]) -> int:
    """Be the saver.

    Args:
        arguments: the descriptor of the socket to the agent, and the agent's process id.
    """
    channel, agent = socket.socket(fileno=int(arguments[0])), int(arguments[1])
    channel.set_inheritable(False)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)  # they are for the agent
    die_with_parent(agent)
    os.nice(_NICENESS)
    incoming = Incoming(channel)
    try:
        while (messages := incoming.receive()) is not None:
            for message in messages:
                order = Order.of(message)
                written = _done(order, incoming)
                send(channel, written.fields())
                if not written.words:
                    forget(order)
                send(channel, {})
    except ConnectionError:
        pass  # the agent is gone
    return 0


def _done(order: Order, incoming: Incoming) -> Written:
    try:
        fds = incoming.take_fds(len(order.shares) + order.pages)
    except OSError as error:
        return Written(str(error))
    try:
        buffers, pages = fds[: len(order.shares)], fds[len(order.shares) :]
        return write(order, buffers, tick=_ticking(pages))
    finally:
        for fd in fds:
            os.close(fd)


def _ticking(fds: Sequence[int]) -> Callable[[], None]:
    """Return what notes in some pages that the storage has done something."""
    pages = [memoryview(mmap.mmap(fd, page.PAGE_BYTES)) for fd in fds]

    def tick() -> None:
        for one in pages:
            page.tick(one)

    return tick


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
