"""Compares the records of two runs of a rehearsal: which state differs first, and why."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from ...values import dataclass
from .rehearsal_jobs import Record

Place = tuple[str, int]
"""A Checkpointer, by its directory, and the number of completed steps."""
GENERATORS: Final = "ft_run_generators"
_TOLERANCE: Final = 1e-3
"""Relative; sums in another order differ by less after some steps."""
_SHOWN: Final = 3
_UNKNOWN: Final = "no variable of the script; are gradients accumulated over several steps?"


@dataclass(frozen=True, slots=True)
class Difference:
    """The first difference of a run."""

    step: int
    rank: int
    where: str
    """Object and tensor; empty if only variables differ."""
    reason: str

    def __str__(self) -> str:
        where = f"{self.where} on rank {self.rank}: " if self.where else ""
        return f"step {self.step}: {where}{self.reason}"


class History:
    """The records of one run, by rank and place."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.records = records
        self.keys = list(dict.fromkeys(record["key"] for record in records if "key" in record))
        self.bodies: dict[tuple[int, Place], Record] = {}
        """The last record of each step."""
        self.starts: dict[tuple[int, Place], Record] = {}
        """The first state that was restored, by rank and place."""
        for record in records:
            if "objects" in record:
                where = (record["rank"], (record["key"], record["step"]))
                if record["is_restored"]:
                    self.starts.setdefault(where, record)
                else:
                    self.bodies[where] = record

    def order(self) -> list[Place]:
        """Return the steps of rank 0, in order."""
        return [place for rank, place in self.bodies if rank == 0]

    def changing(self, rank: int) -> set[str]:
        """Return the variables that steps change."""
        seen: dict[str, str] = {}
        found = set()
        for (of, _), record in (*self.starts.items(), *self.bodies.items()):
            for name, text in record["variables"].items() if of == rank else ():
                if seen.setdefault(name, text) != text:
                    found.add(name)
        return found

    def last(self, rank: int) -> Record:
        """Return the record of the last step of a rank."""
        return self.bodies[rank, self.order()[-1]]


def differing(one: Mapping[str, Mapping[str, str]], other: Mapping[str, Mapping[str, str]]) -> str:
    """Return the first object and value that differ; empty if the states are equal."""
    for name in dict.fromkeys((*one, *other)):
        mine, theirs = one.get(name, {}), other.get(name, {})
        for path in dict.fromkeys((*mine, *theirs)):
            if mine.get(path) != theirs.get(path):
                what = "random number generators" if name == GENERATORS else name
                values = f" is {theirs.get(path, 'missing')}, not {mine.get(path, 'missing')}"
                is_plain = len(values) < 60 and "[" not in values  # not the digest of a tensor
                return f"{what} ({path or 'value'}{values if is_plain else ''})"
    return ""


def without_generators(objects: Mapping[str, Mapping[str, str]]) -> dict[str, Mapping[str, str]]:
    """Return the state without the generators, which begin differently in each run."""
    return {name: value for name, value in objects.items() if name != GENERATORS}


