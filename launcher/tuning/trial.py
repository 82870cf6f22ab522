"""A trial: is a new value faster than the old one, and again later? No I/O, no clock."""

from collections.abc import Generator, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from msgspec import Struct

Values = Mapping[str, int]
"""Values by setting, e.g. ``{"num_workers": 4, "prefetch_factor": 2}``."""

_ORDER = "ABBAAB"
"""The blocks of a trial: old value (A), new value (B). Uniform drift affects both equally."""
_CONFIRMATION = "AB"

_LOOK_MIN_S = 0.1
_SWITCHES = len("ABAB" + "AB" + "A")
"""Maximum number per trial: in the six blocks, for the confirmation, and back."""
_STEPS_TO_SWITCH = 100
"""A switch takes effect with the second step that follows."""


class Rules(Struct, frozen=True):
    """Limits of trials: how long they measure, what counts as faster, and what they may cost."""

    skip_steps: int = 20
    """Number of steps after a switch that are not measured, ..."""
    skip_s: float = 10.0
    """... and at least this time."""
    block_steps: int = 50
    """Minimum number of steps of a block, ..."""
    block_s: float = 20.0
    """... which takes at least this time."""
    pause_s: float = 60.0
    """Time between the six blocks of a trial and the two that confirm them."""
    block_gain: float = 0.02
    """Each block with the new value takes at least this share less than each with the old one."""
    median_gain: float = 0.05
    """The median of the blocks takes at least this share less."""
    cost_share: float = 0.01
    """Share of the training time so far that switches and slower blocks may cost."""
    trials_max: int = 12
    wait_share: float = 0.05
    """Share of the time spent waiting for data, up to which loaders stay unchanged."""
    disturbed_max: int = 20
    """Maximum number of blocks of a trial that checkpoints and activities may disturb."""


RULES = Rules()


class Reading(NamedTuple):
    """The state of the training at one moment."""

    now_s: float
    at_s: float
    """When the last completed step ended, by the same clock."""
    steps: int
    """Completed steps."""
    values: Values
    """The settings in effect; empty if the script reads no loader with processes."""
    waited_s: float = 0.0
    """Total time that training has waited for data."""
    disturbed: float = 0.0
    """Changes while a checkpoint is written or an activity runs."""
    switch_s: float = 0.0
    """Cost of a switch of the loader, from the last one (or the start)."""


class Order(NamedTuple):
    """An order of the tuner."""

    values: Values
    """The settings that should be in effect."""
    look_in_s: float
    """When it needs the next reading."""
    is_trial: bool = False
    """Whether a failure of the workers would be the fault of these settings."""


class Budget:
    """The time that trials may cost, and have cost."""

    def __init__(self) -> None:
        self.trained_s = 0.0
        self.spent_s = 0.0

    @property
    def left_s(self) -> float:
        """The time that may still be spent."""
        return RULES.cost_share * self.trained_s - self.spent_s

    def missing_s(self, switch_s: float) -> float:
        """Return how much more training is needed before a trial; <= 0 if none.

        Half of the budget is kept for blocks that turn out slower.
        """
        return (2 * _SWITCHES * switch_s - self.left_s) / RULES.cost_share


class Outcome(NamedTuple):
    """The result of a trial."""

    is_accepted: bool
    reason: str
    """Why not; empty if it is accepted."""
    gain: float = 0.0
    """Increase in steps per second, as a share."""
    old_s: float = 0.0
    """Seconds per step with the old value; 0 if not measured."""


class _RejectedError(Exception):
    """The trial ends before its last block."""


class Trial:
    """Compares two settings by ``run``, a generator that takes readings and yields orders."""

    def __init__(self, old: Values, new: Values, budget: Budget) -> None:
        self._settings = {"A": old, "B": new}
        self._budget = budget
        self._arm = "A"
        self._figures: dict[str, list[float]] = {"A": [], "B": []}
        """Seconds per step of each block, by arm."""
        self._disturbed = 0
        self._has_switched = False
        """Whether there was a switch in the current span."""

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
        """Put settings into effect, and skip the steps that follow."""
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
        """Wait for this many steps and this time; return False if that was disturbed."""
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
        """Approximate seconds per step."""
        figures = self._figures["A"]
        if figures:
            return figures[-1]
        steps = self._reading.steps - self._span.steps
        return (self._reading.at_s - self._span.at_s) / steps if steps else 0.0

    @property
    def _excess_s(self) -> float:
        """Cost of the current span so far: its time beyond the same steps with the old value."""
        begin, now = self._span, self._reading
        old = self._figures["A"]
        if not old or now.disturbed != begin.disturbed:
            return 0.0
        steps = now.steps - begin.steps + 1  # with the one that has not ended
        return max(0.0, now.now_s - begin.at_s - steps * sum(old) / len(old))

    def _charge(self) -> None:
        """End a span: charge its cost, unless only the old settings were in effect."""
        if self._arm == "B" or self._has_switched:
            self._budget.spent_s += self._excess_s
        self._span, self._has_switched = self._reading, False


def is_faster(old: Sequence[float], new: Sequence[float]) -> bool:
    """Return whether all blocks with the new value, and their median, are fast enough.

    ``old`` and ``new`` are the seconds per step of at least one block each. With a single pair of
    blocks, both conditions are about the same numbers.
    """
    return may_be_faster(old, new) and median(new) <= (1 - RULES.median_gain) * median(old)


def may_be_faster(old: Sequence[float], new: Sequence[float]) -> bool:
    """Return whether more blocks can still show that the new value is faster."""
    return not old or not new or max(new) <= (1 - RULES.block_gain) * min(old)


def gain(old: Sequence[float], new: Sequence[float]) -> float:
    """Return how much faster the new value is, as a share: 0.1 is 10% more steps per second."""
    return median(old) / median(new) - 1
