"""Records which variables modules look up while they are imported.

A worker has variables that the fork server does not have, e.g. ``RANK``: a module that looks one up
at import reads it too early. A module that iterates over the environment (as tqdm does to search
for a prefix) or copies it does not find them either. Of 20 common packages that were tested (torch,
transformers, accelerate, lightning, scikit-learn, …) none keeps a copy. Modules that are known to
keep the rank (``rank_at_import``) read it again in the worker.
"""

import os
import sys
from typing import Any

from . import rank_at_import


class EnvironmentWatch:
    """Records lookups in ``os.environ`` between ``start`` and ``stop``."""

    def __init__(self) -> None:
        self.reads: set[str] = set()
        """The variables that were looked up, set or not."""
        self._content: dict[bytes, bytes] | None = None

    def start(self) -> None:
        """Start recording."""
        content = getattr(os.environ, "_data", None)
        if isinstance(content, dict):  # else an unknown Python: ``READ_BY_LIBRARIES`` must suffice
            self._content = content
            self._replace(_Recording(content, self.reads))

    def stop(self) -> None:
        """Stop recording; ``os.environ`` keeps the changes that the modules made."""
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
    """The content of ``os.environ``, with a record of each lookup."""

    def __init__(self, content: dict[bytes, bytes], reads: set[str]) -> None:
        super().__init__(content)
        self._reads = reads

    def __getitem__(self, key: bytes) -> bytes:
        if not rank_at_import.is_reader(sys._getframe(1)):
            self._reads.add(os.fsdecode(key))
        return super().__getitem__(key)
