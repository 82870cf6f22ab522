"""Where the checkpoints of a job are, and how each becomes visible: whole, or not at all.

Both write them: the worker itself, and the saver that ``ft-run`` has for it. It imports no torch.

A checkpoint in a folder has another name until it is complete, and again before it is removed:
what has the name of a checkpoint is one. What fsspec reaches by a URL has no renaming; there a
checkpoint is what has the metadata of one, which is written last and removed first.

Several nodes may write one checkpoint. They meet here: each leaves marks beside it, which the
others read.
"""

import io
import os
import re
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

LATEST = "latest"
METADATA = ".metadata"
"""The file of ``torch.distributed.checkpoint`` without which the others are of no use."""
UNFINISHED = ".writing"
_MARKS = "marks"
_NAME = re.compile(r"step-(\d{8,})")
_LEFTOVER = re.compile(
    r"\.step-(\d{8,})(\.[\w-]+)?\.(writing|removing|marks)|\.latest(\.[\w-]+)?\.writing"
)
_URL = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+://")
_TRIES = 5
_FIRST_PAUSE_S = 1.0
_SYNC_BYTES = 1 << 30
"""So many bytes of a file are made durable at a time: not all of a large one in one call."""


class Storage(Protocol):
    """The checkpoints of one job."""

    def steps(self) -> list[int]:
        """Return the steps of all checkpoints that are complete."""

    def clean(self) -> None:
        """Remove what crashes have left."""

    def path(self, step: int) -> str:
        """Return where the checkpoint of a step is, or will be."""

    def draft(self, step: int, attempt: str = "") -> str:
        """Return where to write a checkpoint, which nothing reads before ``publish``.

        Args:
            step: of the checkpoint.
            attempt: of several writers at the same time, which one; letters, digits and dashes.
        """

    def begin(self, draft: str) -> None:
        """Make room for a checkpoint; what is there of an earlier attempt is removed."""

    def put(self, draft: str, name: str, write: "Callable[[Any], object]") -> None:
        """Write a file of a checkpoint; it is durable when this returns.

        Args:
            draft: where the checkpoint is written.
            name: of the file.
            write: writes it, to what takes bytes by ``write``; it may be called again.
        """

    def has(self, draft: str) -> bool:
        """Return whether there is something at a draft; what was published has left a folder's."""

    def publish(self, step: int, draft: str, keep: int) -> None:
        """Make a checkpoint visible and the latest; of the older ones keep some.

        Done again, it changes nothing.

        Args:
            step: of the checkpoint.
            draft: where it was written.
            keep: how many checkpoints stay.
        """

    def abandon(self, draft: str) -> None:
        """Remove what was written of a checkpoint that will not be complete."""

    def mark(self, step: int, attempt: str, name: str, data: bytes) -> None:
        """Tell the other writers of a checkpoint something; it is durable when this returns.

        Args:
            step: of the checkpoint.
            attempt: as of its draft.
            name: of the mark.
            data: what is told.
        """

    def marks(self, step: int, attempt: str) -> list[str]:
        """Return the names of all marks of an attempt."""

    def read_mark(self, step: int, attempt: str, name: str) -> bytes:
        """Return what a mark tells; not all of it while it is written."""

    def unmark(self, step: int, attempt: str) -> None:
        """Remove all marks of an attempt."""


def file_of(rank: int) -> str:
    """Return the name of the file with a rank's share, as DCP has it."""
    return f"__{rank}_0.distcp"


def of_bytes(data: bytes) -> "Callable[[Any], object]":
    """Return what writes a file that has some bytes."""
    return lambda file: file.write(data)


def is_url(folder: str) -> bool:
    """Return whether a folder is one of fsspec's."""
    return _URL.match(folder) is not None


def open_storage(folder: str) -> Storage:
    """Return the checkpoints in a folder, or under a URL.

    Raises:
        ValueError: fsspec is not installed, or does not know such a URL.
    """
    return UrlStorage(folder) if is_url(folder) else LocalStorage(folder)


