"""What modules read of the environment while they are imported, and whether they keep it.

A worker has variables that the image has not, such as ``RANK``. A module that looks one up when it
is imported does so too early, and one that keeps a copy of the environment keeps one that is no
worker's. To walk over it in search of some prefix, as tqdm and fsspec do, is neither.
"""

import gc
import os
import secrets
import sys
from collections.abc import Callable
from typing import Any, Final

_MARK: Final = "FT_RUN_PRELOAD_"
"""How the name of a variable begins that is in ``os.environ`` during the preload alone."""


class EnvironmentWatch:
    """Takes note of what is read of ``os.environ`` from ``start`` to ``stop``."""

    def __init__(self) -> None:
        """Create a watch that has not begun."""
        self.reads: set[str] = set()
        """The variables that were looked up, whether they were there or not."""
        self._stop: Callable[[], None] = lambda: None
        # One object each: whoever keeps a copy of the environment keeps a reference to one of them.
        self._mark = [_MARK + secrets.token_hex(8), secrets.token_hex(16)]
        self._raw_mark = [os.fsencode(text) for text in self._mark]
        self._kept_before = 0

    def start(self) -> None:
        """Begin."""
        environ: Any = os.environ
        content = getattr(environ, "_data", None)
        if not isinstance(content, dict):  # another Python: then the list of names must do
            return
        # First, as what a loop leaves behind in its variables is the last.
        recording = _Recording(dict([self._raw_mark]) | content, self.reads)
        environments: tuple[Any, ...] = (environ, os.environb)
        decoders = environ.decodekey, environ.decodevalue
        for environment in environments:
            environment._data = recording
        environ.decodekey = self._decoder(0, decoders[0])
        environ.decodevalue = self._decoder(1, decoders[1])
        self._kept_before = self._references()

        def stop() -> None:
            content.clear()
            content.update(recording)
            content.pop(self._raw_mark[0], None)
            environ.decodekey, environ.decodevalue = decoders
            for environment in environments:
                environment._data = content

        self._stop = stop

    def stop(self) -> None:
        """End; ``os.environ`` is what the modules have made of it."""
        self._stop()

    def is_kept(self) -> bool:
        """Return whether somebody has a copy of the environment, or of all names or values.

        To be asked between ``start`` and ``stop``. A copy of which neither names nor values are as
        they were is not noticed.
        """
        if self._references() > self._kept_before:
            gc.collect()  # it may be garbage
        return self._references() > self._kept_before

    def _references(self) -> int:
        return sum(map(sys.getrefcount, [*self._mark, *self._raw_mark]))

    def _decoder(self, which: int, decode: Callable[[bytes], str]) -> Callable[[bytes], str]:
        raw, text = self._raw_mark[which], self._mark[which]
        return lambda value: text if value == raw else decode(value)


class _Recording(dict[bytes, bytes]):
    """The content of ``os.environ``, which takes note of what is looked up."""

    def __init__(self, content: dict[bytes, bytes], reads: set[str]) -> None:
        super().__init__(content)
        self._reads = reads

    def __getitem__(self, key: bytes) -> Any:
        self._reads.add(os.fsdecode(key))
        return super().__getitem__(key)
