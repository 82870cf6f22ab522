"""Checkpoints in a folder: files that are durable before they have their names."""

import io
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from .storage import CORRUPT, LATEST, NAME, UNFINISHED, ReadPart, Storage, name_of, of_bytes

_SYNC_BYTES = 1 << 30
"""A large file is synced after each of these many bytes."""


class LocalStorage(Storage):
    """Checkpoints in a folder."""

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
        """Return whether it has its name; anything but a folder is none, or a link to one."""
        path = self.path(step)
        return os.path.isdir(path) or os.path.islink(path)

    def _written_at(self, at: str) -> float:
        inner = [entry.stat().st_mtime for entry in os.scandir(at)] if os.path.isdir(at) else []
        return max([os.lstat(at).st_mtime, *inner])

    def _make_latest(self, step: int, draft: str) -> None:
        path = Path(self.path(step))
        _sync(draft)
        if os.path.lexists(path):  # an older checkpoint of the same step
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
        if os.path.isdir(at) and not os.path.islink(at):  # a link goes, what it points to stays
            shutil.rmtree(at)
        else:
            os.unlink(at)


def _write_file(folder: Path, name: str, write: "Callable[[Any], object]", tag: str) -> None:
    """Write a file under a temporary name, and rename it when it is durable."""
    # Each process has its own; it does not matter whose file wins.
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