class LocalStorage:
    """Checkpoints in a folder."""

    def __init__(self, folder: "str | os.PathLike[str]") -> None:
        """Use a folder, which need not exist yet."""
        self._folder = Path(folder)

    def steps(self) -> list[int]:
        """Return the steps of all checkpoints that are complete."""
        matches = (_NAME.fullmatch(name) for name in self._names())
        return [int(match[1]) for match in matches if match]

    def clean(self) -> None:
        """Remove what crashes have left."""
        self._clean(None)

    def path(self, step: int) -> str:
        """Return where the checkpoint of a step is, or will be."""
        return str(self._folder / _name(step))

    def draft(self, step: int, attempt: str = "") -> str:
        """Return the folder to write a checkpoint to."""
        return str(self._hidden(step, attempt, "writing"))

    def begin(self, draft: str) -> None:
        """Make the folder to write to, empty."""
        self._folder.mkdir(parents=True, exist_ok=True)
        _remove(Path(draft))
        os.mkdir(draft)

    def put(self, draft: str, name: str, write: "Callable[[Any], object]") -> None:
        """Write a file of a checkpoint; it is durable when this returns."""
        _write_file(Path(draft), name, write)

    def has(self, draft: str) -> bool:
        """Return whether there is a folder to write to."""
        return os.path.isdir(draft)

    def publish(self, step: int, draft: str, keep: int) -> None:
        """Make a checkpoint visible and the latest; remove older ones than the newest ``keep``."""
        path = Path(self.path(step))
        if self.has(draft) or not path.exists():  # else a saver has died that had come so far
            for name in os.listdir(draft):
                if name.endswith(UNFINISHED):  # of a saver that has died, and was begun again
                    os.unlink(os.path.join(draft, name))
            _sync(draft)
            if path.exists():  # of before the steps were done once more
                self._retire(step)
            os.rename(draft, path)
        _sync(self._folder)
        _write_file(self._folder, LATEST, of_bytes(f"{path.name}\n".encode()))
        _sync(self._folder)
        others = sorted(other for other in self.steps() if other < step)
        for old in others[: len(others) + 1 - keep]:
            self._retire(old)
        self._clean(step)

    def abandon(self, draft: str) -> None:
        """Remove what was written of a checkpoint that will not be complete."""
        _remove(Path(draft))

    def mark(self, step: int, attempt: str, name: str, data: bytes) -> None:
        """Tell the other writers of a checkpoint something."""
        folder = self._hidden(step, attempt, _MARKS)
        folder.mkdir(parents=True, exist_ok=True)
        _write_file(folder, name, of_bytes(data))

    def marks(self, step: int, attempt: str) -> list[str]:
        """Return the names of all marks of an attempt."""
        folder = self._hidden(step, attempt, _MARKS)
        try:
            # A network file system keeps the names for a while, but not after a change.
            os.utime(folder)
            return [name for name in os.listdir(folder) if not name.startswith(".")]
        except FileNotFoundError:
            return []

    def read_mark(self, step: int, attempt: str, name: str) -> bytes:
        """Return what a mark tells."""
        return (self._hidden(step, attempt, _MARKS) / name).read_bytes()

    def unmark(self, step: int, attempt: str) -> None:
        """Remove all marks of an attempt."""
        _remove(self._hidden(step, attempt, _MARKS))

    def _clean(self, until: int | None) -> None:
        """Remove what is left of checkpoints up to a step; None: of all, as there is no writer."""
        for name in self._names():
            if _is_left(name, until):
                with suppress(OSError):  # a folder to read from only: it harms none
                    _remove(self._folder / name)

    def _retire(self, step: int) -> None:
        hidden = self._hidden(step, "", "removing")
        _remove(hidden)
        with suppress(FileNotFoundError):  # another writer of the job has done it
            os.rename(self.path(step), hidden)
        _remove(hidden)

    def _names(self) -> list[str]:
        try:
            return os.listdir(self._folder)
        except (FileNotFoundError, NotADirectoryError):  # what is saved there will say so
            return []

    def _hidden(self, step: int, attempt: str, what: str) -> Path:
        return self._folder / ".".join(filter(None, (f".{_name(step)}", attempt, what)))


