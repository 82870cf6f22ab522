"""Storage of checkpoints: each becomes visible as a whole or not at all.

Workers and the saver of ft-run use it. It does not import torch.

In a folder, a checkpoint has a temporary name until it is complete and while it is removed.
Behind a URL (fsspec) there is no atomic rename: there a checkpoint is complete if it has the
metadata file, which is written last and removed first. Several nodes that write one checkpoint
coordinate by markers beside it.
"""

import io
import os
import re
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

LATEST = "latest"
METADATA = ".metadata"
"""The metadata file of ``torch.distributed.checkpoint``."""
UNFINISHED = ".writing"
_MARKS = "marks"
_NAME = re.compile(r"step-(\d{8,})")
_LEFTOVER = re.compile(
    r"\.step-(\d{8,})(\.[\w-]+)?\.(?:writing|removing|marks)|\.latest(\.[\w-]+)?\.writing"
)
_URL = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+://")
_TRIES = 5
_FIRST_PAUSE_S = 1.0
_SYNC_BYTES = 1 << 30
"""A large file is synced after each of these many bytes."""


class Storage(ABC):
    """The checkpoints of one job, in a folder that need not exist yet."""

    def __init__(self, root: str) -> None:
        self._root = root

    def steps(self) -> list[int]:
        """Return the steps of all complete checkpoints."""
        return [step for step in self._begun() if self._is_complete(step)]

    def clean(self) -> None:
        """Remove leftovers of crashes; nothing may be writing."""
        for step in self._begun():
            if not self._is_complete(step):
                self._discard(_name(step))
        self._clean(None)

    @abstractmethod
    def path(self, step: int) -> str:
        """Return where the checkpoint of a step is, or will be."""

    @abstractmethod
    def draft(self, step: int, attempt: str = "") -> str:
        """Return where to write a checkpoint before ``publish``.

        Args:
            step: of the checkpoint.
            attempt: distinguishes concurrent writers; letters, digits and dashes.
        """

    def begin(self, draft: str) -> None:
        """Create an empty draft; an earlier one is removed."""
        self.abandon(draft)
        self._make(draft)

    @abstractmethod
    def put(self, draft: str, name: str, write: "Callable[[Any], object]") -> None:
        """Write a file of a checkpoint; it is durable when this returns.

        Args:
            draft: from ``draft``.
            name: of the file.
            write: called with an object that has ``write``; may be called again.
        """

    def publish(self, step: int, draft: str, keep: int) -> None:
        """Make a checkpoint visible and the latest; remove old ones, and leftovers up to it.

        Args:
            step: of the checkpoint.
            draft: from ``draft``.
            keep: number of checkpoints to keep.
        """
        self._make_latest(step, draft)
        others = sorted(other for other in self.steps() if other < step)
        for old in others[: len(others) + 1 - keep]:
            self._retire(old)
        self._clean(step)

    def abandon(self, draft: str) -> None:
        """Remove a draft."""
        self._remove(draft)

    def mark(self, step: int, attempt: str, name: str, data: bytes) -> None:
        """Write a marker for the other writers; it is durable when this returns.

        Args:
            step: of the checkpoint.
            attempt: of the draft.
            name: of the marker.
            data: content of the marker.
        """
        folder = self._marks(step, attempt)
        self._make(folder)
        self.put(folder, name, of_bytes(data))

    def marks(self, step: int, attempt: str) -> list[str]:
        """Return the names of all markers of an attempt."""
        names = self._names(self._marks(step, attempt))
        return [name for name in names if not name.startswith(".")]

    @abstractmethod
    def read_mark(self, step: int, attempt: str, name: str) -> bytes:
        """Return the content of a marker; it may be truncated while it is written."""

    def unmark(self, step: int, attempt: str) -> None:
        """Remove all markers of an attempt."""
        self._remove(self._marks(step, attempt))

    def _begun(self) -> list[int]:
        matches = (_NAME.fullmatch(name) for name in self._names(self._root))
        return [int(match[1]) for match in matches if match]

    def _clean(self, until: int | None) -> None:
        """Remove the leftovers of steps up to ``until``; None: of all, if nothing is writing."""
        for name in self._names(self._root):
            if _is_left(name, until):
                self._discard(name)

    def _discard(self, name: str) -> None:
        with suppress(Exception):  # read-only storage
            self._delete(f"{self._root}/{name}")

    def _marks(self, step: int, attempt: str) -> str:
        return self._hidden(step, attempt, _MARKS)

    def _hidden(self, step: int, attempt: str, what: str) -> str:
        return f"{self._root}/{'.'.join(filter(None, (f'.{_name(step)}', attempt, what)))}"

    @abstractmethod
    def _make(self, folder: str) -> None:
        """Create a folder and those above it, unless they exist."""

    @abstractmethod
    def _is_complete(self, step: int) -> bool:
        """Return whether a checkpoint that was begun has all its files."""

    @abstractmethod
    def _make_latest(self, step: int, draft: str) -> None:
        """Make a checkpoint visible and the latest."""

    @abstractmethod
    def _retire(self, step: int) -> None:
        """Remove a visible checkpoint."""

    @abstractmethod
    def _names(self, at: str) -> Sequence[str]:
        """Return the names in a folder; none if there is no such folder."""

    @abstractmethod
    def _delete(self, at: str) -> None:
        """Remove a folder or file, in one attempt."""

    def _remove(self, at: str) -> None:
        """Remove a folder or file, if there is one."""
        with suppress(FileNotFoundError):
            self._delete(at)


