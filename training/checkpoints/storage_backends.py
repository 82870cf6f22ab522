"""Checkpoints in directories and behind URLs of fsspec. Does not import torch."""

import io
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from .storage import (
    CORRUPT,
    LATEST,
    METADATA,
    NAME,
    UNFINISHED,
    ReadPart,
    Storage,
    name_of,
    of_bytes,
    one_line,
)

_SYNC_BYTES = 1 << 30
"""A large file is synced each time this many bytes were written."""


class LocalStorage(Storage):
    """Checkpoints in a directory."""

    def __init__(self, folder: "str | os.PathLike[str]", tag: str = "") -> None:
        super().__init__(str(Path(folder)), tag)

    def corrupt(self) -> list[str]:
        names = (name for name in self._names(self._root) if name.endswith(CORRUPT))
        return [f"{self._root}/{name}" for name in names if NAME.match(name)]

    def set_aside(self, step: int) -> str:
        path = f"{self.path(step)}{CORRUPT}"
        self._remove(path)
        os.rename(self.path(step), path)
        return path

    def read(self, step: int, name: str) -> bytes:
        return Path(self.path(step), name).read_bytes()

    @contextmanager
    def reading(self, step: int, name: str) -> Iterator[ReadPart]:
        with open(f"{self.path(step)}/{name}", "rb") as file:
            yield lambda start, end: io.BufferedReader(FilePart(file, start, end - start))

    def path(self, step: int) -> str:
        return f"{self._root}/{name_of(step)}"

    def draft(self, step: int, attempt: str = "") -> str:
        return self._hidden(step, attempt, "writing")

    def put(self, draft: str, name: str, write: "Callable[[Any], object]") -> None:
        _write_file(Path(draft), name, write, self._tag)

    def marks(self, step: int, attempt: str) -> list[str]:
        with suppress(FileNotFoundError):
            # A change makes network file systems refresh their cached names.
            os.utime(self._marks(step, attempt))
        return super().marks(step, attempt)

    def read_mark(self, step: int, attempt: str, name: str) -> bytes:
        return Path(self._marks(step, attempt), name).read_bytes()

    def _make(self, folder: str) -> None:
        os.makedirs(folder, exist_ok=True)

    def _is_complete(self, step: int) -> bool:
        """Return whether it is a directory or a link; anything else is not a checkpoint."""
        path = self.path(step)
        return os.path.isdir(path) or os.path.islink(path)

    def _written_at(self, at: str) -> float:
        inner = [entry.stat().st_mtime for entry in os.scandir(at)] if os.path.isdir(at) else []
        return max([os.lstat(at).st_mtime, *inner])

    def _make_latest(self, step: int, draft: str) -> None:
        path = Path(self.path(step))
        _sync(draft)
        # An older one of the same step takes long to remove.
        older = self._hide(step) if os.path.lexists(path) else None
        os.rename(draft, path)
        _sync(self._root)
        if older is not None:
            with suppress(OSError):  # the next checkpoint tries again
                self._remove(older)
        self.put(self._root, LATEST, of_bytes(f"{path.name}\n".encode()))
        _sync(self._root)

    def _retire(self, step: int) -> None:
        self._remove(self._hide(step))

    def _hide(self, step: int) -> str:
        """Rename a checkpoint, if there is one, so that it is not visible; return its path."""
        hidden = self._hidden(step, "", "removing")
        self._remove(hidden)
        with suppress(FileNotFoundError):  # another writer may also have removed it
            os.rename(self.path(step), hidden)
        return hidden

    def _names(self, at: str) -> Sequence[str]:
        try:
            return os.listdir(at)
        except (FileNotFoundError, NotADirectoryError):  # saving there fails with a clear error
            return []

    def _delete(self, at: str) -> None:
        if os.path.isdir(at) and not os.path.islink(at):  # remove a link, not its target
            shutil.rmtree(at)
        else:
            os.unlink(at)