class UrlStorage:
    """Checkpoints at a place that fsspec reaches. What fails is tried again, some times."""

    def __init__(self, url: str) -> None:
        """Find the file system.

        Raises:
            ValueError: fsspec is not installed, or does not know such a URL.
        """
        install = "pip install 'ft-run[storage]'"
        try:
            from fsspec.core import url_to_fs
        except ImportError:
            raise ValueError(f"{url} needs fsspec, which is not installed: {install}") from None
        self._url = url.rstrip("/")
        try:
            self._fs, self._root = url_to_fs(self._url)
        except (ImportError, ValueError) as error:
            raise ValueError(
                f"fsspec cannot open {url}: {words_of(error).rstrip('.')}; expected a folder path, "
                f"or a URL whose file system is installed ({install} and its package)"
            ) from None

    def steps(self) -> list[int]:
        """Return the steps of all checkpoints that are complete."""
        return [step for step in self._begun() if self._is_complete(step)]

    def clean(self) -> None:
        """Remove what crashes have left."""
        for step in self._begun():
            if not self._is_complete(step):
                with suppress(Exception):  # to read from only: it harms none
                    self._fs.rm(self._at(step), recursive=True)
        self._clean(None)

    def path(self, step: int) -> str:
        """Return where the checkpoint of a step is, or will be."""
        return f"{self._url}/{_name(step)}"

    def draft(self, step: int, attempt: str = "") -> str:  # noqa: ARG002 - there is one writer
        """Return the URL to write a checkpoint to."""
        return self.path(step)

    def begin(self, draft: str) -> None:
        """Remove what is there."""
        self._remove(self._fs._strip_protocol(draft))
        _again(lambda: self._fs.makedirs(self._fs._strip_protocol(draft), exist_ok=True))

    def put(self, draft: str, name: str, write: "Callable[[Any], object]") -> None:
        """Write a file of a checkpoint."""
        at = f"{self._fs._strip_protocol(draft)}/{name}"

        def write_all() -> None:
            with self._fs.open(at, "wb") as file:
                write(file)

        _again(write_all)

    def has(self, draft: str) -> bool:
        """Return whether there is something; also when it is visible."""
        self._fs.invalidate_cache()
        return bool(_again(lambda: self._fs.exists(self._fs._strip_protocol(draft))))

    def publish(self, step: int, draft: str, keep: int) -> None:
        """Make a checkpoint the latest; it is visible since its metadata was written."""
        del draft
        self._fs.invalidate_cache()
        name = f"{_name(step)}\n".encode()
        _again(lambda: self._fs.pipe_file(f"{self._root}/{LATEST}", name))
        others = sorted(other for other in self.steps() if other < step)
        for old in others[: len(others) + 1 - keep]:
            self._remove(self._at(old))
        self._clean(step)

    def abandon(self, draft: str) -> None:
        """Remove what was written of a checkpoint that will not be complete."""
        self._remove(self._fs._strip_protocol(draft))

    def mark(self, step: int, attempt: str, name: str, data: bytes) -> None:
        """Tell the other writers of a checkpoint something."""
        folder = self._marks(step, attempt)
        _again(lambda: self._fs.makedirs(folder, exist_ok=True))
        self.put(folder, name, of_bytes(data))

    def marks(self, step: int, attempt: str) -> list[str]:
        """Return the names of all marks of an attempt."""
        return self._names(self._marks(step, attempt))

    def read_mark(self, step: int, attempt: str, name: str) -> bytes:
        """Return what a mark tells."""
        at = f"{self._marks(step, attempt)}/{name}"
        return bytes(_again(lambda: self._fs.cat_file(at)))

    def unmark(self, step: int, attempt: str) -> None:
        """Remove all marks of an attempt."""
        self._remove(self._marks(step, attempt))

    def _clean(self, until: int | None) -> None:
        """Remove what is left of marks up to a step; None: of all, as there is no writer."""
        for name in self._names(self._root):
            if _is_left(name, until):
                with suppress(Exception):  # to read from only: it harms none
                    self._fs.rm(f"{self._root}/{name}", recursive=True)

    def _remove(self, at: str) -> None:
        """Remove a checkpoint, or a part of one; first of all it is none any more."""

        def remove() -> None:
            self._fs.invalidate_cache()
            for path in (f"{at}/{METADATA}", at):
                with suppress(FileNotFoundError):
                    self._fs.rm(path, recursive=True)

        _again(remove)

    def _begun(self) -> list[int]:
        matches = (_NAME.fullmatch(name) for name in self._names(self._root))
        return [int(match[1]) for match in matches if match]

    def _names(self, at: str) -> list[str]:
        self._fs.invalidate_cache()
        try:
            paths = _again(lambda: self._fs.ls(at, detail=False))
        except FileNotFoundError:
            return []
        return [path.rstrip("/").rpartition("/")[2] for path in paths]

    def _is_complete(self, step: int) -> bool:
        return bool(_again(lambda: self._fs.exists(f"{self._at(step)}/{METADATA}")))

    def _at(self, step: int) -> str:
        return f"{self._root}/{_name(step)}"

    def _marks(self, step: int, attempt: str) -> str:
        return f"{self._root}/.{_name(step)}.{attempt}.{_MARKS}"


def words_of(error: BaseException) -> str:
    """Return an error in one line."""
    lines = filter(None, map(str.strip, str(error).splitlines()))
    return next(lines, type(error).__name__)


def _is_left(name: str, until: int | None) -> bool:
    """Return whether something is left of a checkpoint up to a step; None: of any."""
    match = _LEFTOVER.fullmatch(name)
    if match is None or until is None:
        return match is not None
    step = int(match[1] or 0)
    return step < until or (step == until and match[3] != _MARKS)  # those are still read


def _name(step: int) -> str:
    return f"step-{step:08}"


def _again(action: Callable[[], Any]) -> Any:
    """Do something that may fail for a moment; some failures would only come again."""
    pause_s = _FIRST_PAUSE_S
    for left in reversed(range(_TRIES)):
        try:
            return action()
        except Exception as error:
            lasts = (ImportError, ValueError, FileNotFoundError, PermissionError)
            if not left or isinstance(error, lasts):
                raise
        time.sleep(pause_s)
        pause_s *= 2
    return None


def _write_file(folder: Path, name: str, write: "Callable[[Any], object]") -> None:
    """Write a file under another name, and give it its own when it is durable."""
    # Of several processes each has its own, since the last one is as good as the first.
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
    """A file that is made durable while it is written."""

    def __init__(self, file: "io.BufferedWriter") -> None:
        self._file, self._unsynced = file, 0

    def write(self, data: "bytes | memoryview") -> int:
        self._file.write(data)
        self._unsynced += len(data)
        if self._unsynced >= _SYNC_BYTES:
            self.sync()
        return len(data)

    def sync(self) -> None:
        """Return when all that was written is durable."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._unsynced = 0


def _sync(folder: "str | Path") -> None:
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
