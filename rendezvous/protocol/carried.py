"""Values that a job has determined and that outlive a round.

Every node offers and claims all of them, the master merges them, and an assignment contains the
result. The group knows none of their names: a node proposes values, and uses them.
"""

from collections.abc import Iterable
from typing import Annotated

from msgspec import Struct

from .bounds import Count, Length, Name, ShortText, Whole

CHANGES_MAX = 100
"""Maximum number of changes of one value in a job."""
_KEYS_MAX = 16


class CarriedValue(Struct, frozen=True):
    """A value. If two have the same name, the one with the higher ``change`` applies."""

    name: Name
    value: Count
    change: Annotated[int, Whole(0, CHANGES_MAX)] = 0
    """Number of changes in this job; 0 if it is an initial value from an earlier job."""
    replaces: Count = 0
    """The value before the change; 0 if none or unknown."""


Carried = tuple[CarriedValue, ...]
CarriedField = Annotated[Carried, Length(_KEYS_MAX)]


class Proposal(Struct, frozen=True):
    """A node's proposal after a failure, so that the next round does not fail in the same way."""

    cause: ShortText
    """Reason, as text."""
    words: ShortText
    """The change, or why there is none, as text."""
    values: CarriedField = ()
    """Empty if there is no proposed change."""
    ends_job: bool = False
    """Without values: whether every later round would fail in the same way."""


def value_of(carried: Iterable[CarriedValue], name: str) -> CarriedValue | None:
    """Return the value with a name; None if there is none."""
    return next((one for one in carried if one.name == name), None)


def merged(own: Carried, others: Iterable[CarriedValue]) -> Carried:
    """Return the newest values; those of ``own`` if both have the same change number."""
    newest = {one.name: one for one in own}
    for one in others:
        known = newest.get(one.name)
        if (known is None and len(newest) < _KEYS_MAX) or (
            known is not None and one.change > known.change
        ):
            newest[one.name] = one
    return tuple(newest.values())


def changed(carried: Carried, name: str, value: int) -> Carried:
    """Return the values with a changed one; the same ones if its value is not new."""
    known = value_of(carried, name) or CarriedValue(name, 0)
    if known.value == value:
        return carried
    change = min(known.change + 1, CHANGES_MAX)
    return merged(carried, (CarriedValue(name, value, change, replaces=known.value),))


def changes(carried: Iterable[CarriedValue]) -> Carried:
    """Return the values that were changed in this job."""
    return tuple(one for one in carried if one.change)
