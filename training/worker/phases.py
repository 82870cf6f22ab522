"""A worker's phases in its page: the current one, and the total seconds in each.

A phase is a number; its name is in the page. The sums are those of the main thread of the worker's
own process. Between two writes they are consistent: the word ``CHANGES`` is odd during a write.
"""

from __future__ import annotations

import sys
import time
from _thread import get_ident
from collections.abc import Callable
from functools import cache
from typing import Any

from .page_layout import (
    CHANGES,
    IDLE_NS,
    LAST_NS,
    NAME_BYTES,
    NAMES_AT,
    PHASE,
    PHASES_MAX,
    SINCE_NS,
    SUMS,
    read_text,
    write_text,
)
from .patching import take_name
from .start import Page

BUILDING, JOINING, RESTORING, FIRST_STEP, TRAINING, SAVING, OTHERS = range(7)
"""The phases of every worker. ``BUILDING`` lasts until the end of ``JOINING`` or ``RESTORING``;
``FIRST_STEP`` then lasts until the first completed step, and ``TRAINING`` follows; ``OTHERS`` are
activities whose names do not fit in the page."""
NAMES = (
    *("importing and building", "joining", "restoring", "first step", "training", "saving"),
    "other activities",
)
GROUPS = "torch.distributed.distributed_c10d"


class Phases:
    """The worker's side."""

    def __init__(self, page: Page) -> None:
        """Continue ``BUILDING``, which started with the page."""
        self._is_own, self._thread, self._page = page.is_own, page.thread, page.words
        self._numbers = {name: number for number, name in enumerate(NAMES)}
        self._base = BUILDING
        """The phase outside ``enter`` and ``leave``."""
        self._entered: list[int] = []

    def enter(self, name: str) -> None:
        """Start a phase, nested in the current one."""
        if not self._is_counted():
            return
        number = self._numbers.get(name)
        if number is None:
            number = self._add(name)
        self._entered.append(number)
        self._switch(number)

    def leave(self) -> None:
        """End the phase that was entered last."""
        if not self._entered or not self._is_counted():
            return
        left = self._entered.pop()
        if left in (JOINING, RESTORING) and self._base == BUILDING:
            self._base = FIRST_STEP
        self._switch(self._entered[-1] if self._entered else self._base)

    def stepped(self) -> None:
        """Record a completed step, in any thread of this process."""
        if self._base != TRAINING:
            self._base = TRAINING
            if not self._entered:
                self._switch(TRAINING)

    def _is_counted(self) -> bool:
        return get_ident() == self._thread and self._is_own()

    def _switch(self, number: int) -> None:
        page, now = self._page, time.monotonic_ns()
        page[CHANGES] += 1
        # Another thread may have switched since ``now`` was read; the words are unsigned.
        page[SUMS + page[PHASE]] += max(0, now - page[SINCE_NS])
        page[IDLE_NS] = _idle_ns(page, now)
        page[PHASE], page[SINCE_NS] = number, now
        page[CHANGES] += 1

    def _add(self, name: str) -> int:
        number = len(self._numbers)
        if number >= PHASES_MAX:
            return OTHERS
        at = NAMES_AT + number * NAME_BYTES
        text = name.encode(errors="replace")[: NAME_BYTES - 1]
        write_text(self._page, at, NAME_BYTES, text)
        self._numbers[name] = number
        return number


def read(page: Any, now_ns: int) -> tuple[str, dict[str, float], float] | None:
    """Return the current phase, the seconds in each phase, and of training since the last progress.

    None if the page was being written.
    """
    changes = page[CHANGES]
    current, since_ns = page[PHASE], page[SINCE_NS]
    sums, idle_ns = list(page[SUMS : SUMS + PHASES_MAX]), _idle_ns(page, now_ns)
    if changes % 2 or page[CHANGES] != changes or current >= PHASES_MAX:
        return None
    sums[current] += max(0, now_ns - since_ns)
    spent = {_name(page, number): ns / 1e9 for number, ns in enumerate(sums) if ns}
    return _name(page, current), spent, idle_ns / 1e9


def _idle_ns(page: Any, now_ns: int) -> int:
    last_ns, since_ns = page[LAST_NS], page[SINCE_NS]
    idle_ns: int = page[IDLE_NS] if last_ns <= since_ns else 0
    is_training = page[PHASE] == TRAINING
    return idle_ns + (max(0, now_ns - max(last_ns, since_ns)) if is_training else 0)


def _name(page: Any, number: int) -> str:
    if number < len(NAMES):
        return NAMES[number]
    return read_text(page, NAMES_AT + number * NAME_BYTES, NAME_BYTES)


def time_joining(c10d: Any, phases: Phases) -> None:
    """Count the time in ``init_process_group`` of the module ``GROUPS`` as joining."""
    join: Callable[..., Any] | None = getattr(c10d, "init_process_group", None)
    if join is None:
        return

    def init_process_group(*arguments: Any, **named: Any) -> Any:
        phases.enter("joining")
        try:
            return join(*arguments, **named)
        finally:
            phases.leave()

    take_name(init_process_group, join)
    for names in _namespaces(join):
        names["init_process_group"] = init_process_group


def find_joining() -> None:
    """Find the namespaces that ``time_joining`` will patch, in a fork server with torch.

    This reads every module, which in a forked process would copy a page for each.
    """
    c10d = sys.modules.get(GROUPS)
    if (join := getattr(c10d, "init_process_group", None)) is not None:
        _namespaces(join)


@cache
def _namespaces(join: Any) -> list[dict[str, Any]]:
    modules = (getattr(module, "__dict__", None) for module in list(sys.modules.values()))
    named = (names for names in modules if isinstance(names, dict))
    return [names for names in named if names.get("init_process_group") is join]
