"""Values of ``--auto-tune on`` that take effect when workers start: the same on all ranks.

``OMP_NUM_THREADS``, and those that a script names with ``tuned``. Values only.
"""

from collections.abc import Iterable
from typing import Annotated

from ...values import dataclass
from .bounds import Count, Length, Name


@dataclass(frozen=True, slots=True)
class TunedValue:
    """One of these values."""

    name: Name
    value: Annotated[str, Length(256)]
    """JSON: a number, a string or a boolean."""

    def __str__(self) -> str:
        return f"{self.name}={self.value}"


TunedValues = Annotated[tuple[TunedValue, ...], Length(64)]


def in_effect(values: Iterable[TunedValue], trial: TunedValue | None) -> dict[str, str]:
    """Return the values of a round by name, as JSON.

    Args:
        values: that were accepted.
        trial: tried in this round instead of an accepted one; None: nothing is.
    """
    found = {one.name: one.value for one in values}
    return found if trial is None else found | {trial.name: trial.value}


@dataclass(frozen=True, slots=True)
class Retune:
    """From the node with rank 0: all ranks are to have these values. No restart is counted.

    The workers are restarted if other values are in effect in the round.
    """

    round: Count
    values: TunedValues
    trial: TunedValue | None = None

    @property
    def in_effect(self) -> dict[str, str]:
        """The values of the round by name, as JSON."""
        return in_effect(self.values, self.trial)
