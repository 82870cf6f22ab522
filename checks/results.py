"""The results of the ladder so far: the only input of its plan and its verdict. No I/O, no clock.

A *meeting* is a few nodes that execute one order together; a *step* is all simultaneous meetings.
This module derives what the outcomes mean for single nodes, for both the plan and the verdict.
"""

import enum
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from functools import cached_property

from msgspec import Struct, field

from .. import defaults
from ..rendezvous.protocol.check_messages import CheckSpec
from .merge import has_lost_peer
from .records import LOWER_IS_BETTER, METRICS, Fact, Metrics, Phase, Record
from .worker_config import NO_ANSWER, NOT_CARRIED_OUT

Meeting = tuple[str, ...]

SOLO_METRICS = ("compute_tflops", "memory_gb_per_s", "copy_gb_per_s", "intra_gb_per_s")
MEETING_METRICS = ("latency_us", "bandwidth_gb_per_s")


class Rules(Struct, frozen=True):
    """The rules for judging the results."""

    straggler_threshold: float = defaults.STRAGGLER_THRESHOLD
    """A node is a straggler if it is worse than the median of its peers by this factor."""
    minimums: Metrics = field(default_factory=dict)
    """The minimum of each metric; for a latency, the maximum."""
    compute_threshold: float = 0.0
    """The threshold of the matrix product, which varies less than other metrics; 0 for the same
    threshold."""

    @staticmethod
    def of(spec: CheckSpec) -> "Rules":
        """Return the job's rules; raise ``ValueError`` for a minimum that is not METRIC=NUMBER."""
        minimums = {}
        for text in spec.minimums:
            name, _, number = text.partition("=")
            minimums[name] = float(number)
        unknown = minimums.keys() - METRICS.keys()
        if unknown:
            raise ValueError(f"no such metric: {', '.join(sorted(unknown))}")
        return Rules(spec.straggler_threshold, minimums, spec.compute_threshold)


class Step(Struct, frozen=True):
    """The next orders, all simultaneous."""

    phase: Phase
    meetings: tuple[Meeting, ...]


class Answered(Struct, frozen=True):
    """A step and its result. A node without a record was lost before it answered."""

    step: Step
    records: Mapping[str, Record]


class MeetingOutcome(enum.Enum):
    """The result of a meeting."""

    PASSED = 1
    FAILED = 2
    UNKNOWN = 3
    """A node was lost or could not start: the meeting does not give any information on the others.
    """


class Known(Struct, frozen=True):
    """The results of a node when it passed."""

    metrics: Mapping[str, float]
    facts: Mapping[str, Fact]
    """The values that are compared between nodes."""


