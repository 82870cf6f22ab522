"""Modules that read the rank when they are imported, and that a forked worker has read it again.

They keep it in one known attribute, up to the versions that the tests import. Any other module that
looks up a worker's own variable at import prevents forking (``environ_watch``).
"""

import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

_BETWEEN: Final = frozenset({"os", "collections.abc"})
"""The modules of ``os.environ.get``."""


def _lightning(module: Any) -> None:
    module.rank_zero_only.rank = module._get_rank() or 0


def _torchmetrics(module: Any) -> None:
    module.rank_zero_only.rank = int(os.environ.get("LOCAL_RANK", 0))


_READERS: Final[dict[str, Callable[[Any], None]]] = {
    "lightning.fabric.utilities.rank_zero": _lightning,
    "lightning_fabric.utilities.rank_zero": _lightning,
    "torchmetrics.utilities.prints": _torchmetrics,
}


def is_reader(frame: FrameType | None) -> bool:
    """Return whether a lookup in ``os.environ`` comes from one of these modules.

    ``frame`` is that of ``os.environ.__getitem__``.
    """
    while frame is not None and frame.f_globals.get("__name__") in _BETWEEN:
        frame = frame.f_back
    name = frame.f_globals.get("__name__") if frame is not None else None
    return name in _READERS or name == __name__


def read_again() -> None:
    """Set the rank in those of the modules that are loaded.

    Raises:
        AttributeError: If the version of a module keeps it elsewhere.
    """
    for name, read in _READERS.items():
        if (module := sys.modules.get(name)) is not None:
            read(module)
