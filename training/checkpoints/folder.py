"""Reads and writes the checkpoints of a job, on all ranks together."""

import os
import secrets
import socket
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import nullcontext, suppress
from dataclasses import replace
from math import inf
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import SavePlan

from ..ranks import Ranks
from ..worker.log import log
from .checkpoint_files import (
    CheckpointReader,
    CorruptCheckpointError,
    Item,
    Offsets,
    metadata_of,
    offsets_of,
    write_values,
)
from .encoding import put
from .kinds import place_of
from .layout import RECORD_NAME, Checksum, checksums_of, record_of, tag_of, this_job
from .rank_state import RESERVED
from .state import Select, State
from .storage import METADATA, StorageThread, StorageTimeout, file_of, of_bytes, one_line
from .storage_backends import is_url, open_storage

_CUDA: Any = torch.cuda
"""Untyped: the stubs differ between builds of torch."""


class CheckpointFolder:
    """The checkpoints of a job. All ranks call the methods together."""

    def __init__(
        self,
        folder: "str | os.PathLike[str]",
        keep: int,
        ranks: Ranks,
        timeout: StorageTimeout | None = None,
    ) -> None:
        """``folder`` (path or URL) is the same on all ranks; ``timeout`` is for writing."""
        self.folder = os.fspath(folder) if is_url(os.fspath(folder)) else os.path.abspath(folder)
        """Absolute path, or URL."""
        self.keep = keep
        self._job = this_job()
        self._storage = open_storage(self.folder, tag_of(self._job))
        self._ranks = ranks
        self._left_out: set[int] = set()
        """Damaged checkpoints that could not be renamed; only on rank 0."""
        self._warned = ""
        """Last warning about an old checkpoint; only on rank 0."""
        self._thread = StorageThread(timeout or StorageTimeout(None))

    def path(self, step: int) -> str:
        """Return the path of the checkpoint of a step, which need not exist."""
        return self._storage.path(step)

    def check(self) -> None:
        """Raise ``RuntimeError`` unless all nodes can write to the folder, and see the same one."""
        attempt = f"probe-{self._ranks.first_text(secrets.token_hex(4))}"
        host = self._ranks.first_text(socket.gethostname())

        def probe() -> None:
            self._storage.mark(0, attempt, str(self._ranks.rank), b"probe")

        def look() -> None:
            if "0" not in self._storage.marks(0, attempt):
                raise RuntimeError(
                    f"the folder {self.folder} is not shared: {socket.gethostname()} does not see "
                    f"what {host} wrote; expected storage that all nodes reach"
                )

        is_asked = os.environ.get("LOCAL_RANK", "0") == "0"
        words = on_rank_0(self._ranks, probe)
        if words is None:
            words = on_all_ranks(self._ranks, probe if is_asked else lambda: None)
        not_shared = None
        if words is None:  # each node has changed the folder, so its names are not cached
            not_shared = on_all_ranks(self._ranks, look if is_asked else lambda: None)
        with suppress(Exception):  # a leftover is removed later, when it is old
            if is_asked and (self._ranks.rank == 0 or words is not None or not_shared is not None):
                self._storage.unmark(0, attempt)
        if words is not None:
            raise RuntimeError(
                f"checkpoints cannot be written to {self.folder}: {words}; expected a folder that "
                "each node can write to, or checkpoint_every=None"
            )
        if not_shared is not None:
            raise RuntimeError(not_shared)

    def newest(self, *, cleans: bool = True) -> int:
        """Return the step of the newest checkpoint; -1 if there is none.

        ``cleans`` removes leftovers of crashes; nothing may be writing at that time.

        Raises:
            RuntimeError: If the folder cannot be read, or all its checkpoints are damaged.
        """
        found, corrupt = [-1], [""]

        def look() -> None:
            if cleans:
                self._storage.clean()
            found.extend(set(self._storage.steps()) - self._left_out)
            if max(found) < 0:
                corrupt.extend(sorted(self._storage.corrupt()))
                corrupt.extend(map(self._storage.path, sorted(self._left_out)))

        words = on_rank_0(self._ranks, look)
        if words is not None:
            raise RuntimeError(f"the checkpoints in {self.folder} cannot be listed: {words}")
        newest = self._ranks.maximum(max(found))[0]
        damaged = self._ranks.first_text(corrupt[-1]) if newest < 0 else ""
        if damaged:
            raise RuntimeError(
                f"no checkpoint in {self.folder} can be loaded, the newest one is damaged: "
                f"{damaged}; to start from step 0, remove it or use another folder"
            )
        return newest

    def set_aside(self, step: int, reason: str) -> None:
        """Rename a damaged checkpoint, and log it with the reason."""
        if self._ranks.rank > 0:
            return
        try:
            then = f"renamed to {self._storage.set_aside(step)}"
        except Exception as error:  # any exception of an fsspec file system
            self._left_out.add(step)
            then = f"it could not be renamed: {one_line(error)}"
        log(
            f"checkpoint {self._storage.path(step)} is damaged: {reason}; {then}; trying the "
            "previous one"
        )

    @property
    def is_stuck(self) -> bool:
        """Whether an operation that ``save`` has abandoned is still running."""
        return self._thread.is_stuck

    def save(self, step: int, state: Mapping[str, Any]) -> str | None:
        """Write a checkpoint; return the error on all ranks, or None if it is complete."""
        draft, do = self._storage.draft(step), self._thread.run
        shard = _Shard(self._ranks, state)
        if shard.error is not None:
            return shard.error
        words = on_rank_0(self._ranks, lambda: do(lambda: self._storage.begin(draft)))
        if words is None:
            words = on_all_ranks(self._ranks, lambda: do(lambda: self._put(draft, shard)))
        if words is None:
            written = shard.written()

            def publish() -> None:
                metadata, checksums = shard.metadata([offsets for offsets, _ in written]), {}
                for rank, (_, of_rank) in enumerate(written):
                    if of_rank:
                        checksums[file_of(rank)] = of_rank
                checksums[METADATA] = checksums_of(memoryview(metadata), [len(metadata)])
                known = record_of(self._job, "worker", checksums)
                self._storage.put(draft, RECORD_NAME, of_bytes(known))
                self._storage.put(draft, METADATA, of_bytes(metadata))
                warning = self._storage.publish(step, draft, self.keep)
                if warning and warning != self._warned:
                    self._warned = warning
                    log(f"an old checkpoint could not be removed: {warning}")

            words = on_rank_0(self._ranks, lambda: do(publish))
        if words is not None and self._ranks.all_true(not self.is_stuck):
            on_rank_0(self._ranks, lambda: self._storage.abandon(draft))
        return words

    def _put(self, draft: str, shard: "_Shard") -> None:
        if not shard.is_empty:
            name, tick = file_of(self._ranks.rank), self._thread.tick
            self._storage.put(draft, name, lambda file: shard.write(file, tick))

    def load(
        self, step: int, state: State, select: Select = lambda _: (), *, job_began: float = inf
    ) -> None:
        """Load a checkpoint into the objects.

        Args:
            select: can replace values; returns the names of objects to leave out.
            job_began: start time of this job, in seconds since the epoch.

        Raises:
            CorruptCheckpointError: If it is damaged; the objects may already have some of its
                values.
            RuntimeError: If it cannot be read, or belongs to other objects.
        """
        reader = self._read_metadata(step)
        saved_paths = reader.metadata.planner_data
        state.kinds.check_size(place_of(str(first)) for first, *_ in saved_paths.values())

        def read() -> None:
            paths = state.kinds.in_memory(saved_paths)
            # In the metadata, values that several ranks have follow the sharded ones.
            keys = {key: reader.metadata.state_dict_metadata[key] for key in paths}
            saved = [(paths[key], *_dtype_and_shape(keys[key])) for key in keys]

            def load_nested(flat: dict[str, Any]) -> dict[str, Any]:
                reader.load(flat)
                nested: dict[str, Any] = {}
                for key, value in flat.items():
                    put(nested, paths[key], value)
                return nested

            groups = {key: _placeholder(keys[key]) for key in keys if state.has_groups(paths[key])}
            state.check_groups(load_nested(groups) if groups else {})  # before anything is loaded
            mine = state.prepare(saved, is_local=False)
            flat = {}
            for key, value in keys.items():
                name = ".".join(map(str, paths[key]))
                if name in mine or state.is_free(paths[key]):
                    flat[key] = mine.pop(name) if name in mine else _placeholder(value)
            loaded.append(load_nested({**flat, **mine}))

        loaded: list[dict[str, Any]] = []
        self._on_all_ranks(step, read)
        (nested,) = loaded
        self._log_other_names(step, state, {place_of(str(p[0])).name for p in saved_paths.values()})
        self._on_all_ranks(step, lambda: state.apply(nested, select(nested)))
        found = reader.record if self._ranks.rank == 0 else None
        if found is not None and found.job != self._job and found.time > job_began:
            log(
                f"checkpoint {self._storage.path(step)}, which is loaded, was written by another "
                f"job ({found.job} on {found.host}) after this one ({self._job}) began; expected "
                "a folder for each job"
            )

    def _log_other_names(self, step: int, state: State, saved: AbstractSet[str]) -> None:
        """Log which objects only the script has, or only the checkpoint."""
        mine = state.objects.keys()
        lacks = sorted(name for name in mine - saved if not name.startswith(RESERVED))
        others = sorted(name for name in saved - mine if not state.is_expected(name))
        parts = [f"lacks {', '.join(map(repr, lacks))}, not restored"] if lacks else []
        if others:
            parts.append(f"has {', '.join(map(repr, others))}, not in the script's state")
        if parts and self._ranks.rank == 0:
            log(f"checkpoint {self._storage.path(step)} {'; it '.join(parts)}")

    def _read_metadata(self, step: int) -> CheckpointReader:
        """Return a reader on each rank; raises like ``load``, e.g. if ranks read different data."""
        found: list[CheckpointReader] = []
        self._on_all_ranks(step, lambda: found.append(CheckpointReader(self._storage, step)))
        (reader,) = found
        rows = self._ranks.all_gather(reader.digest)
        other = next((rank for rank, row in enumerate(rows) if row != rows[0]), None)
        if other is not None:
            raise RuntimeError(
                f"checkpoint {self._storage.path(step)} cannot be loaded: rank {other} reads "
                "another one there than rank 0; expected storage that all nodes share"
            )
        return reader

    def _on_all_ranks(self, step: int, action: Callable[[], object]) -> None:
        """Run an action that reads a checkpoint on each rank.

        An exception on one rank is raised on all: ``CorruptCheckpointError`` if there is no other
        one, else ``RuntimeError``.
        """
        damage: list[str] = []

        def act() -> None:
            try:
                action()
            except CorruptCheckpointError as error:
                damage.append(str(error))

        words = on_all_ranks(self._ranks, act)
        if words is not None:
            raise RuntimeError(f"checkpoint {self._storage.path(step)} cannot be loaded: {words}")
        words = self._ranks.first_text(damage[0] if damage else None)
        if words is not None:
            raise CorruptCheckpointError(words)


