"""The snapshots of this node's workers, held by the agent so that they survive the workers.

A worker requests its memory at a socket: a page and some buffers (memfds), the same for a local
rank in each round. It belongs to the first process of a rank that requests it in a round, until
that process has exited: others, e.g. helpers that the script starts, only read storage. The worker
requests checkpoints at the same socket. The agent reads the pages, never the buffers.
"""

import asyncio
import hashlib
import socket
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import NamedTuple, TypeVar

from msgspec.structs import replace

from ...rendezvous.protocol.carried import Carried
from ...rendezvous.protocol.failure import FailureKind
from ...rendezvous.protocol.messages import Assignment
from ...rendezvous.protocol.offer import (
    Offer,
    Replica,
    Resumption,
    Saving,
    Snapshot,
    Snapshots,
)
from ...training.worker import snapshot_page as page
from ...training.worker.agent_socket import peer_pid
from ..machine.network import PortReservation
from ..processes.worker_socket import WorkerSocket
from ..saver.saves import NodeShards, Saves
from .memory_processes import MemoryProcesses
from .rank_memory import RankMemory

_MESSAGE_MAX = max(page.SAVE.size, page.WRITTEN.size + page.DIRECTORY_BYTES)
NOT_BEGUN = (
    "the snapshots of this node's ranks do not match, or another checkpoint is being written"
)


class SaveOrder(NamedTuple):
    """A worker's request to save its snapshot of a step."""

    local_rank: int
    buffer: int
    step: int
    owner: int


