"""The agent's sockets of ``shared_work``: requests of workers, and the clock of ``NodeWork``."""

import asyncio
import math
import socket
import time
from collections.abc import Callable
from contextlib import suppress

from ...rendezvous.protocol.messages import Assignment, RoomMessage
from ...rendezvous.work.messages import NAME_MAX, SIZE_MAX, WorkClaim, WorkGrant, WorkReport
from ...rendezvous.work.node_work import OVER, NodeWork, Taker
from ...training.worker import work_messages as messages
from ..processes.worker_socket import WorkerSocket

_MAY_FAIL_S = 1.0
"""How long the piece of a loop that was left stays with its worker: if that is about to fail, the
piece must not make another worker fail."""


class SharedWork:
    """The shared work of this node; ``close`` it."""

    def __init__(self, local_world_size: int, send: Callable[[WorkReport], None]) -> None:
        self._local_world_size = local_world_size
        self.node = NodeWork(send, self._answer)
        self._assignment: Assignment | None = None
        self._loops: dict[socket.socket, tuple[Taker, WorkClaim]] = {}
        self._connections: dict[Taker, socket.socket] = {}
        self._opened = 0
        self._workers = WorkerSocket(messages.SOCKET, self._received, self._gone)
        self._timer: asyncio.TimerHandle | None = None
        self._ticks_at = math.inf

    def listen(self, loop: asyncio.AbstractEventLoop) -> None:
        """Listen for workers; if that fails, they split work by rank."""
        self._loop = loop
        self._workers.listen(loop)

    def begin(self, assignment: Assignment) -> None:
        """Start a round."""
        self._hang_up()
        self._assignment = assignment
        self.node.begin(assignment.round, time.monotonic())

    def end(self) -> None:
        """Report what the workers of the round have confirmed, after their end."""
        self._hang_up()
        self.node.end(time.monotonic())

    def claims(self) -> list[WorkReport]:
        """Return the pieces of this node, for a new stream."""
        claims = self.node.claims(time.monotonic())
        self._report_later()
        return claims

    def received(self, message: RoomMessage) -> None:
        """Hand out the pieces that the master has granted."""
        if isinstance(message, WorkGrant):
            self.node.granted(message, time.monotonic())
            self._report_later()

    def note_of(self, rank: int) -> str:
        """Return which piece a worker is doing, as text; empty if it does none."""
        return self.node.note_of(rank)

    def succeeded(self, rank: int) -> None:
        """Give back the pieces of a worker that has exited with 0."""
        self.node.exited(rank, time.monotonic())

    def close(self) -> None:
        """Release all resources."""
        self._workers.close()
        if self._timer is not None:
            self._timer.cancel()

    def _hang_up(self) -> None:
        for connection in self._workers.connections:
            self._workers.hang_up(connection)

    def _gone(self, connection: socket.socket) -> None:
        if (loop := self._loops.pop(connection, None)) is not None:
            self._connections.pop(loop[0], None)

    def _received(self, connection: socket.socket) -> None:
        try:
            data = connection.recv(messages.OPEN.size + messages.NAME_BYTES)
        except OSError:
            data = b""
        is_known = connection in self._loops
        if not (
            data in (messages.CONFIRM, messages.LEAVE) if is_known else self._open(connection, data)
        ):
            self._workers.hang_up(connection)  # its piece is given back when the worker exits
            return
        taker, claim = self._loops[connection]
        if data == messages.LEAVE:
            self.node.leave(taker, claim.name)
            self._answer(taker, OVER)
            self._loop.call_later(_MAY_FAIL_S, self._give_back, taker, claim.name)
            return
        self.node.ask(taker, claim, time.monotonic())
        self._report_later()

    def _open(self, connection: socket.socket, data: bytes) -> bool:
        """Process the first message of a loop; return whether it is valid."""
        at = self._assignment
        if len(data) <= messages.OPEN.size or at is None:
            return False
        magic, rank, size, grain = messages.OPEN.unpack_from(data)
        name = data[messages.OPEN.size :].decode(errors="replace")
        is_own = 0 <= rank - at.rank_offset < self._local_world_size
        is_named = 0 < len(name) <= NAME_MAX and name.isprintable()
        is_sized = 0 < grain <= SIZE_MAX and size <= SIZE_MAX
        if magic != messages.MAGIC or not (is_own and is_named and is_sized):
            return False
        self._opened += 1
        taker = Taker(rank, self._opened)
        self._loops[connection] = (taker, WorkClaim(name, size, grain))
        self._connections[taker] = connection
        return True

    def _answer(self, taker: Taker, piece: int | str) -> None:
        connection = self._connections.get(taker)
        if connection is None:
            return
        data = messages.PIECE.pack(piece if isinstance(piece, int) else messages.REFUSED)
        if isinstance(piece, str):
            data += piece.encode()[: messages.REASON_BYTES]
        with suppress(OSError):  # it has ended; its exit follows
            connection.send(data)

    def _give_back(self, taker: Taker, name: str) -> None:
        self.node.give_back(taker, name, time.monotonic())
        self._report_later()

    def _report_later(self) -> None:
        at = self.node.due_at()
        if at < self._ticks_at:
            if self._timer is not None:
                self._timer.cancel()
            self._ticks_at, self._timer = at, self._loop.call_at(at, self._tick)

    def _tick(self) -> None:
        self._ticks_at = math.inf
        self.node.tick(time.monotonic())
        self._report_later()