class Results(Struct, frozen=True, dict=True):
    """All results of the nodes of one ladder."""

    nodes: tuple[str, ...]
    """The nodes to check, in the order in which they meet."""
    vouched: frozenset[str] = frozenset()
    """The nodes that have passed before: they only meet others."""
    steps: tuple[Answered, ...] = ()
    lost: frozenset[str] = frozenset()
    rules: Rules = field(default_factory=Rules)
    known: Mapping[str, Known] = field(default_factory=dict)
    """Values of nodes that passed before, for comparison; empty if another master checked them."""

    # --- phases without partners -------------------------------------------------------------

    @cached_property
    def solo_failures(self) -> dict[str, tuple[Phase, str]]:
        """The phase and reason of each node that failed alone."""
        found: dict[str, tuple[Phase, str]] = {}
        passed: set[str] = set()
        for phase, _, record in self._records(Phase.FACTS, Phase.SOLO):
            failure = record.failure
            if phase is Phase.SOLO:
                if record.node not in passed:  # otherwise only new check workers were started
                    failure = failure or self._unmeasured(record.metrics)
                had_no_time = NOT_CARRIED_OUT in failure or NO_ANSWER in failure
                if had_no_time and record.node in passed:
                    continue  # it has passed this before
                if not failure:
                    passed.add(record.node)
            if failure:
                found.setdefault(record.node, (phase, failure))
        return found

    def is_bad_alone(self, node: str) -> bool:
        """Return whether a node has failed alone, and not for lack of time or a process."""
        return NOT_CARRIED_OUT not in self.solo_failures.get(node, ("", NOT_CARRIED_OUT))[1]

    def _unmeasured(self, metrics: Metrics) -> str:
        """Return which metric has a minimum, but was not measured; empty for none. Fails closed."""
        for metric in SOLO_METRICS:
            minimum = self.rules.minimums.get(metric)
            if minimum is not None and metric not in metrics:
                what, unit = METRICS[metric]
                return f"{what} was not measured, but a minimum of {minimum:.3g} {unit} is required"
        return ""

    @cached_property
    def sound(self) -> tuple[str, ...]:
        """Nodes that are connected and have not failed alone."""
        return tuple(n for n in self.nodes if n not in self.lost and n not in self.solo_failures)

    @cached_property
    def _sound_values(self) -> dict[str, list[float]]:
        """The best values of the sound nodes, by metric, sorted."""
        there = frozenset(self.sound)
        return {
            metric: sorted(value for name, value in values.items() if name in there)
            for metric, values in self.best.items()
        }

    def median_of_peers(self, metric: str, node: str) -> float | None:
        """Return the median of the values of all other sound nodes; None if there are none.

        Takes O(log n): it is called for each of thousands of nodes.
        """
        values = self._sound_values[metric]
        count = len(values)
        own = self.best[metric].get(node)
        position = count
        if own is not None and node not in self.lost and node not in self.solo_failures:
            position, count = bisect_left(values, own), count - 1
        if not count:
            return None
        low, high = ((count - 1) // 2, count // 2)
        return (values[low + (low >= position)] + values[high + (high >= position)]) / 2

    def measured(self, node: str, metric: str) -> list[float]:
        """Return all values of a solo metric of a node."""
        return self._solo_values.get((node, metric), [])

    @cached_property
    def _solo_values(self) -> dict[tuple[str, str], list[float]]:
        found: dict[tuple[str, str], list[float]] = {}
        for _, _, record in self._records(Phase.SOLO):
            for metric in () if record.failure else SOLO_METRICS:
                if metric in record.metrics:
                    found.setdefault((record.node, metric), []).append(record.metrics[metric])
        return found

    # --- meetings ----------------------------------------------------------------------------

    def outcome(self, answered: Answered, meeting: Meeting) -> MeetingOutcome:
        """Return the outcome of a meeting."""
        records = [answered.records.get(node) for node in meeting]
        if any(record is None or NOT_CARRIED_OUT in record.failure for record in records):
            return MeetingOutcome.UNKNOWN
        failed = any(record is not None and record.failure for record in records)
        return MeetingOutcome.FAILED if failed else MeetingOutcome.PASSED

    def reason(self, answered: Answered, meeting: Meeting) -> str:
        """Return why a meeting failed: the first reason, if possible not that the other is lost."""
        reasons = (answered.records[node].failure for node in meeting if node in answered.records)
        return min(filter(None, reasons), key=has_lost_peer, default="")

    @cached_property
    def meetings(self) -> tuple[tuple[Meeting, MeetingOutcome, str], ...]:
        """All meetings of two nodes with their outcomes and reasons of failure."""
        return tuple(
            (meeting, self.outcome(answered, meeting), self.reason(answered, meeting))
            for answered in self.steps
            if answered.step.phase in (Phase.PAIR, Phase.SUSPECTS)
            for meeting in answered.step.meetings
        )

    @cached_property
    def failures(self) -> dict[Meeting, str]:
        """The failed meetings of two nodes, in their order, and the reasons."""
        return {m: words for m, outcome, words in self.meetings if outcome is MeetingOutcome.FAILED}

    @cached_property
    def last_failure(self) -> dict[str, str]:
        """The reason of each node's last failed meeting."""
        return {node: words for meeting, words in self.failures.items() for node in meeting}

    @property
    def rounds(self) -> int:
        """The number of rounds of meetings of two."""
        return sum(a.step.phase in (Phase.PAIR, Phase.SUSPECTS) for a in self.steps)

    @cached_property
    def passed(self) -> dict[str, set[str]]:
        """The partners with which each node has passed."""
        return self._partners(MeetingOutcome.PASSED)

    @cached_property
    def failed(self) -> dict[str, set[str]]:
        """The partners with which each node has failed."""
        return self._partners(MeetingOutcome.FAILED)

    def _partners(self, which: MeetingOutcome) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {node: set() for node in self.nodes}
        for (one, other), outcome, _ in self.meetings:
            if outcome is which:
                found[one].add(other)
                found[other].add(one)
        return found

    def met(self, node: str) -> set[str]:
        """Return the partners with which a node has had a meeting with a valid result."""
        return self.passed[node] | self.failed[node]

    @cached_property
    def trusted(self) -> frozenset[str]:
        """Nodes known to be good: they have passed with another node, or before."""
        return frozenset(n for n in self.sound if n in self.vouched or self.passed[n])

    @property
    def before(self) -> frozenset[str]:
        """Nodes that pass regardless of the others' results: their world has passed before.

        Empty if all have passed before: they are being checked because they have not met.
        """
        return self.vouched if len(self.vouched) < len(self.nodes) else frozenset()

    @cached_property
    def bad_links(self) -> tuple[Meeting, ...]:
        """Pairs that failed although both nodes are known to be good."""
        return tuple(m for m in self.failures if self.trusted.issuperset(m))

    def all_steps(self) -> list[Answered]:
        """Return the steps in which all met."""
        return [answered for answered in self.steps if answered.step.phase is Phase.ALL]

    # --- speed -------------------------------------------------------------------------------

    @cached_property
    def best(self) -> dict[str, dict[str, float]]:
        """The best value of each metric that each node has reached, by metric and node.

        A meeting is as fast as its slowest node, so a node's own speed is the speed of its best
        meeting.
        """
        found: dict[str, dict[str, float]] = {metric: {} for metric in METRICS}
        for node in self.vouched & self.known.keys():
            for metric, value in self.known[node].metrics.items():
                found[metric][node] = value
        for (node, metric), values in self._solo_values.items():
            found[metric][node] = max(values)
        for answered in self.steps:
            if answered.step.phase not in (Phase.PAIR, Phase.SUSPECTS):
                continue
            for meeting in answered.step.meetings:
                if self.outcome(answered, meeting) is not MeetingOutcome.PASSED:
                    continue
                for node in meeting:
                    _keep_best(found, node, answered.records[node].metrics)
        return found

    @cached_property
    def slow_in_meetings(self) -> frozenset[str]:
        """Nodes that may be slow: worse than the fastest by the threshold, or below a minimum.

        The reference is the fastest rather than the median: if slow nodes are in most pairs, few
        pairs show the speed of the others. This decides only which nodes meet again.
        """
        found = set()
        for metric in MEETING_METRICS:
            values = self.best[metric]
            pick = min if metric in LOWER_IS_BETTER else max
            if not values:
                continue
            reference = pick(values.values())
            for node, value in values.items():
                if self.is_worse(metric, value, reference) or self.misses_minimum(metric, value):
                    found.add(node)
        return frozenset(found)

    def is_worse(self, metric: str, value: float, reference: float) -> bool:
        """Return whether a value is worse than a reference by more than the threshold."""
        threshold = self.rules.straggler_threshold
        if metric == "compute_tflops":
            threshold = self.rules.compute_threshold or threshold
        if metric in LOWER_IS_BETTER:
            return value > reference * threshold
        return value * threshold < reference

    def misses_minimum(self, metric: str, value: float) -> bool:
        """Return whether a value is worse than the minimum that the user requires."""
        minimum = self.rules.minimums.get(metric)
        if minimum is None:
            return False
        return bool(value > minimum if metric in LOWER_IS_BETTER else value < minimum)

    def _records(self, *phases: Phase) -> Iterator[tuple[Phase, Meeting, Record]]:
        for answered in self.steps:
            if answered.step.phase not in phases:
                continue
            for meeting in answered.step.meetings:
                for node in meeting:
                    if node in answered.records:
                        yield answered.step.phase, meeting, answered.records[node]


def _keep_best(found: dict[str, dict[str, float]], node: str, metrics: Metrics) -> None:
    for metric in MEETING_METRICS:
        if metric in metrics:
            known = found[metric].get(node, metrics[metric])
            pick = min if metric in LOWER_IS_BETTER else max
            found[metric][node] = pick(known, metrics[metric])