class HeldSnapshots:
    """The snapshot memory of this node."""

    def __init__(self, local_world_size: int, saves: Saves, replicas: int = 0) -> None:
        self._local_world_size = local_world_size
        self._saves = saves
        self._replicas = replicas
        """Number of other ranks whose shards each worker holds."""
        self._of_others: dict[tuple[int, int], RankMemory] = {}
        """Memory for replicas, by local rank and replica number, from 1."""
        self._memory: dict[int, RankMemory] = {}
        """Memory by local rank, of workers that have requested it."""
        self._assignment: Assignment | None = None
        self._local_ranks: dict[socket.socket, int | None] = {}
        """Local ranks of connections with memory; None for replicas, which do not request
        checkpoints."""
        self._orders: dict[int, SaveOrder] = {}
        """Orders by local rank, until all ranks of this node have sent one."""
        self._ordered: Counter[int] = Counter()
        """Number of orders by local rank in this round; equal on all nodes."""
        self._refused: tuple[int, int] | None = None
        """Owner and step of an order that did not match the memory: all ranks get a reply, so that
        none waits."""
        self._processes = MemoryProcesses()
        self._workers = WorkerSocket(
            page.SOCKET, self._answer, lambda at: self._local_ranks.pop(at, None)
        )

    def listen(self, loop: asyncio.AbstractEventLoop) -> None:
        """Listen for workers; if that fails, they take no snapshots."""
        self._workers.listen(loop)

    def begin(self, assignment: Assignment) -> None:
        """Start a round: discard all snapshots except the one that all ranks resume from."""
        self._end_connections()
        self._orders.clear()
        self._ordered.clear()
        self._refused = None
        self._processes.clear()
        if assignment.cause is not None and assignment.cause.kind is FailureKind.NODE_LOST:
            self._saves.node_lost()
        kept = self._resumption_to_keep(assignment)
        self._assignment = assignment
        for memory in (*self._memory.values(), *self._of_others.values()):
            memory.keep(*((0, None) if kept is None else (kept.owner, kept.step)))

    def _end_connections(self) -> None:
        """Read the last messages of the previous round's workers, and disconnect them."""
        for connection in self._workers.connections:
            while self._answer(connection):
                pass
            self._workers.hang_up(connection)

    def _resumption_to_keep(self, assignment: Assignment) -> Resumption | None:
        """Return the state that all ranks resume from, if the previous round has saved it."""
        ended, resumed = self._assignment, assignment.resumption
        if ended is None or resumed is None:
            return None
        is_same = (ended.round, ended.formed_by) == (resumed.round, resumed.formed_by)
        return resumed if is_same else None

    def drop(self) -> None:
        """Free the memory: no rank will resume from it."""
        self._assignment = None
        self._processes.clear()
        for memory in (*self._memory.values(), *self._of_others.values()):
            memory.close()
        self._memory.clear()
        self._of_others.clear()

    def held(self) -> Snapshots | None:
        """Return the newest states, by generation, with the shards of all workers of this node."""
        at = self._assignment
        if at is None or len(self._memory) < self._local_world_size:
            return None
        shards = [memory.shards(local_rank) for local_rank, memory in self._memory.items()]
        common = set.intersection(*map(set, shards))
        newest = [replace(one, generation=max(of[one] for of in shards)) for one in common]
        replicas = self._held_of_others()
        if not newest and not replicas:
            return None
        return Snapshots(at.round, at.formed_by, _newest(newest), replicas)

    def _held_of_others(self) -> tuple[Replica, ...]:
        found: dict[tuple[int, int, int], dict[int, int]] = {}
        for memory in self._of_others.values():
            for _, one in memory.entries():
                key = one.owner, one.step, one.world_size
                found.setdefault(key, {})[one.rank] = one.generation
        return _newest(
            Replica(step, size, tuple(sorted(ranks)), owner, max(ranks.values()))
            for (owner, step, size), ranks in found.items()
        )

    def newest_whole(self) -> NodeShards | None:
        """Return the newest snapshot with all shards on this node; None if there is none."""
        held = self.held()
        for snapshot in reversed(held.held if held is not None else ()):
            for local_rank in sorted(self._memory):
                found = self._shards(local_rank, snapshot.owner, snapshot.step, "")
                if found is not None and found.order().is_whole:
                    return found
        return None

    def part(self, saving: Saving) -> NodeShards | None:
        """Return the shards that the master has assigned to this node; None if one is missing."""
        shards = {
            shard.entry.rank: shard
            for memory in (*self._of_others.values(), *self._memory.values())
            for shard in memory.all_shards(saving.owner, saving.step)
        }
        ranks = sorted(saving.ranks)
        owners = {shards[rank].entry.owner for rank in ranks if rank in shards}
        found = [memory.destination(of) for of in owners for memory in self._memory.values()]
        places = [place for place in found if place is not None]
        if not ranks or not places or not all(rank in shards for rank in ranks):
            return None
        return NodeShards(tuple(shards[n] for n in ranks), places[0], self._attempt("end"))

    def _shards(self, local_rank: int, owner: int, step: int, attempt: str) -> NodeShards | None:
        """Return one replicated shard, or those of all workers here; None if they do not match."""
        destination = self._memory[local_rank].destination(owner)
        mine = self._memory[local_rank].shard(owner, step, local_rank)
        if destination is None or mine is None:
            return None
        if mine.entry.is_replicated:
            return NodeShards((mine,), destination)
        found = [self._memory[other].shard(owner, step, other) for other in sorted(self._memory)]
        shards = tuple(shard for shard in found if shard is not None)
        size, first = mine.entry.world_size, mine.entry.rank - local_rank
        ranks = [(one.entry.world_size, one.entry.rank) for one in shards]
        if ranks != [(size, first + n) for n in range(self._local_world_size)]:
            return None
        return NodeShards(shards, destination, self._attempt(attempt) if len(shards) < size else "")

    def _attempt(self, name: str) -> str:
        assert self._assignment is not None
        text = f"{self._assignment.formed_by} {self._assignment.round} {name}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def _saved(self, snapshot: NodeShards, error: str) -> None:
        """Release the buffers of a checkpoint that has ended, and reply to their workers."""
        for shard in snapshot.shards:
            memory = self._memory.get(shard.local_rank)
            if memory is not None:
                memory.held &= ~(1 << shard.buffer)
            order = SaveOrder(shard.local_rank, shard.buffer, snapshot.step, shard.entry.owner)
            self._reply(order, error)

    def _reply(self, order: SaveOrder, error: str) -> None:
        reply = (
            page.SAVED.pack(page.MAGIC, order.buffer, order.step, order.owner)
            + error.encode(errors="replace")[: page.REASON_BYTES]
        )
        for connection, of in self._local_ranks.items():
            if of == order.local_rank:
                with suppress(OSError):  # the worker has exited
                    connection.send(reply)

    def close(self) -> None:
        """Free everything."""
        self.drop()
        self._workers.close()

    # --- messages of workers ---------------------------------------------------------------------

    def _answer(self, connection: socket.socket) -> bool:
        """Handle one message of a worker, or disconnect it; return whether there was a message."""
        try:
            if self._handle(connection, connection.recv(_MESSAGE_MAX + 1)):
                return True
        except BlockingIOError:
            return False
        except OSError:
            pass  # the worker has exited, or there is no memory for it
        self._workers.hang_up(connection)
        return False

    def _handle(self, connection: socket.socket, data: bytes) -> bool:
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
        if page.WRITTEN.size < len(data) <= _MESSAGE_MAX:
            directory = data[page.WRITTEN.size :].decode(errors="replace")
            self._saves.note(page.WRITTEN.unpack_from(data)[2], directory)
            return True
        return False

    def _hand_out(self, connection: socket.socket, rank: int, replica: int = 0) -> bool:
        memory, at = self._memory_of(rank, replica), self._assignment
        if memory is None or at is None:
            return False
        local_rank = rank - at.rank_offset
        if not self._processes.may_use(local_rank, peer_pid(connection)):
            connection.send(page.REPLY.pack(page.MAGIC, -1, 0, 0, False))
            return False
        resumed = at.resumption
        step, owner = (-1, 0) if resumed is None else (resumed.step, resumed.owner)
        reply = page.REPLY.pack(page.MAGIC, step, owner, memory.held, at.round == 0)
        socket.send_fds(connection, [reply], memory.fds)
        self._local_ranks[connection] = local_rank if not replica else None
        return True

    def _take_order(self, order: SaveOrder) -> bool:
        memory = self._memory.get(order.local_rank)
        if memory is None:
            return False
        self._orders[order.local_rank] = order
        self._ordered[order.local_rank] += 1
        shard, snapshot = memory.shard(order.owner, order.step, order.local_rank), None
        if shard is None or shard.buffer != order.buffer:
            self._refused = order.owner, order.step
        if shard is not None and (order.owner, order.step) != self._refused:
            if not shard.entry.is_replicated and len(self._orders) < self._local_world_size:
                return True  # other ranks of this node follow
            attempt = str(self._ordered[order.local_rank])
            snapshot = self._shards(order.local_rank, order.owner, order.step, attempt)
        orders = list(self._orders.values())
        self._orders.clear()
        if snapshot is not None and self._saves.begin(snapshot, partial(self._saved, snapshot)):
            for one in snapshot.shards:
                self._memory[one.local_rank].held |= 1 << one.buffer
            return True
        for refused in orders:
            self._reply(refused, NOT_BEGUN)
        return True

    def _memory_of(self, rank: int, replica: int) -> "RankMemory | None":
        """Return the memory of a rank or of its replica; None if the rank is not on this node."""
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


_Held = TypeVar("_Held", Snapshot, Replica)


def _newest(held: Iterable[_Held]) -> tuple[_Held, ...]:
    return tuple(sorted(held, key=lambda one: (one.generation, one.step))[-page.BUFFERS :])


class NodeOffers:
    """The offer of this node for the next round."""

    def __init__(
        self,
        port: PortReservation,
        snapshots: HeldSnapshots,
        carried: Callable[[], Carried] = tuple,
        is_loading: Callable[[], bool] = bool,
    ) -> None:
        self._port, self._snapshots, self._carried = port, snapshots, carried
        self._is_loading = is_loading

    @property
    def offer(self) -> Offer:
        """The current offer."""
        return self._with_what_is_held(self._port.offer)

    def renew(self) -> Offer:
        """Return an offer with another port."""
        return self._with_what_is_held(self._port.renew())

    def _with_what_is_held(self, offer: Offer) -> Offer:
        held = self._snapshots.held()
        return replace(
            offer, snapshots=held, carried=self._carried(), is_loading=self._is_loading()
        )
