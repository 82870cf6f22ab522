"""Reads and writes the checkpoints of a job, all ranks together."""

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.planner import SavePlan
from torch.distributed.checkpoint.state_dict_loader import load

from ..ranks import Ranks
from .containers import Item, write_values
from .metadata import Offsets, metadata_of, offsets_of
from .state import Select, State, put
from .storage import METADATA, file_of, is_url, of_bytes, one_line, open_storage
from .storage_timeout import StorageThread, StorageTimeout

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
        """Use a folder, which need not exist yet.

        Args:
            folder: path or URL, the same on all ranks.
            keep: number of checkpoints to keep.
            ranks: of the job.
            timeout: of the storage, when a checkpoint is written; None: no limit.
        """
        self.folder = os.fspath(folder) if is_url(os.fspath(folder)) else os.path.abspath(folder)
        """An absolute path, or a URL."""
        self.keep = keep
        self._storage = open_storage(self.folder)
        self._ranks = ranks
        self._thread = StorageThread(timeout or StorageTimeout(None))

    def path(self, step: int) -> str:
        """Return where the checkpoint of a step is, or will be."""
        return self._storage.path(step)

    def check(self) -> None:
        """Check that each node can write to the folder.

        Raises:
            RuntimeError: a node cannot.
        """
        is_asked = os.environ.get("LOCAL_RANK", "0") == "0"
        words = on_all_ranks(self._ranks, self._probe if is_asked else lambda: None)
        if words is not None:
            raise RuntimeError(
                f"checkpoints cannot be written to {self.folder}: {words}; expected a folder that "
                "each node can write to, or checkpoint_every=None"
            )

    def _probe(self) -> None:
        attempt = f"probe-{self._ranks.rank}"
        self._storage.mark(0, attempt, "probe", b"probe")
        self._storage.unmark(0, attempt)

    def newest(self, *, cleans: bool = True) -> int:
        """Return the step of the newest checkpoint, -1 if there is none.

        Args:
            cleans: whether to remove leftovers of crashes; nothing may be writing then.

        Raises:
            RuntimeError: the folder cannot be read.
        """
        found = [-1]

        def look() -> None:
            if cleans:
                self._storage.clean()
            found.extend(self._storage.steps())

        words = on_rank_0(self._ranks, look)
        if words is not None:
            raise RuntimeError(f"the checkpoints in {self.folder} cannot be listed: {words}")
        return self._ranks.maximum(max(found))[0]

    @property
    def is_stuck(self) -> bool:
        """Whether an operation that ``save`` has given up still runs."""
        return self._thread.is_stuck

    def save(self, step: int, state: Mapping[str, Any]) -> str | None:
        """Write a checkpoint; return the error, on all ranks; None: it is complete."""
        draft, do = self._storage.draft(step), self._thread.run
        shard = _Shard(self._ranks, state)
        if shard.error is not None:
            return shard.error
        words = on_rank_0(self._ranks, lambda: do(lambda: self._storage.begin(draft)))
        if words is None:
            words = on_all_ranks(self._ranks, lambda: do(lambda: self._put(draft, shard)))
        if words is None:
            offsets = shard.offsets()

            def publish() -> None:
                self._storage.put(draft, METADATA, of_bytes(shard.metadata(offsets)))
                self._storage.publish(step, draft, self.keep)

            words = on_rank_0(self._ranks, lambda: do(publish))
        if words is not None and self._ranks.all_true(not self.is_stuck):
            on_rank_0(self._ranks, lambda: self._storage.abandon(draft))
        return words

    def _put(self, draft: str, shard: "_Shard") -> None:
        if not shard.is_empty:
            name, tick = file_of(self._ranks.rank), self._thread.tick
            self._storage.put(draft, name, lambda file: shard.write(file, tick))

    def load(self, step: int, state: State, select: Select = lambda _: ()) -> None:
        """Load a checkpoint into the objects.

        Args:
            step: of the checkpoint.
            state: of the script.
            select: may replace values, and returns the names of objects to leave out.

        Raises:
            RuntimeError: it cannot be read, or belongs to other objects.
        """
        path = self._storage.path(step)

        def read() -> None:
            reader = _reader(path)
            metadata = reader.read_metadata()
            keys = metadata.state_dict_metadata
            paths = metadata.planner_data
            saved = [(paths[key], *_dtype_and_shape(keys[key])) for key in keys]

            def load_nested(flat: dict[str, Any]) -> dict[str, Any]:
                group, alone = self._ranks.group, self._ranks.group is None
                with warnings.catch_warnings():
                    warnings.filterwarnings("ignore", message=".*assuming the intent is to")
                    load(flat, storage_reader=reader, process_group=group, no_dist=alone)
                nested: dict[str, Any] = {}
                for key, value in flat.items():
                    put(nested, paths[key], value)
                return nested

            groups = {key: _placeholder(keys[key]) for key in keys if state.has_groups(paths[key])}
            state.check_groups(load_nested(groups) if groups else {})  # before anything is loaded
            mine = state.prepare(saved, is_local=False)
            flat = {
                key: mine.get(key, _placeholder(value))
                for key, value in keys.items()
                if key in mine or state.is_free(paths[key])
            }
            nested = load_nested({**flat, **mine})
            state.apply(nested, select(nested))

        words = on_all_ranks(self._ranks, read)
        if words is not None:
            raise RuntimeError(f"checkpoint {path} cannot be loaded: {words}")


