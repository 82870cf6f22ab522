"""Checkpoints behind a URL of fsspec."""

import io
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from .storage import CORRUPT, LATEST, METADATA, ReadPart, Storage, name_of, one_line

_TRIES = 5
_FIRST_PAUSE_S = 1.0


class UrlStorage(Storage):
    """Checkpoints behind a URL of fsspec; failed operations are retried."""

    def __init__(self, url: str, tag: str = "") -> None:
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
        """Return whether a checkpoint was set aside."""
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