def _write_file(folder: Path, name: str, write: "Callable[[Any], object]", tag: str) -> None:
    """Write a file under a temporary name, and rename it when it is durable."""
    # Each process has its own name; it does not matter whose file is kept.
    own = "-".join(filter(None, (tag, str(os.getpid()))))
    hidden = folder / f".{name.removeprefix('.')}.{own}{UNFINISHED}"
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


class FilePart(io.RawIOBase):
    """A readable part of a file."""

    def __init__(self, file: Any, start: int, length: int) -> None:
        super().__init__()
        self._file, self._start, self._length, self._at = file, start, length, 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._length}[whence]
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        count = max(0, min(len(buffer), self._length - self._at))
        self._file.seek(self._start + self._at)
        found = int(self._file.readinto(memoryview(buffer)[:count]))
        self._at += found
        return found


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
        self._file.flush()
        os.fsync(self._file.fileno())
        self._unsynced = 0


def _sync(folder: "str | Path") -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


# --- URLs ----------------------------------------------------------------------------------------

_TRIES = 5
_FIRST_PAUSE_S = 1.0


class UrlStorage(Storage):
    """Checkpoints behind a URL of fsspec; failed operations are retried."""

    def __init__(self, url: str, tag: str = "") -> None:
        """Raise ``ValueError`` if fsspec is not installed, or does not support the URL."""
        install = "pip install 'ft-run[storage]'"
        try:
            from fsspec.core import url_to_fs  # an optional package
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
        super().__init__(root, tag)

    def corrupt(self) -> list[str]:
        return [self.path(step) for step in self._begun() if self._is_corrupt(step)]

    def set_aside(self, step: int) -> str:
        at = f"{self._root}/{name_of(step)}/{METADATA}"
        _retry(lambda: self._fs.mv(at, f"{at}{CORRUPT}"))
        return f"{self.path(step)}/{METADATA}{CORRUPT}"

    def read(self, step: int, name: str) -> bytes:
        return bytes(_retry(lambda: self._fs.cat_file(f"{self._root}/{name_of(step)}/{name}")))

    @contextmanager
    def reading(self, step: int, name: str) -> Iterator[ReadPart]:
        at = f"{self._root}/{name_of(step)}/{name}"
        yield lambda start, end: io.BytesIO(
            _retry(lambda: self._fs.cat_file(at, start=start, end=end))
        )

    def path(self, step: int) -> str:
        return f"{self._url}/{name_of(step)}"

    def draft(self, step: int, attempt: str = "") -> str:  # noqa: ARG002 - there is one writer
        return f"{self._root}/{name_of(step)}"

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
        at = f"{self._root}/{name_of(step)}/{METADATA}"
        return bool(_retry(lambda: self._fs.exists(at)))

    def _unfinished(self) -> list[int]:
        begun = self._begun()
        return [s for s in begun if not self._is_complete(s) and not self._is_corrupt(s)]

    def _is_corrupt(self, step: int) -> bool:
        at = f"{self._root}/{name_of(step)}/{METADATA}{CORRUPT}"
        return bool(_retry(lambda: self._fs.exists(at)))

    def _written_at(self, at: str) -> float:
        files = self._fs.find(at)
        return max((self._fs.modified(file).timestamp() for file in files), default=0.0)

    def _make_latest(self, step: int, draft: str) -> None:  # noqa: ARG002 - its metadata shows it
        self._fs.invalidate_cache()
        name = f"{name_of(step)}\n".encode()
        _retry(lambda: self._fs.pipe_file(f"{self._root}/{LATEST}", name))

    def _retire(self, step: int) -> None:
        self._remove(f"{self._root}/{name_of(step)}")

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


def _retry(action: Callable[[], Any]) -> Any:
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


# --- selection -----------------------------------------------------------------------------------

_URL = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+://")


def is_url(folder: str) -> bool:
    """Return whether a path is a URL for fsspec."""
    return _URL.match(folder) is not None


def open_storage(folder: str, tag: str = "") -> Storage:
    """Return the storage of a directory or URL; raise ``ValueError`` if fsspec cannot open it."""
    return UrlStorage(folder, tag) if is_url(folder) else LocalStorage(folder, tag)