def _dtype_and_shape(value: Any) -> tuple[str, Sequence[int]]:
    """Return them for a value in a checkpoint; an empty type if it is not a tensor."""
    if isinstance(value, TensorStorageMetadata):
        return str(value.properties.dtype).removeprefix("torch."), value.size
    return "", ()


def _placeholder(value: Any) -> Any:
    """Return a placeholder for a value, for DCP to load into."""
    if isinstance(value, TensorStorageMetadata):
        return torch.empty(value.size, dtype=value.properties.dtype)
    return value


def _reader(path: str) -> FileSystemReader:
    if not is_url(path):
        return FileSystemReader(path)
    from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader

    return FsspecReader(path)


# --- a rank's part of a checkpoint that is written without a snapshot --------------------------


class _Shard:
    """The values that this rank writes; of values that several ranks have, one rank writes them."""

    def __init__(self, ranks: Ranks, state: Mapping[str, Any]) -> None:
        """Divide the state among the ranks. All ranks call it together.

        Args:
            ranks: of the job.
            state: the nested state dict of this rank.
        """
        self._ranks = ranks
        self._planner = DefaultSavePlanner()
        self._state = dict(state)
        self._plan = SavePlan([])
        self._plans: list[SavePlan] = []
        """Of all ranks; only on rank 0."""
        self._items: list[Item] = []
        self._device = _CUDA.current_device() if _CUDA.is_initialized() else None
        if self._device is not None:
            _CUDA.synchronize()  # copies of another thread do not wait for this one's streams
        words = on_all_ranks(ranks, self._make_plan)
        plans = ranks.gather(self._plan)
        self.error = words or on_rank_0(ranks, lambda: self._agree(plans))
        """Why the states of the ranks do not match, on all of them; None: they do."""
        if self.error is None:
            self._plan = ranks.scatter(self._plans)

    def _make_plan(self) -> None:
        self._planner.set_up_planner(self._state, is_coordinator=self._ranks.rank == 0)
        self._plan = self._planner.create_local_plan()

    def _agree(self, plans: list[SavePlan]) -> None:
        self._plans, _ = self._planner.create_global_plan(plans)

    @property
    def is_empty(self) -> bool:
        """Whether this rank writes nothing."""
        return not self._plan.items

    def write(self, file: Any, written: Callable[[], object]) -> None:
        """Write this rank's file, from any thread.

        Args:
            file: with a method ``write``.
            written: called after each write.
        """
        if self._device is None:
            self._items = write_values(self._planner, self._plan, file, written)
            return
        with _CUDA.device(self._device):
            self._items = write_values(self._planner, self._plan, file, written)

    def offsets(self) -> list[Offsets]:
        """Return the offsets in all files on rank 0. All ranks call it together."""
        return self._ranks.gather(offsets_of(self._plan, self._items))

    def metadata(self, offsets: list[Offsets]) -> bytes:
        """Return the metadata of the checkpoint, on rank 0."""
        return metadata_of(self._plans, offsets)


# --- actions that ranks carry out together -----------------------------------------------------


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
