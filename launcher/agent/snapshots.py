"""What the workers of this node leave in memory: held here, so that it outlives them.

A worker that takes snapshots asks for its memory at a socket: a page and some buffers, files
without a name, which are the same for a local rank in each round. The agent reads the pages and
never what is in the buffers.
"""

import asyncio
import mmap
import os
import socket
import struct

from ...rendezvous.protocol.messages import Assignment
from ...rendezvous.protocol.offer import STEP_MAX, Offer, Replica, Snapshot, Snapshots
from ...training import snapshot_page as page
from ...values import replace
from ..machine.network import PortReservation

_CREDENTIALS = struct.Struct("3i")
_WAITING_MAX = 128
"""Workers that ask at the same moment."""


class HeldSnapshots:
    """The memory of the snapshots of this node; ``close`` it."""

    def __init__(self, local_world_size: int, replicas: int = 0) -> None:
        """Hold nothing yet.

        Args:
            local_world_size: how many workers there are.
            replicas: of how many other ranks each of them keeps the shares.
        """
        self._local_world_size = local_world_size
        self._replicas = replicas
        self._of_others: dict[tuple[int, int], _RankMemory] = {}
        """By local rank and number, from 1."""
        self._memory: dict[int, _RankMemory] = {}
        """By local rank; only of those that have asked for it."""
        self._assignment: Assignment | None = None
        self._socket: socket.socket | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asking: set[socket.socket] = set()

    def listen(self, loop: asyncio.AbstractEventLoop) -> None:
        """Answer workers that ask; where that is not possible, there are no snapshots."""
        try:
            server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            server.bind(page.address_of(os.getpid()))
            server.listen(_WAITING_MAX)
        except OSError:
            return
        server.setblocking(False)
        self._socket, self._loop = server, loop
        loop.add_reader(server, self._accept, server)

    def begin(self, assignment: Assignment) -> None:
        """A round begins: only what all ranks resume from stays."""
        before, self._assignment, resumed = self._assignment, assignment, assignment.resumption
        is_of_these = (
            before is not None
            and resumed is not None
            and (before.round, before.formed_by) == (resumed.round, resumed.formed_by)
        )
        step = resumed.step if is_of_these and resumed is not None else None
        for memory in (*self._memory.values(), *self._of_others.values()):
            memory.keep(step)

    def drop(self) -> None:
        """Give the memory back: what it holds will not be resumed from."""
        self._assignment = None
        for memory in (*self._memory.values(), *self._of_others.values()):
            memory.close()
        self._memory.clear()
        self._of_others.clear()

    def held(self) -> Snapshots | None:
        """Return the steps of which each worker here has left its share."""
        at = self._assignment
        if at is None or len(self._memory) < self._local_world_size:
            return None
        shares = [memory.shares(local_rank) for local_rank, memory in self._memory.items()]
        common = set.intersection(*shares)
        newest = tuple(sorted(common, key=lambda one: one.step)[-page.BUFFERS :])
        replicas = self._held_of_others()
        if not newest and not replicas:
            return None
        return Snapshots(at.round, at.formed_by, newest, replicas)

    def _held_of_others(self) -> tuple[Replica, ...]:
        ranks: dict[tuple[int, int], set[int]] = {}
        for memory in self._of_others.values():
            for entry in memory.entries():
                ranks.setdefault((entry.step, entry.world_size), set()).add(entry.rank)
        newest = sorted(ranks.items())[-page.BUFFERS :]
        return tuple(Replica(step, size, tuple(sorted(of))) for (step, size), of in newest)

    def close(self) -> None:
        """Give everything back."""
        self.drop()
        if self._loop is not None and self._socket is not None:
            self._loop.remove_reader(self._socket)
            self._socket.close()
        for connection in list(self._asking):
            self._hang_up(connection)

    # --- workers that ask ----------------------------------------------------------------------

    def _accept(self, server: socket.socket) -> None:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        if _CREDENTIALS.unpack(data)[1] not in (0, os.geteuid()):
            connection.close()
            return
        connection.setblocking(False)
        assert self._loop is not None
        self._asking.add(connection)
        self._loop.add_reader(connection, self._answer, connection)

    def _answer(self, connection: socket.socket) -> None:
        try:
            request = connection.recv(max(page.REQUEST.size, page.REPLICA.size) + 1)
            number = 0
            if len(request) == page.REPLICA.size:
                *_, number = page.REPLICA.unpack(request)
                request = request[: page.REQUEST.size]
            if len(request) == page.REQUEST.size:
                magic, rank = page.REQUEST.unpack(request)
                memory = self._memory_of(rank, number) if magic == page.MAGIC else None
                if memory is not None and self._assignment is not None:
                    resumed = self._assignment.resumption
                    reply = page.REPLY.pack(page.MAGIC, -1 if resumed is None else resumed.step)
                    socket.send_fds(connection, [reply], memory.fds)
        except OSError:
            pass  # the worker is gone, or there is no memory: then it has no snapshots
        self._hang_up(connection)

    def _hang_up(self, connection: socket.socket) -> None:
        assert self._loop is not None
        self._loop.remove_reader(connection)
        self._asking.discard(connection)
        connection.close()

    def _memory_of(self, rank: int, replica: int) -> "_RankMemory | None":
        """Return the memory of a rank, or that for a replica; None: it is not of this node.

        Raises:
            OSError: there is no descriptor, or no memory.
        """
        if self._assignment is None:
            return None
        local_rank = rank - self._assignment.rank_offset
        if not 0 <= local_rank < self._local_world_size:
            return None
        if replica:
            if replica > self._replicas:
                return None
            if (local_rank, replica) not in self._of_others:
                self._of_others[local_rank, replica] = _RankMemory()
            return self._of_others[local_rank, replica]
        if local_rank not in self._memory:
            self._memory[local_rank] = _RankMemory()
        return self._memory[local_rank]


