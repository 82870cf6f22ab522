"""One trial: is a new value faster than the old one, and is that so again later? Pure."""

from collections.abc import Generator, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from msgspec import Struct

Values = Mapping[str, int]
"""By setting, e.g. ``{"num_workers": 4, "prefetch_factor": 2}``."""

_ORDER = "ABBAAB"
"""The blocks of a trial: old value (A), new value (B). What drifts evenly hits both alike."""
_CONFIRMATION = "AB"

_LOOK_MIN_S = 0.1
_SWITCHES = len("ABAB" + "AB" + "A")
"""At most, of a trial: after the six blocks, for the confirmation, and back."""
_STEPS_TO_SWITCH = 100
"""A switch takes effect with the second step that follows."""


class Rules(Struct, frozen=True):
    """How long is measured, what counts as faster, and what it may cost."""

    skip_steps: int = 20
    """After a switch so many steps are not measured, ..."""
    skip_s: float = 10.0
    """... and at least this time."""
    block_steps: int = 50
    """A block has at least so many steps, ..."""
    block_s: float = 20.0
    """... and takes at least this time."""
    pause_s: float = 60.0
    """From the six blocks of a trial to the two that confirm them."""
    block_gain: float = 0.02
    """Each block with the new value takes at least this share less than each with the old one."""
    median_gain: float = 0.05
    """The median of the blocks takes at least this share less."""
    cost_share: float = 0.01
    """Of the training time so far, for switches and slower blocks."""
    trials_max: int = 12
    wait_share: float = 0.05
    """Of the training time that goes to waiting for data, below which loaders stay as they are."""
    disturbed_max: int = 20
    """Blocks of a trial that may be disturbed by checkpoints and activities."""


RULES = Rules()


class Reading(NamedTuple):
    """What is known of the training at one moment."""

    now_s: float
    at_s: float
    """When the last completed step ended, by the same clock."""
    steps: int
    """Completed steps."""
    values: Values
    """The settings in effect; empty: the script uses nothing that can be tuned."""
    waited_s: float = 0.0
    """How long training has waited for data, in sum."""
    disturbed: float = 0.0
    """Changes while a checkpoint is written or an activity runs."""
    switch_s: float = 0.0
    """What a switch of the loader costs, by the last one (or the start)."""


class Order(NamedTuple):
    """What a tuner wants."""

    values: Values
    """The settings that should be in effect."""
    look_in_s: float
    """When it needs the next reading."""
    is_trial: bool = False
    """Whether a failure of the workers would be the fault of these settings."""


class Budget:
    """The time that tuning may cost, and has cost."""

    def __init__(self) -> None:
        self.trained_s = 0.0
        self.spent_s = 0.0

    @property
    def left_s(self) -> float:
        """What may still be spent."""
        return RULES.cost_share * self.trained_s - self.spent_s

    def missing_s(self, switch_s: float) -> float:
        """Return how much more training must come before a trial; <= 0: none.

        Half of the budget is kept for blocks that turn out slower.
        """
        return (2 * _SWITCHES * switch_s - self.left_s) / RULES.cost_share


class Outcome(NamedTuple):
    """What a trial has found."""

    is_accepted: bool
    reason: str
    """Why not; empty: it is."""
    gain: float = 0.0
    """More steps a second, as a share."""
    old_s: float = 0.0
    """Seconds a step with the old value; 0: not measured."""


class _RejectedError(Exception):
    """The trial ends before its last block."""


