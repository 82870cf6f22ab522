"""Shares of other nodes' ranks, held here: the loss of a host then costs no state.

All ranks exchange the same step, the newest when all have done with the one before: a slow network
makes replicas rarer, and nothing waits for it. It goes over
gloo, in the background, beside what the training sends.
"""

import hashlib
import os
import socket
import threading
from typing import Any

import torch
import torch.distributed as dist

from ..ranks import Ranks
from ..worker.snapshot_page import BUFFERS
from .snapshot_file import SnapshotFile
from .snapshots import Snapshots

IDLE, BUSY, FAILED = range(3)
"""What a rank does; the greatest of all ranks counts."""

_CHUNK_BYTES = 1 << 26


class Replicas:
    """This rank's replicas of others, and what it sends to be one elsewhere."""

    def __init__(self, ranks: Ranks, mine: Snapshots, of_others: list[Snapshots]) -> None:
        """All ranks make it together.

        Args:
            ranks: of the job, two or more.
            mine: the snapshots of this rank.
            of_others: where shares of other ranks are kept, each of another one; as many on all
                ranks.
        """
        self._ranks, self._mine, self._of_others = ranks, mine, of_others
        self._group: Any = dist.new_group(backend="gloo")
        self._distances = self._find_distances(len(of_others))
        self._thread: threading.Thread | None = None
        self._has_failed = False
        self._is_begun = True
        self._is_sharded = True
        """As far as is known: what all ranks have alike is not sent."""
        self.sending = self.whole = -1
        """The step that is being exchanged, and the newest of which all ranks have all."""

    @property
    def state(self) -> int:
        """What this rank does: ``IDLE``, ``BUSY`` or ``FAILED``."""
        is_running = self._thread is not None and self._thread.is_alive()
        if is_running or not self._is_begun:
            return BUSY
        return FAILED if self._has_failed else IDLE

    @property
    def kept(self) -> frozenset[int]:
        """The steps whose snapshots must stay: a replica is of use only beside them."""
        return frozenset((self.sending, self.whole))

    def give_up(self) -> None:
        """This rank has no snapshots any more."""
        self._has_failed = True

    def go_on(self, state: int, step: int) -> None:
        """Choose a step if all ranks are idle; ``start`` follows. All ranks call it together.

        Args:
            state: the greatest of all ranks.
            step: the newest one.
        """
        if state != IDLE or step in (self.sending, self.whole) or not self._is_sharded:
            return
        if self.sending >= 0:
            self.whole = self.sending
        self.sending, self._is_begun = step, False

    def start(self) -> None:
        """This rank has taken the snapshot of the step that was chosen, or could not."""
        if self.sending < 0 or self._is_begun:
            return
        self._is_begun = True
        if self._mine.is_replicated(self.sending):
            self.sending, self._is_sharded = -1, False
            return
        file = self._mine.written(self.sending)
        self._thread = threading.Thread(
            target=self._exchange, args=(self.sending, file), daemon=True
        )
        self._thread.start()

    def wait(self) -> None:
        """Return when nothing is exchanged by this rank."""
        if self._thread is not None:
            self._thread.join()

    def exchange_now(self, step: int) -> bool:
        """Exchange a step and wait; return whether all have it. All ranks call it together."""
        while True:
            self.wait()
            (state,) = self._ranks.most(self.state)
            if state != IDLE or self.sending == step:
                return state == IDLE
            self.go_on(state, step)
            self.start()
            if self.sending != step:
                return False

    def _exchange(self, step: int, file: SnapshotFile | None) -> None:
        try:
            for distance, held in zip(self._distances, self._of_others, strict=True):
                self._exchange_with(distance, held, step, file)
        except (RuntimeError, OSError, ValueError):  # a rank is gone, or there is no memory
            self._has_failed = True

    def _exchange_with(
        self, distance: int, held: Snapshots, step: int, file: SnapshotFile | None
    ) -> None:
        size, rank = self._ranks.size, self._ranks.rank
        to, source = (rank + distance) % size, (rank - distance) % size
        mine = theirs = torch.empty(0, dtype=torch.uint8)
        said, lengths = torch.zeros(2, dtype=torch.int64), torch.zeros(2, dtype=torch.int64)
        if file is not None:  # else its copy came too late, and none is of use
            mine = file.all_bytes
            said = torch.tensor([file.data_bytes, file.layout_bytes], dtype=torch.int64)
        self._swap(said, to, lengths, source)
        data_bytes, layout_bytes = map(int, lengths)
        if data_bytes:
            keep = frozenset((self.whole,))
            theirs = held.receive(data_bytes, layout_bytes, keep=keep).all_bytes
        for start in range(0, max(mine.numel(), theirs.numel()), _CHUNK_BYTES):
            end = start + _CHUNK_BYTES
            self._swap(mine[start:end], to, theirs[start:end], source)
        if data_bytes:
            held.received(step, rank=source, is_replicated=False)

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
        """Return how far away, in ranks, the others are: on other hosts if that can be."""
        size = self._ranks.size
        name = hashlib.sha256(socket.gethostname().encode()).digest()
        hosts = self._ranks.table(int.from_bytes(name[:8], "little", signed=True))
        (local,) = self._ranks.most(int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
        steps = [distance for distance in range(local, size, local) if distance % size]

        def shared(distance: int) -> int:
            return sum(hosts[rank] == hosts[(rank + distance) % size] for rank in range(size))

        return sorted(steps, key=lambda distance: (shared(distance), distance))[:count]


def spread(
    ranks: Ranks, mine: Snapshots, step: int, own: SnapshotFile | None
) -> SnapshotFile | None:
    """Have a state that is the same on all ranks sent to those that have none.

    All ranks call it together.

    Args:
        ranks: of the job.
        mine: the snapshots of this rank.
        step: whose state it is.
        own: what this rank has of it.

    Returns:
        This rank's share; None, on all ranks: none has a state that is the same on all.
    """
    has_it = own is not None and mine.is_replicated(step)
    source = ranks.least(ranks.rank if has_it else ranks.size)[0]
    if source == ranks.size:
        return None
    sent = own if source == ranks.rank else None
    lengths = ranks.most(*((sent.data_bytes, sent.layout_bytes) if sent is not None else (0, 0)))
    # A rank that has its own share keeps it, and takes part with memory that it gives back.
    file = own if own is not None else mine.receive(lengths[0], lengths[1])
    is_used = sent is not None or own is None
    data = file.all_bytes if is_used else torch.empty(sum(lengths), dtype=torch.uint8)
    ranks.send(data, source)
    if own is None:
        file.open(lengths[0], lengths[1])
        mine.received(step, rank=ranks.rank, is_replicated=True)
    return file


def fetch(
    ranks: Ranks, mine: Snapshots, of_others: list[Snapshots], step: int
) -> SnapshotFile | None:
    """Have each rank sent its share of a step, if it has none, by one that has it.

    All ranks call it together.

    Args:
        ranks: of the job, two or more.
        mine: the snapshots of this rank.
        of_others: the replicas that it has.
        step: whose state it is.

    Returns:
        This rank's share; None, on all ranks: there is one that nothing here has.
    """
    places = {rank: held for held in (*of_others, mine) for rank in held.ranks_of(step)}
    # Of each buffer, whose share it has.
    room = BUFFERS * (len(of_others) + 1)
    there = ranks.table(*sorted(places), *[-1] * (room - len(places)))
    holders: dict[int, int] = {}
    for holder, shares in enumerate(there):
        for share in shares:
            if share >= 0 and (share == holder or share not in holders):
                holders[share] = holder
    if holders.keys() != set(range(ranks.size)):
        return None
    own = mine.find(step)
    for rank, holder in sorted(holders.items()):
        if rank == holder or ranks.rank not in (rank, holder):
            continue
        if ranks.rank == holder:
            file = places[rank].find(step, rank)
            assert file is not None
            send = _Sender(ranks.group, rank)
            send(torch.tensor([file.data_bytes, file.layout_bytes], dtype=torch.int64))
            send(file.all_bytes)
        else:
            lengths = torch.zeros(2, dtype=torch.int64)
            dist.recv(lengths, holder, group=ranks.group)
            own = mine.receive(int(lengths[0]), int(lengths[1]), keep=frozenset((step,)))
            for start in range(0, own.all_bytes.numel(), _CHUNK_BYTES):
                dist.recv(own.all_bytes[start : start + _CHUNK_BYTES], holder, group=ranks.group)
            own.open(int(lengths[0]), int(lengths[1]))
            mine.received(step, rank=rank, is_replicated=False)
    return own


class _Sender:
    def __init__(self, group: Any, to: int) -> None:
        self._group, self._to = group, to

    def __call__(self, data: torch.Tensor) -> None:
        for start in range(0, data.numel(), _CHUNK_BYTES):
            dist.send(data[start : start + _CHUNK_BYTES], self._to, group=self._group)
