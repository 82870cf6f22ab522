"""Replicas: each rank holds shards of ranks on other nodes, in case a host is lost.

All ranks exchange the same step in the background over gloo: the newest one when all have finished
the previous exchange. A slow network makes replicas less frequent, but never delays training.
"""

import hashlib
import os
import socket
import threading
from typing import Any

import torch
import torch.distributed as dist

from ..gloo import new_gloo_group
from ..ranks import Ranks
from ..worker.snapshot_page import BUFFERS
from .snapshot_file import SnapshotFile
from .snapshot_store import Snapshots

IDLE, BUSY, FAILED = range(3)
"""States of a rank; the maximum of all ranks counts."""

_CHUNK_BYTES = 1 << 26


class Replicas:
    """Sends this rank's shards to others, and receives theirs."""

    def __init__(self, ranks: Ranks, mine: Snapshots, of_others: list[Snapshots]) -> None:
        """Create a gloo group; all ranks call it together, with equally many ``of_others``."""
        self._ranks, self._mine, self._of_others = ranks, mine, of_others
        self._group: Any = new_gloo_group()
        self._distances = self._find_distances(len(of_others))
        self._thread: threading.Thread | None = None
        self._has_failed = False
        self._is_begun = True
        self._is_sharded = True
        """False once a snapshot was the same on all ranks: then nothing is sent."""
        self.sending = self.complete = -1
        """Steps of the current and of the last complete exchange; -1 if none."""

    @property
    def state(self) -> int:
        """``IDLE``, ``BUSY`` or ``FAILED``."""
        is_running = self._thread is not None and self._thread.is_alive()
        if is_running or not self._is_begun:
            return BUSY
        return FAILED if self._has_failed else IDLE

    @property
    def kept_steps(self) -> frozenset[int]:
        """Steps whose snapshots must be kept, because a replica is useless without them."""
        return frozenset((self.sending, self.complete))

    def fail(self) -> None:
        """Stop, because this rank takes no more snapshots."""
        self._has_failed = True

    def schedule(self, state: int, step: int) -> None:
        """Schedule a step if the maximum ``state`` of all ranks is idle; all call it together."""
        if state != IDLE or step in (self.sending, self.complete) or not self._is_sharded:
            return
        if self.sending >= 0:
            self.complete = self.sending
        self.sending, self._is_begun = step, False

    def start(self) -> None:
        """Start the scheduled exchange, after this rank's snapshot is complete or has failed."""
        if self.sending < 0 or self._is_begun:
            return
        self._is_begun = True
        if not self._mine.is_sharded:  # not its entry: a rank whose copy failed has none
            self.sending, self._is_sharded = -1, False
            return
        file = self._mine.written(self.sending)
        self._thread = threading.Thread(
            target=self._exchange, args=(self.sending, file), daemon=True
        )
        self._mine.reader = self._thread
        self._thread.start()

    def forget(self) -> None:
        """Forget which steps were sent: another Checkpointer has used the buffers since."""
        self.wait()
        self.sending = self.complete = -1

    def wait(self) -> None:
        """Wait until this rank's exchange has ended."""
        if self._thread is not None:
            self._thread.join()

    def exchange_now(self, step: int) -> bool:
        """Exchange a step and wait; return whether it succeeded. All ranks call it together."""
        while True:
            self.wait()
            (state,) = self._ranks.maximum(self.state)
            if state != IDLE or self.sending == step:
                return state == IDLE
            self.schedule(state, step)
            self.start()
            if self.sending != step:
                return False

    def _exchange(self, step: int, file: SnapshotFile | None) -> None:
        try:
            for distance, held in zip(self._distances, self._of_others, strict=True):
                self._exchange_with(distance, held, step, file)
        except (RuntimeError, ValueError):  # a rank has died
            self._has_failed = True

    def _exchange_with(
        self, distance: int, held: Snapshots, step: int, file: SnapshotFile | None
    ) -> None:
        size, rank = self._ranks.size, self._ranks.rank
        to, source = (rank + distance) % size, (rank - distance) % size
        mine = torch.empty(0, dtype=torch.uint8, device="cpu")
        sent, received = (
            torch.zeros(3, dtype=torch.int64, device="cpu"),
            torch.zeros(3, dtype=torch.int64, device="cpu"),
        )
        if file is not None:  # else the copy failed, and this step is useless
            mine = file.all_bytes
            sent = _description(file, self._mine, step)
        self._swap(sent, to, received, source)
        data_bytes, layout_bytes, generation = map(int, received)
        length = data_bytes + layout_bytes
        kept = self._receive(held, data_bytes, layout_bytes) if data_bytes else None
        # A shard that cannot be kept is received nevertheless: the rank that sends it would wait.
        dropped = torch.empty(min(length, _CHUNK_BYTES), dtype=torch.uint8, device="cpu")
        for start in range(0, max(mine.numel(), length), _CHUNK_BYTES):
            end = start + _CHUNK_BYTES
            theirs = kept[start:end] if kept is not None else dropped[: max(0, length - start)]
            self._swap(mine[start:end], to, theirs, source)
        if kept is not None:
            held.received(step, rank=source, is_replicated=False, generation=generation)

    def _receive(self, held: Snapshots, data_bytes: int, layout_bytes: int) -> torch.Tensor | None:
        """Return memory for another rank's shard; None if there is none."""
        try:
            keep = frozenset((self.complete,))
            return held.receive(data_bytes, layout_bytes, keep=keep).all_bytes
        except (OSError, ValueError):
            self._has_failed = True
            return None

    def _swap(self, mine: torch.Tensor, to: int, theirs: torch.Tensor, source: int) -> None:
        works = []
        if mine.numel():
            works.append(dist.isend(mine, to, group=self._group))
        if theirs.numel():
            works.append(dist.irecv(theirs, source, group=self._group))
        for work in works:
            if work is not None:
                work.wait()

    def _find_distances(self, count: int) -> list[int]:
        """Return the distances in ranks to exchange with, preferring other hosts."""
        size = self._ranks.size
        name = hashlib.sha256(socket.gethostname().encode()).digest()
        hosts = self._ranks.all_gather(int.from_bytes(name[:8], "little", signed=True))
        (local,) = self._ranks.maximum(int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
        steps = [distance for distance in range(local, size, local) if distance % size]

        def shared(distance: int) -> int:
            return sum(hosts[rank] == hosts[(rank + distance) % size] for rank in range(size))

        return sorted(steps, key=lambda distance: (shared(distance), distance))[:count]


def broadcast_replicated(
    ranks: Ranks, mine: Snapshots, step: int, own: SnapshotFile | None
) -> SnapshotFile | None:
    """Broadcast a replicated state to the ranks that lack it; return this rank's file.

    All ranks call it together. None on all ranks if no rank has a replicated state of the step.
    """
    has_it = own is not None and mine.is_replicated(step)
    source = ranks.minimum(ranks.rank if has_it else ranks.size)[0]
    if source == ranks.size:
        return None
    sent = own if source == ranks.rank else None
    described = _description(sent, mine, step).tolist() if sent is not None else (0, 0, 0)
    *lengths, generation = ranks.maximum(*described)
    # A rank that has the state joins the broadcast with temporary memory.
    file = own if own is not None else mine.receive(lengths[0], lengths[1])
    is_used = sent is not None or own is None
    data = file.all_bytes if is_used else torch.empty(sum(lengths), dtype=torch.uint8, device="cpu")
    ranks.broadcast(data, source)
    if own is None:
        file.open(lengths[0], lengths[1])
        mine.received(step, rank=ranks.rank, is_replicated=True, generation=generation)
    return file


def fetch_shards(
    ranks: Ranks, mine: Snapshots, of_others: list[Snapshots], step: int
) -> SnapshotFile | None:
    """Send each rank that lacks its shard of a step a replica of it; return this rank's file.

    All ranks call it together. None on all ranks if any shard is lost.
    """
    found = {rank: held for held in (*of_others, mine) for rank in held.ranks_of(step)}
    room = BUFFERS * (len(of_others) + 1)
    there = ranks.all_gather(*sorted(found), *[-1] * (room - len(found)))
    holders: dict[int, int] = {}
    for holder, shards in enumerate(there):
        for shard in shards:
            if shard >= 0 and (shard == holder or shard not in holders):
                holders[shard] = holder
    if holders.keys() != set(range(ranks.size)):
        return None
    own = mine.find(step)
    for rank, holder in sorted(holders.items()):
        if rank == holder or ranks.rank not in (rank, holder):
            continue
        if ranks.rank == holder:
            file = found[rank].find(step, rank)
            assert file is not None
            for data in (_description(file, found[rank], step), file.all_bytes):
                for start in range(0, data.numel(), _CHUNK_BYTES):
                    dist.send(data[start : start + _CHUNK_BYTES], rank, group=ranks.group)
        else:
            described = torch.zeros(3, dtype=torch.int64, device="cpu")
            dist.recv(described, holder, group=ranks.group)
            data_bytes, layout_bytes, generation = map(int, described)
            own = mine.receive(data_bytes, layout_bytes, keep=frozenset((step,)))
            for start in range(0, own.all_bytes.numel(), _CHUNK_BYTES):
                dist.recv(own.all_bytes[start : start + _CHUNK_BYTES], holder, group=ranks.group)
            own.open(data_bytes, layout_bytes)
            mine.received(step, rank=rank, is_replicated=False, generation=generation)
    return own


def _description(file: SnapshotFile, held: Snapshots, step: int) -> torch.Tensor:
    numbers = (file.data_bytes, file.layout_bytes, held.generation_of(step))
    return torch.tensor(numbers, dtype=torch.int64, device="cpu")
