"""A file system for fsspec, ``odd://PATH``, that fails or hangs when it is told to.

A process finds it when the folder of this file is on its ``PYTHONPATH``.
"""

import time
from pathlib import Path
from typing import Any

from fsspec.implementations.local import LocalFileSystem

CONTROL = "control"
"""A file beside the checkpoints: ``fail N`` (so many writes fail), ``hang`` (writes wait until it
is gone), ``read-only`` (no write is allowed; it then says how many there were), ``gone`` (there is
no answer). The first two begin with the training: not with the file that a Checkpointer writes to
see whether it can."""


class OddFileSystem(LocalFileSystem):  # type: ignore[misc]  # fsspec has no types
    protocol = "odd"

    @classmethod
    def _strip_protocol(cls, path: Any) -> str:
        return str(path).removeprefix("odd://").rstrip("/") or "/"

    def unstrip_protocol(self, name: str) -> str:
        return f"odd://{name.removeprefix('odd://')}"

    def _open(self, path: str, mode: str = "rb", **more: Any) -> Any:
        if "w" in mode:
            self._obey(Path(path))
        return super()._open(path, mode, **more)

    def ls(self, path: str, detail: bool = False, **more: Any) -> Any:
        if self._told(Path(path)) == "gone":
            raise OSError(5, "the storage is gone", path)
        return super().ls(path, detail=detail, **more)

    def _obey(self, path: Path) -> None:
        if "probe-" in str(path) and self._told(path).startswith(("hang", "fail")):
            return
        while (told := self._told(path)) == "hang":
            time.sleep(0.01)
        word, _, number = told.partition(" ")
        if word == "read-only":
            self._control(path).write_text(f"read-only {int(number or 0) + 1}")
            raise PermissionError(13, "Permission denied", str(path))
        if word == "gone" or (word == "fail" and int(number)):
            if number:
                self._control(path).write_text(f"fail {int(number) - 1}")
            raise OSError(5, "the storage is gone", str(path))

    def _told(self, path: Path) -> str:
        try:
            return self._control(path).read_text()
        except FileNotFoundError:
            return ""

    def _control(self, path: Path) -> Path:
        (folder,) = [p for p in (path, *path.parents) if (p / ".odd").exists()]
        return folder / CONTROL
