"""Which variables modules look up while they are imported.

A worker has variables that the fork server does not have, such as ``RANK``: a module that looks one
up while it is imported reads it too early. A module that walks over the environment, as tqdm does
in search of a prefix, does not find them. Nor does one that copies it: of 20 common packages that
were tried (torch, transformers, accelerate, lightning, scikit-learn, …) none keeps a copy.
"""

import os
from typing import Any


class EnvironmentWatch:
    """Records what is looked up in ``os.environ`` between ``start`` and ``stop``."""

    def __init__(self) -> None:
        """Create a watch that has not begun."""
        self.reads: set[str] = set()
        """The variables that were looked up, set or not."""
        self._content: dict[bytes, bytes] | None = None

    def start(self) -> None:
        """Begin."""
        content = getattr(os.environ, "_data", None)
        if isinstance(content, dict):  # else another Python: then the list of names must do
            self._content = content
            self._replace(_Recording(content, self.reads))

    def stop(self) -> None:
        """End; ``os.environ`` is what the modules have made of it."""
        if self._content is not None:
            environ: Any = os.environ
            recorded = dict(environ._data)
            self._content.clear()
            self._content.update(recorded)
            self._replace(self._content)

    def _replace(self, content: dict[bytes, bytes]) -> None:
        environments: tuple[Any, ...] = (os.environ, os.environb)
        for environment in environments:
            environment._data = content


class _Recording(dict[bytes, bytes]):
    """The content of ``os.environ``, which records what is looked up."""

    def __init__(self, content: dict[bytes, bytes], reads: set[str]) -> None:
        super().__init__(content)
        self._reads = reads

    def __getitem__(self, key: bytes) -> bytes:
        self._reads.add(os.fsdecode(key))
        return super().__getitem__(key)
