"""A file system for fsspec, ``odd://PATH``, that fails or hangs when it is told to.

A process finds it when the folder of this file is on its ``PYTHONPATH``.
"""

import time
from pathlib import Path
from typing import Any

from fsspec.implementations.local import LocalFileSystem

CONTROL = "control"
"""A file beside the checkpoints: ``fail N`` (so many writes fail), ``hang`` (writes wait until it
is gone), ``read-only`` (no write is
allowed; it then says how many there were)."""


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

    def _obey(self, path: Path) -> None:
        (control,) = [p / CONTROL for p in path.parents if (p / ".odd").exists()]
        while control.exists() and control.read_text() == "hang":
            time.sleep(0.01)
        if not control.exists():
            return
        word, _, number = control.read_text().partition(" ")
        if word == "read-only":
            control.write_text(f"read-only {int(number or 0) + 1}")
            raise PermissionError(13, "Permission denied", str(path))
        if word == "fail" and int(number):
            control.write_text(f"fail {int(number) - 1}")
            raise OSError(5, "the storage is gone", str(path))