class Comparison:
    """Compares runs with the undisturbed one."""

    def __init__(
        self, base: History, again: History | None = None, ignored: Sequence[str] = ()
    ) -> None:
        """Learn what steps change, and what differs between two undisturbed runs.

        Args:
            base: the undisturbed run.
            again: a second one.
            ignored: names of variables.
        """
        self._base, self._ignored = base, ignored
        self._changing = {rank: base.changing(rank) for rank, _ in base.bodies}
        self._unsteady: set[str] = set()
        if again is not None:
            self._unsteady = {
                name
                for rank in self._changing
                for name in _different(base.last(rank), again.last(rank))
            }
        self.is_deterministic = again is None or self.first(again) is None
        self._is_repeatable = again is not None and self.is_deterministic

    def first(self, run: History) -> Difference | None:
        """Return the first difference of an undisturbed run."""
        for (rank, place), record in (*run.starts.items(), *run.bodies.items()):
            own = self._base.starts if record["is_restored"] else self._base.bodies
            if (expected := own.get((rank, place))) is None:
                return Difference(place[1], rank, "", "the undisturbed run has no such step")
            where = differing(*map(without_generators, (expected["objects"], record["objects"])))
            if where:
                names = _different(expected, record)
                suspects = f"; first different variables: {_listed(names)}" if names else ""
                return Difference(place[1], rank, where, f"differs between two runs{suspects}")
        return None

    def disturbed(self, run: History) -> Difference | None:
        """Return the first difference of a run with a failure: wrongly restored, or outside."""
        found = [one for rank in self._changing for one in self._of_rank(run, rank)]
        return min(found, key=lambda one: (not one.where, one.step, one.rank), default=None)

    def _of_rank(self, run: History, rank: int) -> Iterator[Difference]:
        last: dict[Place, Record] = {}
        suspects: list[str] = []
        for record in run.records:
            if record["rank"] != rank or "objects" not in record:
                continue
            place = (record["key"], record["step"])
            if record["is_restored"]:
                before = last.get(place)
                if before is None:  # it begins, as the undisturbed run did
                    starts = self._base.starts if self._is_repeatable else {}
                    before = starts.get((rank, place))
                    suspects = []
                else:
                    present = record["variables"]  # others are set in the body
                    names = [name for name in _different(before, record) if name in present]
                    suspects = self._relevant(rank, names)
                where = differing(before["objects"], record["objects"]) if before else ""
                if where and (place in last or not where.startswith("random")):
                    reason = f"was restored, but not as it was after step {place[1]}"
                    yield Difference(place[1], rank, where, reason)
                    return
            else:
                last[place] = record
                if difference := self._of_body(rank, place, record, suspects):
                    yield difference
                    return
        yield from self._at_the_end(run, rank)

    def _of_body(
        self, rank: int, place: Place, record: Record, suspects: Sequence[str]
    ) -> Difference | None:
        expected = self._base.bodies.get((rank, place))
        if expected is None:
            return Difference(place[1], rank, "", "the undisturbed run has no such step")
        if not self.is_deterministic:
            return None
        where = differing(*map(without_generators, (expected["objects"], record["objects"])))
        if not where:
            return None
        why = _listed(suspects) or _UNKNOWN
        reason = f"the state was restored as it was, so something else takes part in steps: {why}"
        return Difference(place[1], rank, where, reason)

    def _at_the_end(self, run: History, rank: int) -> Iterator[Difference]:
        for of, place in self._base.bodies:
            if of == rank and (rank, place) not in run.bodies:
                yield Difference(place[1], rank, "", "this step is missing")
                return
        mine = run.bodies[rank, self._base.order()[-1]]
        if self.is_deterministic and "objects" in mine:
            names = self._relevant(rank, _different(self._base.last(rank), mine))
            if names:
                reason = f"the same bits, but not in state, and lost: {_listed(names)}"
                yield Difference(mine["step"], rank, "", reason)

    def _relevant(self, rank: int, names: Sequence[str]) -> list[str]:
        """Return variables that steps change and that do not differ without a failure."""
        left_out = {*self._ignored, *self._unsteady}
        return [
            name
            for name in names
            if name in self._changing[rank] and not {name, name.split()[0]} & left_out
        ]

    def resized(self, run: History) -> tuple[Difference | None, str]:
        """Compare a run with another number of ranks; return its difference, and the weights."""
        for (rank, place), record in run.bodies.items():
            expected = self._base.bodies.get((rank, place))
            if expected is not None and expected["samples"] != record["samples"]:
                return Difference(place[1], rank, "", "other samples"), ""
        for place in self._base.order():
            if (0, place) not in run.bodies:
                return Difference(place[1], 0, "", "this step is missing"), ""
        gap, drops = _gap_of_weights(self._base.records, run.records)
        if gap is None:
            return None, ""
        text = f"weights within {gap:.0e}"
        if gap > _TOLERANCE and not drops:
            reason = (
                f"{text}, expected {_TOLERANCE:.0e}: does a rank's share of the batch count twice?"
            )
            return Difference(self._base.order()[-1][1], 0, "", reason), ""
        return None, f"{text} (dropout differs)" if drops else text


def _gap_of_weights(base: Sequence[Record], run: Sequence[Record]) -> tuple[float | None, bool]:
    """Return by how much weights differ, relative to their norm, and whether dropout is used."""
    ends = [
        next((one for one in records if "sketches" in one and not one["rank"]), None)
        for records in (base, run)
    ]
    if ends[0] is None or ends[1] is None:
        return None, False
    largest = 0.0
    for name, tensors in ends[0]["sketches"].items():
        for path, (norm, *sums) in tensors.items():
            others = ends[1]["sketches"].get(name, {}).get(path, [0.0])[1:]
            gaps = [abs(a - b) for a, b in zip(sums, others, strict=False)]
            largest = max(largest, *(gap / max(norm, 1e-30) for gap in gaps or [norm]))
    return largest, ends[0]["drops"]


def _different(one: Record, other: Record) -> list[str]:
    """Return the variables of two records that differ, or that only one of them has."""
    mine, theirs = one["variables"], other["variables"]
    return [name for name in dict.fromkeys((*theirs, *mine)) if mine.get(name) != theirs.get(name)]


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
