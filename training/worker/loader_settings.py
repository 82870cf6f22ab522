"""``num_workers`` and ``prefetch_factor`` of the loader that ``ElasticBatches.parts`` reads.

``--auto-tune on`` changes them between two steps. The agent writes them to the page of the worker
with rank 0, and all ranks receive a change with the report of a step (``Checkpointer``), so they
make it at the same step. It does not change the samples of a step.

In the page, the settings are one number: bits 0 to 15 are ``prefetch_factor``, 16 to 31
``num_workers``; 0 is the value of the script. ``TRIAL`` is set while they are on trial: a failure
is then attributed to them.
"""

import sys
import time
from typing import Any
from weakref import WeakKeyDictionary

from .page_layout import (
    DISTURBED,
    IN_EFFECT,
    STEP,
    STEP_NS,
    SWITCH_NS,
    TRIAL_AT,
    TRIAL_BYTES,
    WANTED,
    write_text,
)
from .start import Page

TRIAL = 1 << 40
NOTHING = 1 << 41
"""Value of ``WANTED`` if ``--auto-tune on`` was given, and changes nothing yet."""
_FIELD = 0xFFFF

_OF_SCRIPT: "WeakKeyDictionary[Any, int]" = WeakKeyDictionary()
"""Settings of the script, by loader."""
_agreed = 0
"""Settings on which all ranks have agreed; 0 if none."""


def pack(num_workers: int, prefetch_factor: int) -> int:
    """Return settings as a number."""
    return min(num_workers, _FIELD) << 16 | min(prefetch_factor, _FIELD)


def unpack(number: int) -> tuple[int, int]:
    """Return ``num_workers`` and ``prefetch_factor``."""
    return number >> 16 & _FIELD, number & _FIELD


def completed(number: int, others: int) -> int:
    """Return settings in which values of ``others`` replace zeros."""
    processes, prefetch = unpack(number)
    own_processes, own_prefetch = unpack(others)
    return number & TRIAL | pack(processes or own_processes, prefetch or own_prefetch)


def _page() -> Page | None:
    """Return the page of this worker; None if it is not watched or this process was forked."""
    page: Page | None = getattr(sys.modules.get("_ft_run_hook"), "page", None)
    return page if page is not None and page.is_own() else None


def wanted() -> int:
    """Return the settings that the agent requests from this rank; 0 if it requests none."""
    return int(page.words[WANTED]) if (page := _page()) is not None else 0


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
    if not (_agreed or wanted()) or _page() is None:
        return False
    usual = sys.modules["torch.utils.data"].DataLoader
    if loader.num_workers == 0 or type(loader).__iter__ is not usual.__iter__:
        record(0)
        return False
    present = pack(loader.num_workers, loader.prefetch_factor)
    own = _OF_SCRIPT.setdefault(loader, present)
    settings = completed(_agreed, own) if is_only else own
    record(settings if is_only else 0)
    if settings & ~TRIAL == present:
        return False
    loader.num_workers, loader.prefetch_factor = unpack(settings)
    loader._iterator = None  # of persistent workers
    return True


def record(settings: int) -> None:
    """Record the settings of the loader that the script reads; 0 if they cannot be changed."""
    if (page := _page()) is not None and page.words[IN_EFFECT] != settings:
        page.words[IN_EFFECT] = settings
        trial = "num_workers={} prefetch_factor={}".format(*unpack(settings)).encode()
        write_text(page.words, TRIAL_AT, TRIAL_BYTES, trial if settings & TRIAL else b"")


def record_start(took_ns: int) -> None:
    """Record how long training waited because a loader started."""
    if (page := _page()) is not None:
        page.words[SWITCH_NS] = took_ns


def record_step(number: int, *, is_disturbed: bool) -> None:
    """Record a completed step, and whether a checkpoint is being written."""
    if (page := _page()) is not None and page.words[WANTED]:
        page.words[DISTURBED] += is_disturbed
        page.words[STEP], page.words[STEP_NS] = number, time.monotonic_ns()
