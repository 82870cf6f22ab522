"""Standby workers: processes that a fork server forks ahead and that wait for their assignment.

A standby worker becomes a worker, which has to be a child of the spawner (the subreaper). It is
therefore forked by an intermediate process that exits at once. Until it receives its assignment it
stays in the session of the fork server, which marks it as not being a worker. At end-of-file it
exits.
"""

import errno
import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from ..processes.ipc import Incoming, send

Order = tuple[Mapping[str, object], Sequence[int]]
"""The assignment of a standby worker, and the descriptors for it."""

_BEGINS = b"\1"


class Blanks:
    """The fork server's view of a group of standby workers that were forked together."""

    def __init__(self, pids: list[int], channels: list[socket.socket]) -> None:
        """Send nothing yet.

        Args:
            pids: their process ids.
            channels: the channels to them, in the same order.
        """
        self._pids, self._channels = pids, channels

    def are(self, count: int) -> bool:
        """Return whether the group has exactly this size and none of its processes has died."""
        return len(self._channels) == count and all(map(_is_open, self._channels))

    def begin(self, orders: Iterable[Order]) -> list[int]:
        """Send each process its assignment and move it to its own session; this uses up the group.

        Args:
            orders: one for each process.

        Returns:
            Their process ids in order; empty if one has died.
        """
        have_begun = False
        with suppress(ConnectionError):
            for channel, order in zip(self._channels, orders, strict=True):
                send(channel, *order)
            have_begun = all(channel.recv(1) == _BEGINS for channel in self._channels)
        self.close()
        return self._pids if have_begun else []

    def close(self) -> None:
        """Close the channels, so that processes without an assignment exit."""
        _close(self._channels)


def wait_for_order(channel: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Wait for the assignment of this standby worker; then start a session of its own.

    Args:
        channel: to the fork server; it is closed.

    Returns:
        The parameters of the worker, and its descriptors. A standby worker that is not needed
        exits.

    Raises:
        OSError: there are too many descriptors for this process.
    """
    incoming = Incoming(channel)
    worker = _next_message(incoming)
    if worker is None:
        os._exit(0)
    os.setsid()
    channel.send(_BEGINS)
    channel.close()
    return worker, incoming.take_fds(1 + worker["fds"])


def fork_blanks(count: int) -> Blanks | socket.socket:
    """Fork standby workers; return the group, or in each forked process its channel.

    Raises:
        OSError: no process or descriptor is available; none of them is left running.
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
    answer = _next_message(Incoming(channel)) or {"errno": errno.EIO}
    channel.close()
    # Only after this process has been reaped are its children certain to be the spawner's.
    os.waitpid(between, 0)
    if "errno" in answer:
        _close(channels)
        raise OSError(answer["errno"], os.strerror(answer["errno"]))
    return Blanks(answer["pids"], channels)


def _fork_from_between(channel: socket.socket, channels: Sequence[socket.socket]) -> socket.socket:
    """Fork a process for each channel and exit; return only in the forked processes."""
    pids: list[int] = []
    answer: dict[str, Any] = {"pids": pids}
    try:
        for mine in channels:
            pids.append(os.fork())
            if not pids[-1]:
                _close(one for one in (channel, *channels) if one is not mine)
                return mine
    except OSError as error:
        answer = {"errno": error.errno or errno.EIO}
    with suppress(ConnectionError):
        send(channel, answer)
    os._exit(0)


def _next_message(incoming: Incoming) -> dict[str, Any] | None:
    """Wait for a message; return None at end-of-file."""
    while (messages := incoming.receive()) == []:
        pass
    return messages[0] if messages else None


def _is_open(channel: socket.socket) -> bool:
    """Return whether the other end is open."""
    try:
        return bool(channel.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
    except BlockingIOError:
        return True
    except ConnectionError:
        return False


def _close(sockets: Iterable[socket.socket]) -> None:
    for one in sockets:
        one.close()
