"""What all ranks of a job do together with its checkpoints: write them, and load one.

Also of those that the saver writes, they know what becomes of them.
"""

import os
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from ..ranks import Ranks
from ..worker.snapshot_memory import SaverLink, tell_written
from .state import State, flatten, put
from .storage import is_url, open_storage, words_of

_TRY_AGAIN_S = (1, 2, 4, 8)
"""The last checkpoint is tried again after so long, as what fails behind a URL is."""
_TRIES_S = 900.0
"""And not after so long in all, where it takes long until it fails."""


class CheckpointFolder:
    """All checkpoints of a job. Its methods are called by all ranks together."""

    def __init__(self, folder: "str | os.PathLike[str]", keep: int, ranks: Ranks) -> None:
        """Use a folder, which need not exist yet.

        Args:
            folder: where; it is the same for all ranks.
            keep: how many stay.
            ranks: of the job.
        """
        self.folder = os.fspath(folder) if is_url(os.fspath(folder)) else os.path.abspath(folder)
        """The same for other processes of this host."""
        self.keep = keep
        self._storage = open_storage(self.folder)
        self._ranks = ranks

    def path(self, step: int) -> str:
        """Return where the checkpoint of a step is, or will be."""
        return self._storage.path(step)

    def check(self) -> None:
        """Write a file from each node, and remove it.

        Raises:
            RuntimeError: that is not possible on some node.
        """
        is_asked = os.environ.get("LOCAL_RANK", "0") == "0"
        words = self._together(self._probe if is_asked else lambda: None)
        if words is not None:
            raise RuntimeError(
                f"checkpoints cannot be written to {self.folder}: {words}; expected a folder that "
                "each node can write to, or checkpoint_every=None."
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

        words = self._first_rank_does(look)
        if words is not None:
            raise RuntimeError(f"the checkpoints in {self.folder} cannot be listed: {words}")
        return self._ranks.most(max(found))[0]

    def save(self, step: int, state: dict[str, Any]) -> str | None:
        """Write a checkpoint; return why that failed, on all ranks; None: it is complete."""
        draft = self._storage.draft(step)
        words = self._first_rank_does(lambda: self._storage.begin(draft))
        if words is None:
            writer = _writer(draft)
            words = self._together(lambda: self._dcp(save, state, storage_writer=writer))
        if words is None:
            words = self._first_rank_does(lambda: self._storage.publish(step, draft, self.keep))
        if words is not None:
            self._first_rank_does(lambda: self._storage.abandon(draft))
        return words

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
            self._dcp(load, flat, storage_reader=reader)
            nested: dict[str, Any] = {}
            for key, value in flat.items():
                put(nested, paths[key], value)
            state.apply(nested)

        words = self._together(read)
        if words is not None:
            raise RuntimeError(f"checkpoint {path} cannot be loaded: {words}")

    # --- together --------------------------------------------------------------------------------

    def _dcp(self, function: Callable[..., object], state: dict[str, Any], **how: Any) -> None:
        alone = self._ranks.group is None
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*assuming the intent is to")  # it is
            function(state, process_group=self._ranks.group, no_dist=alone, **how)

    def _first_rank_does(self, action: Callable[[], object]) -> str | None:
        return self._together(action if self._ranks.rank == 0 else lambda: None)

    def _together(self, action: Callable[[], object]) -> str | None:
        """Return why an action failed on the first rank on which it did; None: on none."""
        words: str | None = None
        try:
            action()
        except (Exception, CheckpointException) as error:
            words = _words(error)
        return self._ranks.first_text(words)


class Checkpoints:
    """Knows which checkpoint is complete. Its methods are called by all ranks together."""

    def __init__(self, folder: CheckpointFolder, ranks: Ranks, rank: int) -> None:
        """Know of none yet.

        Args:
            folder: where they are.
            ranks: of the job.
            rank: of this process, as its agent knows it.
        """
        self._folder, self._ranks, self._rank = folder, ranks, rank
        self.saver: SaverLink | None = None
        """Writes checkpoints while training goes on; None: nothing does."""
        self.newest = -1
        """The step of the newest checkpoint that is complete, as far as is known here."""
        self.tried = -1
        """The step of the one that was begun last."""
        self._is_being_written = False
        self._words: str | None = None
        """Why the one that was begun last was not written; None: it was, or is being written."""

    def begun(self, step: int) -> None:
        """Note that the saver writes the checkpoint of a step."""
        self.tried, self._words, self._is_being_written = step, None, True

    def write(self, step: int, state: Mapping[str, Any]) -> bool:
        """Write a checkpoint while training waits; return whether it is complete."""
        if self.saver is not None:
            self.saver.wait()  # behind a URL both would write to the same place
        self.begun(step)
        since = time.monotonic()
        words = self._folder.save(step, dict(state))
        self._end(words)
        if self._ranks.rank == 0 and words is None:
            took_s = time.monotonic() - since
            say(
                f"the checkpoint of step {step} is complete: {self._folder.path(step)} "
                f"({took_s:.1f} s)."
            )
            tell_written(self._rank, step)
        elif self._ranks.rank == 0:
            known = f"; the newest complete one is of step {self.newest}"
            say(
                f"the checkpoint of step {step} was not written: {words}"
                f"{known if self.newest >= 0 else ''}."
            )
        return words is None

    def settle(self) -> str | None:
        """Wait for the saver; return why the checkpoint that was begun last was not written.

        None: it is complete, or none was begun.
        """
        if self.saver is not None:
            self.saver.wait()
        if self._is_being_written:
            # The node of rank 0 knows of all parts: it makes the checkpoint visible.
            words = self.saver.words if self.saver is not None and self._ranks.rank == 0 else ""
            self._end(self._ranks.first_text(words or None))
        return self._words

    def finish(self, step: int, save: Callable[[int], object]) -> None:
        """Have the checkpoint written that training ends with, and wait; try again if that fails.

        Args:
            step: how many steps are done.
            save: begins to write a checkpoint, or writes it.
        """
        until = time.monotonic() + _TRIES_S
        if step != self.tried:
            save(step)
        for pause_s in _TRY_AGAIN_S:
            if self.settle() is None or not self._ranks.all_say(time.monotonic() < until):
                return
            if self._ranks.rank == 0:
                say(f"trying again to write the last checkpoint in {pause_s} s.")
            time.sleep(pause_s)
            save(step)

    def demand(self) -> None:
        """Wait for the saver.

        Raises:
            RuntimeError: the checkpoint that was begun last was not written.
        """
        words = self.settle()
        if words is not None:
            raise RuntimeError(
                f"the checkpoint of step {self.tried} could not be written to "
                f"{self._folder.folder}: {words}"
            )

    def _end(self, words: str | None) -> None:
        self._is_being_written, self._words = False, words
        if words is None:
            self.newest = self.tried


def say(sentence: str) -> None:
    """Print a sentence of a worker, in the form of all lines of ft-run."""
    print(f"ft-run: {sentence}", file=sys.stderr, flush=True)


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


def _writer(path: str) -> FileSystemWriter:
    kind: Any = FileSystemWriter
    if is_url(path):
        from torch.distributed.checkpoint._fsspec_filesystem import FsspecWriter

        kind = FsspecWriter

    class Writer(kind):  # type: ignore[misc]  # it is one of two
        def write_data(self, *plan: Any) -> Any:
            try:
                return super().write_data(*plan)
            except Exception as error:
                # torch.save hides a full disk, and other ranks are sent nothing but the error.
                raise _cause(error) from error

    writer: FileSystemWriter = Writer(path)
    return writer


def _cause(error: BaseException) -> BaseException:
    """Return what the operating system has said, of the errors that led to one; or that one."""
    found: BaseException | None = error
    while found is not None and not isinstance(found, OSError):
        found = found.__cause__ or found.__context__
    return found or error


def _words(error: BaseException) -> str:
    """Return an error of a rank in one line."""
    if isinstance(error, CheckpointException) and error.failures:
        error = next(iter(error.failures.values()))[0]
    return words_of(error)