def file_of(rank: int) -> str:
    """Return DCP's name of the file of a rank."""
    return f"__{rank}_0.distcp"


def of_bytes(data: bytes) -> "Callable[[Any], object]":
    """Return a function that writes bytes to a file."""
    return lambda file: file.write(data)


def is_url(folder: str) -> bool:
    """Return whether a folder is a URL for fsspec."""
    return _URL.match(folder) is not None


def open_storage(folder: str) -> Storage:
    """Return the checkpoints in a folder, or under a URL.

    Raises:
        ValueError: fsspec is not installed, or does not support the URL.
    """
    return UrlStorage(folder) if is_url(folder) else LocalStorage(folder)


class LocalStorage(Storage):
    """Checkpoints in a folder."""

    def __init__(self, folder: "str | os.PathLike[str]") -> None:
        super().__init__(str(Path(folder)))

    def path(self, step: int) -> str:
        return f"{self._root}/{_name(step)}"

    def draft(self, step: int, attempt: str = "") -> str:
        return self._hidden(step, attempt, "writing")

    def put(self, draft: str, name: str, write: "Callable[[Any], object]") -> None:
        _write_file(Path(draft), name, write)

    def marks(self, step: int, attempt: str) -> list[str]:
        with suppress(FileNotFoundError):
            # A change makes network file systems refresh their cached names.
            os.utime(self._marks(step, attempt))
        return super().marks(step, attempt)

    def read_mark(self, step: int, attempt: str, name: str) -> bytes:
        return Path(self._marks(step, attempt), name).read_bytes()

    def _make(self, folder: str) -> None:
        os.makedirs(folder, exist_ok=True)

    def _is_complete(self, step: int) -> bool:  # noqa: ARG002 - it has its name from then on
        return True

    def _make_latest(self, step: int, draft: str) -> None:
        path = Path(self.path(step))
        _sync(draft)
        if path.exists():  # an older checkpoint of the same step
            self._retire(step)
        os.rename(draft, path)
        _sync(self._root)
        self.put(self._root, LATEST, of_bytes(f"{path.name}\n".encode()))
        _sync(self._root)

    def _retire(self, step: int) -> None:
        hidden = self._hidden(step, "", "removing")
        self._remove(hidden)
        with suppress(FileNotFoundError):  # another writer has removed it
            os.rename(self.path(step), hidden)
        self._remove(hidden)

    def _names(self, at: str) -> Sequence[str]:
        try:
            return os.listdir(at)
        except (FileNotFoundError, NotADirectoryError):  # saving there fails with a clear error
            return []

    def _delete(self, at: str) -> None:
        if os.path.isdir(at):
            shutil.rmtree(at)
        else:
            os.unlink(at)


