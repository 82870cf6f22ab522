"""What the workers of this node leave in memory: held here, so that it outlives them.

A worker that takes snapshots asks for its memory at a socket: a page and some buffers, files
without a name, which are the same for a local rank in each round. At the same socket it says which
of them is to become a checkpoint. The agent reads the pages and never what is in the buffers.
"""

import asyncio
import hashlib
import mmap
import os
import socket
from collections import Counter
from contextlib import suppress
from functools import partial

from ...rendezvous.protocol.failure import FailureKind
from ...rendezvous.protocol.messages import Assignment
from ...rendezvous.protocol.offer import STEP_MAX, Offer, Replica, Saving, Snapshot, Snapshots
from ...training.worker import snapshot_page as page
from ...values import replace
from ..machine.network import PortReservation
from ..processes.worker_socket import WorkerSocket
from ..saver.saves import HeldShare, NodeShares, Saves

_MESSAGE_MAX = max(one.size for one in (page.REQUEST, page.REPLICA, page.SAVE, page.WRITTEN))
_SAYS_NOTHING = -1
"""In the place of a local rank, or of a step."""
NOT_BEGUN = (
    "the snapshots of this node's ranks do not match, or another checkpoint is being written"
)


class HeldSnapshots:
    """The memory of the snapshots of this node; ``close`` it."""

    def __init__(self, local_world_size: int, saves: Saves, replicas: int = 0) -> None:
        """Hold nothing yet.

        Args:
            local_world_size: how many workers there are.
            saves: writes the checkpoints that workers ask for.
            replicas: of how many other ranks each worker keeps the shares.
        """
        self._local_world_size = local_world_size
        self._saves = saves
        self._replicas = replicas
        self._of_others: dict[tuple[int, int], _RankMemory] = {}
        """By local rank and number, from 1."""
        self._memory: dict[int, _RankMemory] = {}
        """By local rank; only of those that have asked for it."""
        self._assignment: Assignment | None = None
        self._asking: dict[socket.socket, int] = {}
        """The local ranks of workers that have said it."""
        self._orders: dict[int, tuple[int, int]] = {}
        """By local rank: buffer and step of what is to be saved, until all shares of it are."""
        self._asked: Counter[int] = Counter()
        """By local rank, how often it has asked in this round: on all nodes alike."""
        self._refused = _SAYS_NOTHING
        """The step of which a share is not what its worker said."""
        self._workers = WorkerSocket(self._answer, lambda at: self._asking.pop(at, None))

    def listen(self, loop: asyncio.AbstractEventLoop) -> None:
        """Answer workers that ask; where that is not possible, there are no snapshots."""
        self._workers.listen(loop, page.address_of(os.getpid()))

    def begin(self, assignment: Assignment) -> None:
        """A round begins: only what all ranks resume from stays."""
        # Those that were here are gone, and have left their last words.
        for connection in self._workers.connections:
            while self._answer(connection):
                pass
            self._workers.hang_up(connection)
        self._orders.clear()
        self._asked.clear()
        self._refused = _SAYS_NOTHING
        if assignment.cause is not None and assignment.cause.kind is FailureKind.NODE_LOST:
            self._saves.node_lost()
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

    def newest_whole(self) -> NodeShares | None:
        """Return the newest snapshot of which all is here; None: there is none."""
        held = self.held()
        for snapshot in reversed(held.held if held is not None else ()):
            for local_rank in sorted(self._memory):
                found = self._shares(local_rank, snapshot.step, "")
                if found is not None and len(found.shares) == found.ranks:
                    return found
        return None

    def part(self, saving: Saving) -> NodeShares | None:
        """Return what the master has this node save, with the others; None: it is not here."""
        places = [memory.place for memory in self._memory.values() if memory.place is not None]
        shares = {
            share.entry.rank: share
            for memory in (*self._of_others.values(), *self._memory.values())
            for share in memory.all_shares(saving.step)
        }
        ranks = sorted(saving.ranks)
        if not ranks or not places or not all(rank in shares for rank in ranks):
            return None
        return NodeShares(tuple(shares[n] for n in ranks), places[0], self._meeting("end"))

    def _shares(self, local_rank: int, step: int, what: str) -> NodeShares | None:
        """Return what is to be saved: the share of a rank, if all have the same, or those here.

        Args:
            local_rank: of a worker that has left one.
            step: of the snapshot.
            what: tells attempts of a round apart.
        """
        place = self._memory[local_rank].place
        mine = self._memory[local_rank].share(step, local_rank)
        if place is None or mine is None:
            return None
        if mine.entry.is_replicated:
            return NodeShares((mine,), place)
        found = [self._memory[other].share(step, other) for other in sorted(self._memory)]
        shares = tuple(share for share in found if share is not None)
        size, first = mine.entry.world_size, mine.entry.rank - local_rank
        ranks = [(one.entry.world_size, one.entry.rank) for one in shares]
        if ranks != [(size, first + n) for n in range(self._local_world_size)]:
            return None
        return NodeShares(shares, place, self._meeting(what) if len(shares) < size else "")

    def _meeting(self, what: str) -> str:
        """Return an attempt that all nodes of this round know alike, and no other round."""
        assert self._assignment is not None
        words = f"{self._assignment.formed_by} {self._assignment.round} {what}"
        return hashlib.sha256(words.encode()).hexdigest()[:16]

    def _saved(self, snapshot: NodeShares, words: str) -> None:
        """What workers have asked to be saved need not be left alone any more."""
        for share in snapshot.shares:
            memory = self._memory.get(share.local_rank)
            if memory is not None:
                memory.held &= ~(1 << share.buffer)
            self._reply(share.local_rank, share.buffer, snapshot.step, words)

    def _reply(self, local_rank: int, buffer: int, step: int, words: str) -> None:
        reply = (
            page.SAVED.pack(page.MAGIC, buffer, step)
            + words.encode(errors="replace")[: page.WORDS_BYTES]
        )
        for connection, asks in self._asking.items():
            if asks == local_rank:
                with suppress(OSError):  # the worker is gone
                    connection.send(reply)

    def close(self) -> None:
        """Give everything back."""
        self.drop()
        self._workers.close()

    # --- workers that ask ----------------------------------------------------------------------

    def _answer(self, connection: socket.socket) -> bool:
        """Take one message of a worker, or hang up; return whether there was one."""
        try:
            data = connection.recv(_MESSAGE_MAX + 1)
            local_rank = self._asking.get(connection)
            if local_rank is None and len(data) == page.REQUEST.size:
                self._hand_out(connection, *page.REQUEST.unpack(data))
                return True
            if local_rank is None and len(data) == page.REPLICA.size:
                self._hand_out(connection, *page.REPLICA.unpack(data))
                return True
            if local_rank is None and len(data) == page.WRITTEN.size:
                self._saves.note(page.WRITTEN.unpack(data)[2])
                return True
            if local_rank is not None and len(data) == page.SAVE.size:
                self._take_order(connection, local_rank, *page.SAVE.unpack(data))
                return True
        except BlockingIOError:
            return False
        except OSError:
            pass  # the worker is gone, or there is no memory: then it has no snapshots
        self._workers.hang_up(connection)
        return False

    def _hand_out(
        self, connection: socket.socket, magic: bytes, rank: int, replica: int = 0
    ) -> None:
        memory = self._memory_of(rank, replica) if magic == page.MAGIC else None
        if memory is None or self._assignment is None:
            self._workers.hang_up(connection)
            return
        at = self._assignment
        step = -1 if at.resumption is None else at.resumption.step
        reply = page.REPLY.pack(page.MAGIC, step, memory.held, at.round == 0)
        socket.send_fds(connection, [reply], memory.fds)
        # Of what is another rank's, nothing is saved.
        self._asking[connection] = rank - at.rank_offset if not replica else _SAYS_NOTHING

    def _take_order(
        self, connection: socket.socket, local_rank: int, magic: bytes, buffer: int, step: int
    ) -> None:
        memory = self._memory.get(local_rank)
        if magic != page.MAGIC or memory is None:
            self._workers.hang_up(connection)
            return
        share = memory.share(step, local_rank)
        self._orders[local_rank] = (buffer, step)
        self._asked[local_rank] += 1
        if share is None or share.buffer != buffer:
            self._refused = step  # for the other ranks too
        elif (
            not share.entry.is_replicated
            and step != self._refused
            and len(self._orders) < self._local_world_size
        ):
            return  # the shares of the other ranks belong to it
        what = str(self._asked[local_rank])
        snapshot = self._shares(local_rank, step, what) if step != self._refused else None
        orders, self._orders = self._orders, {}
        if snapshot is not None and self._saves.begin(snapshot, partial(self._saved, snapshot)):
            for one in snapshot.shares:
                self._memory[one.local_rank].held |= 1 << one.buffer
            return
        for other, (other_buffer, other_step) in orders.items():
            self._reply(other, other_buffer, other_step, NOT_BEGUN)

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
        self.held = 0
        """The buffers that the saver reads, a bit for each."""
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

    @property
    def place(self) -> page.Place | None:
        """Where checkpoints are to be written; None: the saver writes none."""
        return page.read_place(self._page)

    def share(self, step: int, local_rank: int) -> HeldShare | None:
        """Return what the worker has left of a step; None: nothing."""
        return next(iter(self.all_shares(step, local_rank)), None)

    def all_shares(self, step: int, local_rank: int = _SAYS_NOTHING) -> list[HeldShare]:
        """Return all that is here of a step."""
        entries = [(index, page.read(self._page, index)) for index in range(page.BUFFERS)]
        return [
            HeldShare(local_rank, index, self.fds[1 + index], entry, self.fds[0])
            for index, entry in entries
            if entry is not None and entry.step == step
        ]

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
