"""Imports in the background: they leave most of the CPU time to the workers.

A lower priority (``nice``) would stay with every worker that is forked from the process later: it
cannot be raised again without CAP_SYS_NICE.
"""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

_PAUSE = 3.0
"""Seconds of pause for each second of CPU time."""


class _Pauses:
    """A finder on ``sys.meta_path`` that finds nothing, but pauses before each import."""

    def __init__(self) -> None:
        self._used_s = time.process_time()

    def find_spec(self, *_: Any) -> None:
        """Pause in proportion to the CPU time since the last pause."""
        time.sleep(_PAUSE * (time.process_time() - self._used_s))
        self._used_s = time.process_time()


@contextmanager
def unhurried() -> Iterator[None]:
    """Let imports use a quarter of a CPU on average."""
    pauses: Any = _Pauses()
    sys.meta_path.insert(0, pauses)
    try:
        yield
    finally:
        with suppress(ValueError):  # a module may have replaced the list
            sys.meta_path.remove(pauses)
