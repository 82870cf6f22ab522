"""What the workers of this node leave in memory: held here, so that it outlives them.

A worker that takes snapshots asks for its memory at a socket: a page and some buffers, files
without a name, which are the same for a local rank in each round. At the same socket it says which
of them is to become a checkpoint. The agent reads the pages and never what is in the buffers.
"""

import asyncio
import hashlib
import os
import socket
from contextlib import suppress
from functools import partial

from ...rendezvous.protocol.failure import FailureKind
from ...rendezvous.protocol.messages import Assignment
from ...rendezvous.protocol.offer import Offer, Replica, Saving, Snapshots
from ...training.worker import snapshot_page as page
from ...values import replace
from ..machine.network import PortReservation
from ..processes.worker_socket import WorkerSocket
from ..saver.saves import NodeShares, Saves
from .rank_memory import RankMemory
from .save_orders import Next, SaveOrder, SaveOrders

_MESSAGE_MAX = max(one.size for one in (page.REQUEST, page.REPLICA, page.SAVE, page.WRITTEN))
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
        self._of_others: dict[tuple[int, int], RankMemory] = {}
        """By local rank and number, from 1."""
        self._memory: dict[int, RankMemory] = {}
        """By local rank; only of those that have asked for it."""
        self._assignment: Assignment | None = None
        self._local_ranks: dict[socket.socket, int | None] = {}
        """Of workers that have their memory; None: it is for replicas: nothing of it is saved."""
        self._orders = SaveOrders(local_world_size)
        self._workers = WorkerSocket(self._answer, lambda at: self._local_ranks.pop(at, None))

    def listen(self, loop: asyncio.AbstractEventLoop) -> None:
        """Answer workers that ask; where that is not possible, there are no snapshots."""
        self._workers.listen(loop, page.address_of(os.getpid()))

    def begin(self, assignment: Assignment) -> None:
        """A round begins: only what all ranks resume from stays."""
        self._end_connections()
        self._orders.begin()
        if assignment.cause is not None and assignment.cause.kind is FailureKind.NODE_LOST:
            self._saves.node_lost()
        step = self._step_to_keep(assignment)
        self._assignment = assignment
        for memory in (*self._memory.values(), *self._of_others.values()):
            memory.keep(step)

    def _end_connections(self) -> None:
        """Read the last words of the workers that were here: they are gone."""
        for connection in self._workers.connections:
            while self._answer(connection):
                pass
            self._workers.hang_up(connection)

    def _step_to_keep(self, assignment: Assignment) -> int | None:
        """Return the step that all ranks resume from, if it is one of the round that ends."""
        ended, resumed = self._assignment, assignment.resumption
        if ended is None or resumed is None:
            return None
        is_same = (ended.round, ended.formed_by) == (resumed.round, resumed.formed_by)
        return resumed.step if is_same else None

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
        for connection, of in self._local_ranks.items():
            if of == local_rank:
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
            if self._obey(connection, connection.recv(_MESSAGE_MAX + 1)):
                return True
        except BlockingIOError:
            return False
        except OSError:
            pass  # the worker is gone, or there is no memory: then it has no snapshots
        self._workers.hang_up(connection)
        return False

    def _obey(self, connection: socket.socket, data: bytes) -> bool:
        """Do what a message says; return False where it says nothing that can be done."""
        if data[: len(page.MAGIC)] != page.MAGIC:
            return False
        if connection in self._local_ranks:
            local_rank = self._local_ranks[connection]
            if local_rank is None or len(data) != page.SAVE.size:
                return False
            return self._take_order(SaveOrder(local_rank, *page.SAVE.unpack(data)[1:]))
        if len(data) == page.REQUEST.size:
            return self._hand_out(connection, *page.REQUEST.unpack(data)[1:])
        if len(data) == page.REPLICA.size:
            return self._hand_out(connection, *page.REPLICA.unpack(data)[1:])
        if len(data) == page.WRITTEN.size:
            self._saves.note(page.WRITTEN.unpack(data)[2])
            return True
        return False

    def _hand_out(self, connection: socket.socket, rank: int, replica: int = 0) -> bool:
        memory, at = self._memory_of(rank, replica), self._assignment
        if memory is None or at is None:
            return False
        step = -1 if at.resumption is None else at.resumption.step
        reply = page.REPLY.pack(page.MAGIC, step, memory.held, at.round == 0)
        socket.send_fds(connection, [reply], memory.fds)
        self._local_ranks[connection] = rank - at.rank_offset if not replica else None
        return True

    def _take_order(self, order: SaveOrder) -> bool:
        memory = self._memory.get(order.local_rank)
        if memory is None:
            return False
        follows = self._orders.add(order, memory.share(order.step, order.local_rank))
        if follows is Next.WAIT:
            return True
        orders, snapshot = self._orders.take(), None
        if follows is Next.SAVE:
            attempt = self._orders.attempt(order.local_rank)
            snapshot = self._shares(order.local_rank, order.step, attempt)
        if snapshot is not None and self._saves.begin(snapshot, partial(self._saved, snapshot)):
            for one in snapshot.shares:
                self._memory[one.local_rank].held |= 1 << one.buffer
            return True
        for refused in orders:
            self._reply(refused.local_rank, refused.buffer, refused.step, NOT_BEGUN)
        return True

    def _memory_of(self, rank: int, replica: int) -> "RankMemory | None":
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
                self._of_others[local_rank, replica] = RankMemory()
            return self._of_others[local_rank, replica]
        if local_rank not in self._memory:
            self._memory[local_rank] = RankMemory()
        return self._memory[local_rank]


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