def _dtype_and_shape(value: Any) -> tuple[str, Sequence[int]]:
    if isinstance(value, TensorStorageMetadata):
        return str(value.properties.dtype).removeprefix("torch."), value.size
    return "", ()


def _placeholder(value: Any) -> Any:
    if isinstance(value, TensorStorageMetadata):
        return torch.empty(value.size, dtype=value.properties.dtype, device="cpu")
    return value


# --- a rank's part of a checkpoint without a snapshot ------------------------------------------


class _Shard:
    """The values that this rank writes; of a value that several ranks have, the lowest one's."""

    def __init__(self, ranks: Ranks, state: Mapping[str, Any]) -> None:
        """Divide the state among the ranks. All ranks call it together."""
        self._ranks = ranks
        self._planner = DefaultSavePlanner()
        self._state = dict(state)
        self._plan = SavePlan([])
        self._plans: list[SavePlan] = []
        """Plans of all ranks; only on rank 0."""
        self._items: list[Item] = []
        self._checksums: list[Checksum] = []
        self._device = _CUDA.current_device() if _CUDA.is_initialized() else None
        if self._device is not None:
            _CUDA.synchronize()  # copies of another thread do not wait for this thread's streams
        words = on_all_ranks(ranks, self._make_plan)
        plans = ranks.gather(self._plan)
        self.error = words or on_rank_0(ranks, lambda: self._agree(plans))
        """On all ranks, why the states of the ranks do not match; None if they do."""
        if self.error is None:
            self._plan = ranks.scatter(self._plans)

    def _make_plan(self) -> None:
        self._planner.set_up_planner(self._state, is_coordinator=self._ranks.rank == 0)
        self._plan = self._planner.create_local_plan()

    def _agree(self, plans: list[SavePlan]) -> None:
        holders: dict[MetadataIndex, int] = {}
        for rank, plan in enumerate(plans):
            for item in plan.items:
                holders.setdefault(item.index, rank)
        # Otherwise the planner would choose any rank, also for values that differ (buffers).
        plans = [
            replace(plan, items=[item for item in plan.items if holders[item.index] == rank])
            for rank, plan in enumerate(plans)
        ]
        self._plans, _ = self._planner.create_global_plan(plans)

    @property
    def is_empty(self) -> bool:
        return not self._plan.items

    def write(self, file: Any, written: Callable[[], object]) -> None:
        """Write this rank's file, from any thread; ``written`` is called after each write."""
        device = nullcontext() if self._device is None else _CUDA.device(self._device)
        self._checksums = []
        with device:
            self._items = write_values(
                self._planner, self._plan, file, written, checksums=self._checksums
            )

    def written(self) -> list[tuple[Offsets, list[Checksum]]]:
        """Return offsets and checksums in all files on rank 0. All ranks call it together."""
        return self._ranks.gather((offsets_of(self._plan, self._items), self._checksums))

    def metadata(self, offsets: list[Offsets]) -> bytes:
        return metadata_of(self._plans, offsets)


# --- actions of all ranks ----------------------------------------------------------------------


def on_all_ranks(ranks: Ranks, action: Callable[[], object]) -> str | None:
    """Run an action on each rank; return the error of the lowest rank that failed, in one line."""
    error: str | None = None
    try:
        action()
    except (Exception, CheckpointException) as raised:
        failures = raised.failures if isinstance(raised, CheckpointException) else {}
        error = one_line(next(iter(failures.values()))[0] if failures else raised)
    return ranks.first_text(error)


def on_rank_0(ranks: Ranks, action: Callable[[], object]) -> str | None:
    """Run an action on rank 0; return its error on all ranks."""
    return on_all_ranks(ranks, action if ranks.rank == 0 else lambda: None)
