"""Compares the records of two runs of a rehearsal: the first difference in state, and its cause."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

Record = dict[str, Any]
"""The state of one rank after a restore or a body, as ``training/rehearsal.py`` writes it."""
Place = tuple[str, int]
"""The directory of a Checkpointer, and the number of completed steps."""
GENERATORS: Final = "ft_run_generators"
_TOLERANCE: Final = 1e-3
"""Relative difference; sums in a different order differ by less after some steps."""
_SHOWN: Final = 3
_UNSTEADY: Final = "differs between two runs (seeds, the clock, atomics?); different variables:"
_UNKNOWN: Final = "no variable of the script; are gradients accumulated over several steps?"


class History:
    """The records of one run."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.states = [record for record in records if "objects" in record]
        self.bodies = {_where(one): one for one in self.states if not one["is_restored"]}
        """The last record of each step, by rank and place."""
        self.starts = {_where(one): one for one in reversed(self.states) if one["is_restored"]}
        """The first state that was restored."""
        self.places = [place for rank, place in self.bodies if rank == 0]
        """The steps of rank 0, in order."""


def _where(record: Record) -> tuple[int, Place]:
    return record["rank"], (record["key"], record["step"])


def differing(one: Record, other: Record, left_out: str = "") -> str:
    """Return the first object and value that differ, except ``left_out``; empty if none does."""
    for name in dict.fromkeys((*one["objects"], *other["objects"])):
        mine, theirs = one["objects"].get(name, {}), other["objects"].get(name, {})
        for path in dict.fromkeys((*mine, *theirs)) if name != left_out else ():
            if mine.get(path) != theirs.get(path):
                values = f" is {theirs.get(path, 'missing')}, not {mine.get(path, 'missing')}"
                return f"{name}{path}{values if 'torch.' not in values else ''}"
    return ""


class Comparison:
    """Compares runs with the undisturbed one."""

    def __init__(self, base: History, ignored: Sequence[str] = ()) -> None:
        """Find the variables that steps change; those in ``ignored`` may differ."""
        self._base, self._last, self._is_deterministic = base, base.places[-1], True
        self._lost: dict[int, set[str]] = {}
        """Variables of a rank that differ only because of a restart."""
        seen: dict[tuple[int, str], int] = {}
        for record in base.states:
            names = self._lost.setdefault(record["rank"], set())
            for name, number in record["variables"].items():
                is_changed = seen.setdefault((record["rank"], name), number) != number
                if is_changed and name.split()[0] not in ignored:
                    names.add(name)

    def again(self, run: History) -> str:
        """Return the first difference of a second undisturbed run, which is compared first."""
        difference = self.first(run)
        for rank, names in self._lost.items():
            if (end := (rank, self._last)) in run.bodies:
                names -= {*_different(self._base.bodies[end], run.bodies[end])}
        self._is_deterministic = not difference
        return difference

    def first(self, run: History) -> str:
        """Return the first difference of a run; empty if there is none."""
        found = sorted(one for rank in self._lost for one in self._of_rank(run, rank))
        return f"step {found[0][1]}: {found[0][-1]}" if found else ""

    def _of_rank(self, run: History, rank: int) -> Iterator[tuple[bool, int, int, str]]:
        """Yield the first difference: whether only variables differ, step, rank and message."""
        last: dict[Place, Record] = {}
        why = ""
        for record in run.states:
            at, place = _where(record)
            if at != rank:
                continue
            base = self._base.starts if record["is_restored"] else self._base.bodies
            expected = base.get((rank, place)) if self._is_deterministic else None
            left_out, reason = GENERATORS, why
            if record["is_restored"] and place in last:
                expected, left_out = last[place], ""
                reason = f"was restored, but not as it was after step {place[1]}"
                lost = self._listed(rank, expected, record)
                why = "the state was restored as it was, so something else takes part in steps: "
                why += lost or _UNKNOWN
            elif not record["is_restored"] and (rank, place) not in self._base.bodies:
                reason = f"the undisturbed run has no such step of {place[0]}"
                yield False, place[1], rank, f"{reason}: is this directory the same in each start?"
                return
            if expected and (where := differing(expected, record, left_out)):
                reason = reason or f"{_UNSTEADY} {_shown(_different(expected, record))}"
                yield False, place[1], rank, f"{where} on rank {rank}: {reason}"
                return
            if not record["is_restored"]:
                last[place] = record
        for place in self._base.places:
            if (rank, place) not in run.bodies:
                yield False, place[1], rank, "this step is missing"
                return
        end = (rank, self._last)
        lost = self._listed(rank, self._base.bodies[end], run.bodies[end])
        if lost and why and self._is_deterministic:
            yield True, end[1][1], rank, f"the same bits, but not in state, and lost: {lost}"

    def _listed(self, rank: int, one: Record, other: Record) -> str:
        """Return the variables that exist in both records, and that a restart has lost."""
        names = [name for name in _different(one, other) if name in self._lost[rank]]
        return _shown([name for name in names if name in other["variables"]])

    def resized(self, run: History) -> str:
        """Return the first difference of a run with a different number of ranks."""
        for place in self._base.places:
            if (0, place) not in run.bodies:
                return f"step {place[1]}: this step is missing"
            if run.bodies[0, place]["samples"] != self._base.bodies[0, place]["samples"]:
                return f"step {place[1]}: other samples"
        mine, theirs = (one.bodies[0, self._last] for one in (self._base, run))
        pairs = zip(mine["sketches"], theirs["sketches"], strict=True)
        gap = max((abs(a - b) / max(norm, 1e-30) for (norm, a), (_, b) in pairs), default=0.0)
        if gap > _TOLERANCE and not mine["drops"]:
            reason = f"weights differ by {gap:.0e} of their norm: does each part have its weight?"
            return f"step {self._last[1]}: {reason}"
        return ""


def _different(one: Record, other: Record) -> list[str]:
    """Return the variables that differ, or that exist in only one of two records."""
    mine, theirs = one["variables"], other["variables"]
    return [name for name in dict.fromkeys((*theirs, *mine)) if mine.get(name) != theirs.get(name)]


def _shown(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