class Trial:
    """Compares two settings by ``run``, a generator that takes readings and yields orders."""

    def __init__(self, old: Values, new: Values, budget: Budget) -> None:
        self._settings = {"A": old, "B": new}
        self._budget = budget
        self._arm = "A"
        self._figures: dict[str, list[float]] = {"A": [], "B": []}
        """Seconds a step of each block, by arm."""
        self._disturbed = 0
        self._has_switched = False
        """In the present span."""

    def run(self, reading: Reading) -> Generator[Order, Reading, Outcome]:
        """Compare, and return with the settings of the outcome in effect."""
        self._reading = self._span = reading
        outcome = Outcome(False, "")
        try:
            yield from self._blocks()
            outcome = self._outcome(is_accepted=True)
        except _RejectedError as why:
            outcome = self._outcome(is_accepted=False, reason=str(why))
        if not outcome.is_accepted and self._arm == "B":
            yield from self._switch("A", is_last=True)
        return outcome

    def _outcome(self, *, is_accepted: bool, reason: str = "") -> Outcome:
        old, new = self._figures["A"], self._figures["B"]
        if not (old and new):
            return Outcome(is_accepted, reason)
        return Outcome(is_accepted, reason, gain(old, new), sum(old) / len(old))

    def _blocks(self) -> Generator[Order, Reading, None]:
        old, new = self._figures["A"], self._figures["B"]
        for arm in _ORDER:
            yield from self._block(arm)
            if not may_be_faster(old, new):
                raise _RejectedError("not faster")
        if not is_faster(old, new):
            raise _RejectedError("not faster")
        begin = self._reading
        while (left := RULES.pause_s - (self._reading.at_s - begin.at_s)) > 0:
            yield from self._look(left)
        self._charge()
        for arm in _CONFIRMATION:
            yield from self._block(arm)
        if not is_faster(old[-1:], new[-1:]) or not is_faster(old, new):
            raise _RejectedError("faster at first, but not in the second measurement")

    def _block(self, arm: str) -> Generator[Order, Reading, None]:
        if arm != self._arm:
            yield from self._switch(arm)
        while not (yield from self._last(RULES.block_steps, RULES.block_s)):
            self._disturbed += 1
            if self._disturbed > RULES.disturbed_max:
                raise _RejectedError("checkpoints or activities disturbed too many blocks")
            yield from self._last(RULES.skip_steps, RULES.skip_s)
        begin, end = self._span, self._reading
        self._charge()
        self._figures[arm].append((end.at_s - begin.at_s) / (end.steps - begin.steps))

    def _switch(self, arm: str, *, is_last: bool = False) -> Generator[Order, Reading, None]:
        """Put settings into effect, and skip what follows."""
        self._arm, wanted, self._has_switched = arm, self._settings[arm], True
        begin = self._reading
        while self._reading.values != wanted:
            if self._reading.steps - begin.steps > _STEPS_TO_SWITCH:
                if is_last:
                    return
                raise _RejectedError("the new value did not take effect")
            yield from self._look(2 * self._step_s, is_free=is_last)
        if not is_last:
            yield from self._last(RULES.skip_steps, RULES.skip_s, starts_span=False)
        self._charge()

    def _last(
        self, steps: int, seconds: float, *, starts_span: bool = True
    ) -> Generator[Order, Reading, bool]:
        """Wait for so many steps and so much time; return False if that was disturbed."""
        begin = self._reading
        if starts_span:
            self._charge()
        while True:
            done, took_s = self._reading.steps - begin.steps, self._reading.at_s - begin.at_s
            if starts_span and self._reading.disturbed != begin.disturbed:
                self._charge()
                return False
            left_s = max(seconds - took_s, (steps - done + 0.5) * self._step_s)
            if done >= steps and took_s >= seconds:
                return True
            yield from self._look(left_s)

    def _look(self, wait_s: float, *, is_free: bool = False) -> Generator[Order, Reading, None]:
        """Get the next reading: sooner if the costs could exceed the budget until then."""
        if self._figures["A"] and self._arm == "B" and not is_free:
            left_s = self._budget.left_s - self._excess_s - 2 * self._reading.switch_s
            if left_s <= 0:
                raise _RejectedError("slower, or too expensive to try")
            wait_s = min(wait_s, left_s)
        is_new = self._arm == "B"
        reading = yield Order(self._settings[self._arm], max(_LOOK_MIN_S, wait_s), is_new)
        self._reading = reading

    @property
    def _step_s(self) -> float:
        """About the seconds of a step."""
        figures = self._figures["A"]
        if figures:
            return figures[-1]
        steps = self._reading.steps - self._span.steps
        return (self._reading.at_s - self._span.at_s) / steps if steps else 0.0

    @property
    def _excess_s(self) -> float:
        """What the present span has cost so far: time beyond what steps take by the old value."""
        begin, now = self._span, self._reading
        old = self._figures["A"]
        if not old or now.disturbed != begin.disturbed:
            return 0.0
        steps = now.steps - begin.steps + 1  # with the one that has not ended
        return max(0.0, now.now_s - begin.at_s - steps * sum(old) / len(old))

    def _charge(self) -> None:
        """End a span: charge what it has cost, unless only the old settings were in effect."""
        if self._arm == "B" or self._has_switched:
            self._budget.spent_s += self._excess_s
        self._span, self._has_switched = self._reading, False


def is_faster(old: Sequence[float], new: Sequence[float]) -> bool:
    """Return whether all blocks with the new value, and their median, are fast enough.

    With a single pair of blocks, both conditions are about the same numbers.

    Args:
        old: seconds a step of the blocks with the old value; at least one.
        new: of those with the new value; at least one.
    """
    return may_be_faster(old, new) and median(new) <= (1 - RULES.median_gain) * median(old)


def may_be_faster(old: Sequence[float], new: Sequence[float]) -> bool:
    """Return whether more blocks can still show that the new value is faster."""
    return not old or not new or max(new) <= (1 - RULES.block_gain) * min(old)


def gain(old: Sequence[float], new: Sequence[float]) -> float:
    """Return how much faster the new value is, as a share: 0.1 are 10 % more steps a second."""
    return median(old) / median(new) - 1