class _RankMemory:
    """The page and the buffers of one rank."""

    def __init__(self) -> None:
        """Make them.

        Raises:
            OSError: there is no descriptor, or no memory.
        """
        self.fds: list[int] = []
        try:
            for _ in range(1 + page.BUFFERS):
                self.fds.append(os.memfd_create("ft-run-snapshot"))
            os.ftruncate(self.fds[0], page.PAGE_BYTES)
            self._map = mmap.mmap(self.fds[0], page.PAGE_BYTES)
        except OSError:
            self._close_files()
            raise
        self._page = memoryview(self._map)

    def shares(self, local_rank: int) -> set[Snapshot]:
        """Return what the worker has left; of which world, its rank and place say."""
        return {
            Snapshot(one.step, one.world_size, one.rank - local_rank, one.is_replicated)
            for one in self.entries()
            if one.rank >= local_rank
        }

    def entries(self) -> list[page.Entry]:
        """Return what the buffers hold."""
        entries = (page.read(self._page, index) for index in range(page.BUFFERS))
        return [one for one in entries if one is not None and one.step <= STEP_MAX]

    def keep(self, step: int | None) -> None:
        """Forget all steps but one."""
        for index in range(page.BUFFERS):
            entry = page.read(self._page, index)
            if entry is not None and entry.step != step:
                page.write(self._page, index, None)

    def close(self) -> None:
        """Give the memory back."""
        self._page.release()
        self._map.close()
        self._close_files()

    def _close_files(self) -> None:
        for fd in self.fds:
            os.close(fd)


class NodeOffers:
    """What this node offers for the next round."""

    def __init__(self, port: PortReservation, snapshots: HeldSnapshots) -> None:
        self._port, self._snapshots = port, snapshots

    @property
    def offer(self) -> Offer:
        """The offer as of now."""
        return replace(self._port.offer, snapshots=self._snapshots.held())

    def renew(self) -> Offer:
        """Return an offer with another port."""
        return replace(self._port.renew(), snapshots=self._snapshots.held())
