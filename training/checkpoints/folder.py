"""The folder with the checkpoints of a job: what all ranks do together there."""

import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load

from ..ranks import Ranks
from .patience import Patience, StorageThread
from .share import Share, ShareError
from .state import State, flatten, put
from .storage import METADATA, file_of, is_url, of_bytes, open_storage
from .together import on_first, together


class CheckpointFolder:
    """All checkpoints of a job. Its methods are called by all ranks together."""

    def __init__(
        self,
        folder: "str | os.PathLike[str]",
        keep: int,
        ranks: Ranks,
        patience: Patience | None = None,
    ) -> None:
        """Use a folder, which need not exist yet.

        Args:
            folder: where; it is the same for all ranks.
            keep: how many stay.
            ranks: of the job.
            patience: how long its storage may take for one call when a checkpoint is written; None:
                as long as it takes.
        """
        self.folder = os.fspath(folder) if is_url(os.fspath(folder)) else os.path.abspath(folder)
        """The same for other processes of this host."""
        self.keep = keep
        self._storage = open_storage(self.folder)
        self._ranks = ranks
        self._thread = StorageThread(patience or Patience(None))

    def path(self, step: int) -> str:
        """Return where the checkpoint of a step is, or will be."""
        return self._storage.path(step)

    def check(self) -> None:
        """Write a file from each node, and remove it.

        Raises:
            RuntimeError: that is not possible on some node.
        """
        is_asked = os.environ.get("LOCAL_RANK", "0") == "0"
        words = together(self._ranks, self._probe if is_asked else lambda: None)
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
            cleans: what a crash left is removed: nothing writes at the moment.

        Raises:
            RuntimeError: the storage does not answer, or must not be read.
        """
        found = [-1]

        def look() -> None:
            if cleans:
                self._storage.clean()
            found.extend(self._storage.steps())

        words = on_first(self._ranks, look)
        if words is not None:
            raise RuntimeError(f"the checkpoints in {self.folder} cannot be listed: {words}")
        return self._ranks.most(max(found))[0]

    @property
    def is_stuck(self) -> bool:
        """Whether the storage has not answered yet what ``save`` gave up."""
        return self._thread.is_stuck

    def save(self, step: int, state: Mapping[str, Any]) -> str | None:
        """Write a checkpoint; return why that failed, on all ranks; None: it is complete."""
        draft, do = self._storage.draft(step), self._thread.do
        try:
            share = Share(self._ranks, state)
        except ShareError as error:
            return str(error)
        words = on_first(self._ranks, lambda: do(lambda: self._storage.begin(draft)))
        if words is None:
            words = together(self._ranks, lambda: do(lambda: self._put(draft, share)))
        if words is None:
            places = share.places()

            def publish() -> None:
                self._storage.put(draft, METADATA, of_bytes(share.metadata(places)))
                self._storage.publish(step, draft, self.keep)

            words = on_first(self._ranks, lambda: do(publish))
        if words is not None and self._ranks.all_say(not self.is_stuck):
            on_first(self._ranks, lambda: self._storage.abandon(draft))
        return words

    def _put(self, draft: str, share: Share) -> None:
        if not share.is_empty:
            name, tick = file_of(self._ranks.rank), self._thread.tick
            self._storage.put(draft, name, lambda file: share.write(file, tick))

    def load(self, step: int, state: State) -> None:
        """Give the objects the state of a checkpoint.

        Raises:
            RuntimeError: it cannot be read, or is the state of other objects.
        """
        path = self._storage.path(step)

        def read() -> None:
            reader = _reader(path)
            metadata = reader.read_metadata()
            keys = metadata.state_dict_metadata
            paths = metadata.planner_data
            flat = flatten(state.prepare([(paths[key], *_kind(keys[key])) for key in keys]))
            for key, value in keys.items():
                if paths[key][0] in state.others:
                    flat[key] = _room_for(value)
            group, alone = self._ranks.group, self._ranks.group is None
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message=".*assuming the intent is to")  # it is
                load(flat, storage_reader=reader, process_group=group, no_dist=alone)
            nested: dict[str, Any] = {}
            for key, value in flat.items():
                put(nested, paths[key], value)
            state.apply(nested)

        words = together(self._ranks, read)
        if words is not None:
            raise RuntimeError(f"checkpoint {path} cannot be loaded: {words}")


def _kind(value: Any) -> tuple[str, Sequence[int]]:
    """Return the type and the shape of a value in a checkpoint."""
    if isinstance(value, TensorStorageMetadata):
        return str(value.properties.dtype).removeprefix("torch."), value.size
    return "", ()


def _room_for(value: Any) -> Any:
    """Return what DCP loads a value into; what is no tensor is put in its place."""
    if isinstance(value, TensorStorageMetadata):
        return torch.empty(value.size, dtype=value.properties.dtype)
    return value


def _reader(path: str) -> FileSystemReader:
    if not is_url(path):
        return FileSystemReader(path)
    from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader

    return FsspecReader(path)
