"""``shared_work``: pieces of work for ranks that do not wait for each other.

The agent of this node hands out pieces; the loop confirms each when its body has ended.
"""

import operator
import os
import socket
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from typing import SupportsIndex
from weakref import ref

from .worker import work_messages as messages
from .worker.agent_socket import NOT_ANSWERING, ancestors, connect
from .worker.log import log

_SIZE_MAX = 1 << 53
_NAME_MAX = 128
_LEAVE_S = 10.0

_used: set[tuple[int, str]] = set()
"""Process ID and name of the loops that are running, or have ended."""


def shared_work(name: str, size: SupportsIndex, grain: SupportsIndex = 1) -> Iterator[range]:
    """Yield ranges of items that no other rank does; see ``ft_run.training.shared_work``."""
    if not isinstance(name, str) or not 0 < len(name) <= _NAME_MAX or not name.isprintable():
        raise ValueError(
            f"invalid value {name!r} for name: expected 1 to {_NAME_MAX} printable characters"
        )
    return _Pieces(name, _whole("size", size, 0), _whole("grain", grain, 1))


class _Pieces(Iterator[range]):
    """The pieces of a loop.

    Only the ``for`` statement refers to the generator, so that leaving the loop closes it and gives
    the piece back, even if the script has a name for this object.
    """

    def __init__(self, name: str, size: int, grain: int) -> None:
        self._of = name, size, grain
        self._running: Callable[[], Generator[range, None, None] | None] = lambda: None
        """Returns the generator of the running loop."""
        self._stepped: Generator[range, None, None] | None = None
        """The generator, if the script calls ``next``."""
        self._is_over = False

    def __iter__(self) -> Iterator[range]:
        loop = self._running()
        if loop is None and not self._is_over:
            loop = self._loop()
            self._running = ref(loop)
        self._stepped = None
        return iter(()) if loop is None else loop

    def __next__(self) -> range:
        if self._stepped is None and not self._is_over:
            self._stepped = self._running() or self._loop()
            self._running = ref(self._stepped)
        if self._stepped is None:
            raise StopIteration
        return next(self._stepped)

    def close(self) -> None:
        if (loop := self._running()) is not None:
            loop.close()
        self._stepped = None

    def _loop(self) -> Generator[range, None, None]:
        yield from _loop(*self._of)
        self._is_over = True


def _loop(name: str, size: int, grain: int) -> Iterator[range]:
    pid = os.getpid()
    used = (pid, name)
    if used in _used:
        raise ValueError(
            f"invalid value {name!r} for name: a loop of this process has used it; expected a name "
            f"for each loop, e.g. {name + '-2'!r}"
        )
    _used.add(used)
    is_over = False
    try:
        channel = _connect(name, size, grain)
        if channel is None:
            yield from _own_share(name, size, grain)
        else:
            with channel:
                while (piece := shared_work_piece(channel)) is not None:
                    try:
                        yield range(piece * grain, min(size, (piece + 1) * grain))
                    except BaseException:  # the loop is left
                        if os.getpid() == pid:  # not by a fork that ends
                            _leave(channel)
                        raise
                    _confirm(channel)
        is_over = True
    finally:
        if not is_over:  # it can be entered again
            _used.discard(used)


def _connect(name: str, size: int, grain: int) -> socket.socket | None:
    """Connect to the agent and request a piece; return None if there is no agent.

    Raises:
        ConnectionError: If there is one that does not answer. Other ranks may do this rank's own
            share.
    """
    rank = int(os.environ.get("RANK", "0"))
    request = messages.OPEN.pack(messages.MAGIC, rank, size, grain) + name.encode()
    for pid in ancestors():
        try:
            channel = connect(messages.SOCKET, pid)
            channel.settimeout(None)  # a piece may become free only when another rank has failed
            channel.send(request)
        except NOT_ANSWERING as error:
            raise ConnectionError(
                f"the ft-run agent of this node (process ID {pid}) does not answer: {error}"
            ) from error
        except OSError:
            continue
        return channel
    return None


def shared_work_piece(channel: socket.socket) -> int | None:
    """Wait for a piece; return None when all are confirmed.

    Raises:
        ValueError: If other ranks use a different size or grain, or the name is in use.
        ConnectionError: If the agent has ended.
    """
    answer = channel.recv(messages.PIECE.size + messages.REASON_BYTES)
    if not answer:
        raise ConnectionError("the ft-run agent of this node has closed the connection")
    (piece,) = messages.PIECE.unpack_from(answer)
    if piece == messages.REFUSED:
        raise ValueError(answer[messages.PIECE.size :].decode())
    return int(piece) if piece != messages.OVER else None


def _confirm(channel: socket.socket) -> None:
    """Confirm the piece, request the next one, and report progress."""
    hook = sys.modules.get("_ft_run_hook")
    if hook is not None:
        hook.piece()
    channel.send(messages.CONFIRM)


def _leave(channel: socket.socket) -> None:
    with suppress(OSError):
        channel.settimeout(_LEAVE_S)
        channel.send(messages.LEAVE)
        channel.recv(messages.PIECE.size)  # the agent has received it before another loop starts


def _own_share(name: str, size: int, grain: int) -> Iterator[range]:
    rank, ranks = (int(os.environ.get(key, "0")) for key in ("RANK", "WORLD_SIZE"))
    if not rank and len(_used) == 1:
        log(
            f"does not run this script: the pieces of shared_work({name!r}) are split by rank, and "
            "those of a rank that fails are not done by others"
        )
    for first in range(rank * grain, size, max(1, ranks) * grain):
        yield range(first, min(size, first + grain))


def _whole(name: str, value: SupportsIndex, least: int) -> int:
    number = operator.index(value)
    if not least <= number <= _SIZE_MAX:
        raise ValueError(
            f"invalid value {number} for {name}: expected a whole number, {least} to 2**53"
        )
    return number
