"""Blanks: processes that a fork server forks ahead, and that wait to be told what to become.

A blank becomes a worker, which has to be a child of the spawner (the subreaper): so it is forked by
way of a process in between that exits at once. Until it is told what to become it is in the session
of the fork server, by which it is known not to be a worker. At end-of-file it exits.
"""

import errno
import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from ..processes.ipc import Incoming, send

Order = tuple[Mapping[str, object], Sequence[int]]
"""What a blank is told, and the descriptors for it."""

_BEGINS = b"\1"


class Blanks:
    """Those that were forked together, as the fork server sees them."""

    def __init__(self, pids: list[int], channels: list[socket.socket]) -> None:
        """Tell them nothing yet.

        Args:
            pids: their process ids.
            channels: to each of them, in the same order.
        """
        self._pids, self._channels = pids, channels

    def are(self, count: int) -> bool:
        """Return whether there are so many, and none has died."""
        return len(self._channels) == count and all(map(_is_open, self._channels))

    def begin(self, orders: Iterable[Order]) -> list[int]:
        """Have each begin to become a worker, in a session of its own; that ends this.

        Args:
            orders: one for each.

        Returns:
            Their process ids in order; none if one has died.
        """
        have_begun = False
        with suppress(ConnectionError):
            for channel, order in zip(self._channels, orders, strict=True):
                send(channel, *order)
            have_begun = all(channel.recv(1) == _BEGINS for channel in self._channels)
        self.close()
        return self._pids if have_begun else []

    def close(self) -> None:
        """Have those end that were told nothing."""
        _close(self._channels)


class Blank(NamedTuple):
    """One of them, as itself."""

    channel: socket.socket
    """To the fork server."""

    def wait(self) -> tuple[dict[str, Any], list[int]]:
        """Wait to be told which worker to become; then begin, in a session of its own.

        Returns:
            What it was told, and its descriptors. A blank that is not wanted exits.

        Raises:
            OSError: there are too many descriptors for this process.
        """
        incoming = Incoming(self.channel)
        told = _next_message(incoming)
        if told is None:
            os._exit(0)
        os.setsid()
        self.channel.send(_BEGINS)
        self.channel.close()
        return told, incoming.take_fds(2 + told["worker"]["fds"])


def fork_blanks(count: int) -> Blanks | Blank:
    """Fork; return all of them, or in each of them itself.

    Args:
        count: how many.

    Raises:
        OSError: there are no processes or no descriptors for them; none is left.
    """
    pairs: list[tuple[socket.socket, socket.socket]] = []
    try:
        while len(pairs) <= count:
            pairs.append(socket.socketpair())
        between = os.fork()
    except OSError:
        _close(one for pair in pairs for one in pair)
        raise
    (channel, *channels), (their_channel, *their_channels) = zip(*pairs, strict=True)
    if not between:
        _close((channel, *channels))
        return _fork_from_between(their_channel, their_channels)
    _close((their_channel, *their_channels))
    said = _next_message(Incoming(channel)) or {"errno": errno.EIO}
    channel.close()
    # Only when it has been reaped are its children sure to be the spawner's.
    os.waitpid(between, 0)
    if "errno" in said:
        _close(channels)
        raise OSError(said["errno"], os.strerror(said["errno"]))
    return Blanks(said["pids"], channels)


def _fork_from_between(channel: socket.socket, channels: Sequence[socket.socket]) -> Blank:
    """Fork a blank for each channel and exit; return in each blank only."""
    pids: list[int] = []
    said: dict[str, Any] = {"pids": pids}
    try:
        for mine in channels:
            pids.append(os.fork())
            if not pids[-1]:
                _close(one for one in (channel, *channels) if one is not mine)
                return Blank(mine)
    except OSError as error:
        said = {"errno": error.errno or errno.EIO}
    with suppress(ConnectionError):
        send(channel, said)
    os._exit(0)


def _next_message(incoming: Incoming) -> dict[str, Any] | None:
    """Wait for a message; return None at end-of-file."""
    while (messages := incoming.receive()) == []:
        pass
    return messages[0] if messages else None


def _is_open(channel: socket.socket) -> bool:
    """Return whether the other end is."""
    try:
        return bool(channel.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
    except BlockingIOError:
        return True
    except ConnectionError:
        return False


def _close(sockets: Iterable[socket.socket]) -> None:
    for one in sockets:
        one.close()