class UrlStorage(Storage):
    """Checkpoints behind a URL of fsspec; failed operations are retried."""

    def __init__(self, url: str) -> None:
        """Find the file system.

        Raises:
            ValueError: fsspec is not installed, or does not support the URL.
        """
        install = "pip install 'ft-run[storage]'"
        try:
            from fsspec.core import url_to_fs
        except ImportError:
            raise ValueError(f"{url} needs fsspec, which is not installed: {install}") from None
        self._url = url.rstrip("/")
        try:
            self._fs, root = url_to_fs(self._url)
        except (ImportError, ValueError) as error:
            raise ValueError(
                f"fsspec cannot open {url}: {one_line(error).rstrip('.')}; expected a folder path, "
                f"or a URL whose file system is installed ({install} and its package)"
            ) from None
        super().__init__(root)

    def path(self, step: int) -> str:
        return f"{self._url}/{_name(step)}"

    def draft(self, step: int, attempt: str = "") -> str:  # noqa: ARG002 - there is one writer
        return f"{self._root}/{_name(step)}"

    def put(self, draft: str, name: str, write: "Callable[[Any], object]") -> None:
        def write_all() -> None:
            with self._fs.open(f"{draft}/{name}", "wb") as file:
                write(file)

        _retry(write_all)

    def read_mark(self, step: int, attempt: str, name: str) -> bytes:
        at = f"{self._marks(step, attempt)}/{name}"
        return bytes(_retry(lambda: self._fs.cat_file(at)))

    def _make(self, folder: str) -> None:
        _retry(lambda: self._fs.makedirs(folder, exist_ok=True))

    def _is_complete(self, step: int) -> bool:
        at = f"{self._root}/{_name(step)}/{METADATA}"
        return bool(_retry(lambda: self._fs.exists(at)))

    def _make_latest(self, step: int, draft: str) -> None:  # noqa: ARG002 - its metadata shows it
        self._fs.invalidate_cache()
        name = f"{_name(step)}\n".encode()
        _retry(lambda: self._fs.pipe_file(f"{self._root}/{LATEST}", name))

    def _retire(self, step: int) -> None:
        self._remove(f"{self._root}/{_name(step)}")

    def _names(self, at: str) -> Sequence[str]:
        self._fs.invalidate_cache()
        try:
            paths = _retry(lambda: self._fs.ls(at, detail=False))
        except FileNotFoundError:
            return []
        return [path.rstrip("/").rpartition("/")[2] for path in paths]

    def _delete(self, at: str) -> None:
        self._fs.rm(at, recursive=True)

    def _remove(self, at: str) -> None:
        """Remove a checkpoint or a part of one, the metadata first."""

        def remove() -> None:
            self._fs.invalidate_cache()
            for path in (f"{at}/{METADATA}", at):
                with suppress(FileNotFoundError):
                    self._delete(path)

        _retry(remove)


def one_line(error: BaseException) -> str:
    """Return an error in one line."""
    lines = filter(None, map(str.strip, str(error).splitlines()))
    return next(lines, type(error).__name__)


def _is_left(name: str, until: int | None) -> bool:
    """Return whether a name is a leftover of a step up to ``until``; None: of any step."""
    match = _LEFTOVER.fullmatch(name)
    return match is not None and (until is None or int(match[1] or 0) <= until)


def _name(step: int) -> str:
    return f"step-{step:08}"


def _retry(action: Callable[[], Any]) -> Any:
    """Retry an operation, except after permanent errors."""
    pause_s = _FIRST_PAUSE_S
    for left in reversed(range(_TRIES)):
        try:
            return action()
        except Exception as error:
            permanent = (ImportError, ValueError, FileNotFoundError, PermissionError)
            if not left or isinstance(error, permanent):
                raise
        time.sleep(pause_s)
        pause_s *= 2
    return None


def _write_file(folder: Path, name: str, write: "Callable[[Any], object]") -> None:
    """Write a file under a temporary name, and rename it when it is durable."""
    # Each process has its own; it does not matter whose file wins.
    hidden = folder / f".{name.removeprefix('.')}.{os.getpid()}{UNFINISHED}"
    try:
        with open(hidden, "wb") as file:
            durable = _DurableFile(file)
            write(durable)
            durable.sync()
        os.replace(hidden, folder / name)
    except BaseException:
        with suppress(OSError):
            hidden.unlink()
        raise


class _DurableFile:
    """A file that is synced while it is written."""

    def __init__(self, file: "io.BufferedWriter") -> None:
        self._file, self._unsynced = file, 0

    def write(self, data: "bytes | memoryview") -> int:
        self._file.write(data)
        self._unsynced += len(data)
        if self._unsynced >= _SYNC_BYTES:
            self.sync()
        return len(data)

    def sync(self) -> None:
        """Make everything written so far durable."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._unsynced = 0


def _sync(folder: "str | Path") -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
