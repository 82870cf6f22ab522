"""What a worker and its agent exchange about ``--auto-tune on``, in the page of the worker.

The settings of a ``DataLoader`` are one number: bits 0 to 15 are ``prefetch_factor``, 16 to 31
``num_workers``; 0 is the value of the script. ``TRIAL`` is set while they are on trial: a failure
is then theirs.
"""

from __future__ import annotations

import time

from .page_layout import DISTURBED, IN_EFFECT, STEP, STEP_NS, SWITCH_NS, WANTED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .start import Page

TRIAL = 1 << 40
NOTHING = 1 << 41
"""Of ``WANTED``: tuning is on, and wants nothing yet."""
_FIELD = 0xFFFF


def pack(num_workers: int, prefetch_factor: int) -> int:
    """Return settings as a number."""
    return min(num_workers, _FIELD) << 16 | min(prefetch_factor, _FIELD)


def unpack(number: int) -> tuple[int, int]:
    """Return ``num_workers`` and ``prefetch_factor``."""
    return number >> 16 & _FIELD, number & _FIELD


def completed(number: int, others: int) -> int:
    """Return settings, with those of ``others`` where they are 0."""
    processes, prefetch = unpack(number)
    own_processes, own_prefetch = unpack(others)
    return number & TRIAL | pack(processes or own_processes, prefetch or own_prefetch)


class TuningPage:
    """The worker's side."""

    def __init__(self, page: Page) -> None:
        self._is_own, self._page = page.is_own, page.words

    @property
    def wanted(self) -> int:
        """What should be in effect; 0: nothing is tuned."""
        return int(self._page[WANTED])

    def stepped(self, number: int, *, is_disturbed: bool) -> None:
        """Record a completed step.

        Args:
            number: completed steps.
            is_disturbed: a checkpoint is being written.
        """
        page = self._page
        page[DISTURBED] += is_disturbed
        page[STEP], page[STEP_NS] = number, time.monotonic_ns()

    def in_effect(self, settings: int) -> None:
        """Record the settings of the loader that the script reads; 0: none can be tuned."""
        if self._is_own():
            self._page[IN_EFFECT] = settings

    def began(self, took_ns: int) -> None:
        """Record how long training has waited because a loader began."""
        if self._is_own():
            self._page[SWITCH_NS] = took_ns


def trial_of(page: Any) -> str:
    """Return the settings that the worker has on trial; empty: none."""
    if not page[IN_EFFECT] & TRIAL:
        return ""
    return "num_workers={} prefetch_factor={}".format(*unpack(page[IN_EFFECT]))
