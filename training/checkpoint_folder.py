"""The folder of a job's checkpoints, each a folder of ``torch.distributed.checkpoint``.

A checkpoint has another name until it is complete, and again before it is removed: what has the
name of a checkpoint is one.
"""

import os
import re
import shutil
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from .ranks import Ranks
from .state import State, put

LATEST = "latest"
_NAME = re.compile(r"step-(\d{8,})")
_LEFTOVER = re.compile(r"\.step-\d{8,}\.(writing|removing)|\.latest\.writing")


class CheckpointFolder:
    """All checkpoints of a job. Its methods are called by all ranks together."""

    def __init__(self, folder: "str | os.PathLike[str]", keep: int, ranks: Ranks) -> None:
        """Use a folder, which need not exist yet.

        Args:
            folder: where; it is the same for all ranks.
            keep: how many stay.
            ranks: of the job.
        """
        self._folder = Path(folder)
        self._keep = keep
        self._ranks = ranks

    def newest(self) -> int:
        """Return the step of the newest checkpoint, -1 if there is none; clean up after a crash."""
        found = -1
        if self._ranks.rank == 0:
            for name in self._names():
                if _LEFTOVER.fullmatch(name):
                    with suppress(OSError):  # a folder to read from only: it harms none
                        _remove(self._folder / name)
            found = max(self._steps(), default=-1)
        return self._ranks.most(found)[0]

    def path(self, step: int) -> Path:
        """Return where the checkpoint of a step is."""
        return self._folder / f"step-{step:08}"

    def save(self, step: int, state: dict[str, Any]) -> str | None:
        """Write a checkpoint; return why that failed, nothing where it failed on another rank.

        None: it is complete, and so it is on all ranks.
        """
        temporary = self._hidden(step, "writing")
        words = self._first_rank_does(lambda: self._begin(temporary))
        if words is None:
            writer = FileSystemWriter(temporary)
            words = self._together(lambda: self._dcp(save, state, storage_writer=writer))
        if words is None:
            words = self._first_rank_does(lambda: self._publish(step, temporary))
        if words is not None:
            self._first_rank_does(lambda: _remove(temporary))
        return words

    def load(self, step: int, state: State) -> None:
        """Give the objects the state of a checkpoint.

        Raises:
            RuntimeError: it cannot be read, or is the state of other objects.
        """
        path = self.path(step)

        def read() -> None:
            reader = FileSystemReader(path)
            metadata = reader.read_metadata()
            keys = metadata.state_dict_metadata
            nested = state.prepare(keys)
            for key, value in keys.items():
                where = metadata.planner_data[key]
                if where[0] in state.others:
                    put(nested, where, _room_for(value))
            self._dcp(load, nested, storage_reader=reader)
            state.apply(nested)

        words = self._together(read)
        if words is not None:
            raise RuntimeError(f"checkpoint {path} cannot be loaded: {words}")

    # --- what one rank does ----------------------------------------------------------------------

    def _begin(self, temporary: Path) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        _remove(temporary)

    def _publish(self, step: int, temporary: Path) -> None:
        path = self.path(step)
        _sync(temporary)
        if path.exists():  # of before the steps were done once more
            self._retire(step)
        os.rename(temporary, path)
        _sync(self._folder)
        latest = self._folder / f".{LATEST}.writing"
        with open(latest, "w") as file:
            file.write(f"{path.name}\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(latest, self._folder / LATEST)
        _sync(self._folder)
        others = sorted(other for other in self._steps() if other < step)
        for old in others[: len(others) + 1 - self._keep]:
            self._retire(old)

    def _retire(self, step: int) -> None:
        hidden = self._hidden(step, "removing")
        _remove(hidden)
        os.rename(self.path(step), hidden)
        _remove(hidden)

    def _names(self) -> list[str]:
        try:
            return os.listdir(self._folder)
        except (FileNotFoundError, NotADirectoryError):  # what is saved there will say so
            return []

    def _steps(self) -> list[int]:
        matches = (_NAME.fullmatch(name) for name in self._names())
        return [int(match[1]) for match in matches if match]

    def _hidden(self, step: int, what: str) -> Path:
        return self._folder / f".{self.path(step).name}.{what}"

    # --- together --------------------------------------------------------------------------------

    def _dcp(self, function: Callable[..., object], state: dict[str, Any], **how: Any) -> None:
        alone = self._ranks.group is None
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*assuming the intent is to")  # it is
            function(state, process_group=self._ranks.group, no_dist=alone, **how)

    def _first_rank_does(self, action: Callable[[], object]) -> str | None:
        return self._together(action if self._ranks.rank == 0 else lambda: None)

    def _together(self, action: Callable[[], object]) -> str | None:
        """Return why an action failed on this rank; empty: on another one; None: it did not."""
        words: str | None = None
        try:
            action()
        except (Exception, CheckpointException) as error:
            words = _words(error)
        return None if self._ranks.all_say(words is None) else words or ""


def _room_for(value: Any) -> Any:
    """Return what DCP loads a value into; what is no tensor is put in its place."""
    if isinstance(value, TensorStorageMetadata):
        return torch.empty(value.size, dtype=value.properties.dtype)
    return value


def _words(error: BaseException) -> str:
    """Return an error of a rank in one line."""
    if isinstance(error, CheckpointException) and error.failures:
        error = next(iter(error.failures.values()))[0]
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__


def _sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _remove(path: Path) -> None:
    with suppress(FileNotFoundError):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
