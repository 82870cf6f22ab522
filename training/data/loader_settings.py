"""``num_workers`` and ``prefetch_factor`` of the loader that ``ElasticBatches.parts`` reads.

``--auto-tune on`` changes them between two steps. All ranks receive a change with the report of a
step (``Checkpointer``), so that they apply it at the same step. The samples of a step do not depend
on it.
"""

import sys
from typing import Any
from weakref import WeakKeyDictionary

from torch.utils.data import DataLoader

from ..worker.tuning_page import NOTHING, TRIAL, TuningPage, completed, pack, unpack

_OF_SCRIPT: "WeakKeyDictionary[Any, int]" = WeakKeyDictionary()
"""Settings of the script, by loader."""
_agreed = 0
"""Settings on which all ranks have agreed; 0 if none."""


def page() -> TuningPage | None:
    """Return the page of this worker; None if it is not watched."""
    return getattr(sys.modules.get("_ft_run_hook"), "tuning", None)


def agree(settings: int) -> None:
    """Apply the maximum of all ranks' settings, which only one reports, from the next step on."""
    global _agreed
    if settings and settings != NOTHING:
        _agreed = settings


def apply(loader: Any, *, is_only: bool) -> bool:
    """Give a loader the current settings; return whether it must restart.

    Loaders without processes stay unchanged, and so do all loaders if a script reads several (not
    ``is_only``).
    """
    shared = page()
    if shared is None or not (shared.wanted or _agreed):
        return False
    can_change = loader.num_workers > 0 and type(loader).__iter__ is DataLoader.__iter__
    if not can_change:
        shared.in_effect(0)
        return False
    present = pack(loader.num_workers, loader.prefetch_factor)
    own = _OF_SCRIPT.setdefault(loader, present)
    wanted = completed(_agreed, own) if is_only else own
    shared.in_effect(wanted if is_only else 0)
    if wanted & ~TRIAL == present:
        return False
    loader.num_workers, loader.prefetch_factor = unpack(wanted)
    loader._iterator = None  # of persistent workers
    return True


def began(took_ns: int) -> None:
    """Record how long training has waited because a loader started."""
    if (shared := page()) is not None:
        shared.began(took_ns)
