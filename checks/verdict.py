"""Derives the verdict on each node from the results, with the reason as text. No I/O, no clock.

Fail closed: only a node known to be good passes. Only a node known to be bad is excluded. A failure
that cannot be distinguished from a bad link or a bad partner is undecided, and worth a retry.
"""

import enum
from collections.abc import Iterable, Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from .. import exit_codes
from ..rendezvous.protocol.check_messages import CheckSpec
from .differences import different_clocks, different_facts
from .fact_rules import UNDER_LOAD, WARNINGS, findings
from .plan import FAULTS, is_slow, is_surely_bad, together
from .records import LOWER_IS_BETTER, METRICS, Fact, Phase
from .results import MEETING_METRICS, SOLO_METRICS, Answered, MeetingOutcome, Results

_NAMED = 4


class Standing(enum.Enum):
    """The verdict on a node."""

    PASSED = "passed"
    SLOW = "slow"
    """Healthy, but a straggler."""
    FAULTY = "faulty"
    UNDECIDED = "undecided"
    """It failed, or its checks were not completed, and other nodes may be the cause."""
    LEFT_OUT = "left out"
    """Healthy, but it and another healthy node cannot connect to each other."""
    LOST = "lost"
    """It disconnected during the checks."""


class NodeVerdict(Struct, frozen=True):
    """The verdict on one node, with its details."""

    node: str
    standing: Standing
    reason: str
    """The reason as text; empty for a node that passed without a warning."""
    metrics: Mapping[str, float]
    slow: tuple[str, ...] = ()
    """The metrics by which it is a straggler."""
    warnings: tuple[str, ...] = ()
    facts: Mapping[str, Fact] = field(default_factory=dict)
    """System information, if it was requested from the node."""

    @property
    def text(self) -> str:
        """The reason, and the warnings."""
        return "; ".join(part for part in (self.reason, *self.warnings) if part)


class Verdicts(Struct, frozen=True):
    """The verdicts on all nodes."""

    nodes: tuple[NodeVerdict, ...]
    bad_links: tuple[tuple[str, str], ...]
    sentence: str
    left_out: int = 0
    """The number of nodes that did not fit into the report."""

    def of(self, node: str) -> NodeVerdict:
        """Return the verdict on one node."""
        return next(verdict for verdict in self.nodes if verdict.node == node)


def verdict(results: Results) -> Verdicts:
    """Return the verdicts; even if ``plan`` has another step, only nodes known to be good pass."""
    fit = frozenset(together(results))
    all_failure = _failure_of_all(results)
    unclear = _unclear_metrics(results)
    links = tuple((one, other) for one, other in results.bad_links)
    facts, different = _facts(results)
    nodes = tuple(
        replace(
            _judge(results, node, fit, all_failure, unclear),
            warnings=_warnings(results, node, facts.get(node, {}), different.get(node, ())),
            facts=facts.get(node, {}),
        )
        for node in results.nodes
    )
    return Verdicts(nodes, links, _sentence(nodes, links, all_failure))


def _judge(
    results: Results,
    node: str,
    fit: frozenset[str],
    all_failure: str,
    unclear: frozenset[str],
) -> NodeVerdict:
    metrics = {metric: best[node] for metric, best in results.best.items() if node in best}
    standing, reason = _standing(results, node, fit, all_failure)
    slow: tuple[str, ...] = ()
    if standing in (Standing.PASSED, Standing.UNDECIDED, Standing.LEFT_OUT):
        slow = tuple(_stragglers(results, node, unclear))
    if slow and standing is Standing.PASSED:
        standing = Standing.SLOW
        reason = "; ".join(_slow_words(results, node, metric) for metric in slow)
    return NodeVerdict(node, standing, reason, metrics, slow)


def _standing(
    results: Results, node: str, fit: frozenset[str], all_failure: str
) -> tuple[Standing, str]:
    if node in results.lost:
        return Standing.LOST, "disconnected during the checks"
    if node in results.solo_failures:
        phase, reason = results.solo_failures[node]
        standing = Standing.FAULTY if results.is_bad_alone(node) else Standing.UNDECIDED
        return standing, f"{phase.title}: {reason}"
    if len(results.sound) == 1 and (node in results.trusted or _was_alone(results, node)):
        return Standing.PASSED, ""
    if node not in results.trusted:
        return _untrusted(results, node)
    if node not in fit:
        return Standing.LEFT_OUT, _link_words(results, node)
    if all_failure and node not in results.before:
        return Standing.UNDECIDED, all_failure
    return Standing.PASSED, ""


def _was_alone(results: Results, node: str) -> bool:
    """Whether a node has passed the phases without partners, and all its partners were lost.

    A failed meeting may have been its own fault, unless the partner is known to be bad.
    """
    if any(not results.is_bad_alone(partner) for partner in results.failed[node]):
        return False
    last = {
        answered.step.phase: answered.records[node].failure
        for answered in results.steps
        if node in answered.records
    }
    return all(last.get(phase) == "" for phase in (Phase.FACTS, Phase.SOLO))


def _untrusted(results: Results, node: str) -> tuple[Standing, str]:
    failed = results.failed[node]
    if not failed:
        return Standing.UNDECIDED, "the checks were not completed"
    words = results.last_failure[node]
    by_trusted = failed & results.trusted
    # Without a round or time for a fourth meeting, one bad node is likelier than three bad links.
    if is_surely_bad(results, node) or len(by_trusted) >= FAULTS:
        names = _names(sorted(by_trusted))
        return Standing.FAULTY, f"fails with {names}, which pass with others: {words}"
    if len(results.sound) == 2 and len(failed) == 1:
        (partner,) = failed
        return Standing.UNDECIDED, f"the link between {node} and {partner} fails: {words}"
    return Standing.UNDECIDED, f"fails with {_names(sorted(failed))}: {words}"


def _link_words(results: Results, node: str) -> str:
    ends = [
        (one if other == node else other, results.failures[one, other])
        for one, other in results.bad_links
        if node in (one, other)
    ]
    names = _names(sorted({name for name, _ in ends}))
    return f"the link to {names} fails, but both ends pass with others: {ends[0][1]}"


def _failure_of_all(results: Results) -> str:
    """Return why the fit nodes could not work together; empty if they could."""
    nodes = together(results)
    if len(nodes) < 2 or results.before.issuperset(nodes):
        return ""
    steps = results.all_steps()
    if not steps:
        if len(nodes) == 2 and nodes[1] in results.passed[nodes[0]]:
            return ""
        return "the checks were not completed"
    last: Answered = steps[-1]
    (meeting,) = last.step.meetings
    outcome = results.outcome(last, meeting)
    if outcome is MeetingOutcome.PASSED and set(meeting) >= set(nodes):
        return ""
    if outcome is MeetingOutcome.FAILED:
        return f"all {len(meeting)} together fail, but pass in pairs: " + results.reason(
            last, meeting
        )
    return "the checks were not completed"


# --- stragglers ------------------------------------------------------------------------------


def _stragglers(results: Results, node: str, unclear: frozenset[str]) -> list[str]:
    """Return the metrics by which a node is a straggler, confirmed by a second measurement."""
    found = [
        metric
        for metric in SOLO_METRICS
        if len(results.measured(node, metric)) > 1 and is_slow(results, metric, node)
    ]
    if len(results.passed[node]) > 1:
        found += [
            metric
            for metric in MEETING_METRICS
            if is_slow(results, metric, node)
            and (
                metric not in unclear or results.misses_minimum(metric, results.best[metric][node])
            )
        ]
    return found


def _unclear_metrics(results: Results) -> frozenset[str]:
    """Return the metrics by which half of the nodes are slower than their peers.

    The slow nodes are then unknown, except for a minimum. One slow meeting lowers the values of two
    nodes.
    """
    return frozenset(metric for metric in MEETING_METRICS if _are_many_slow(results, metric))


def _are_many_slow(results: Results, metric: str) -> bool:
    sound = [name for name in results.sound if name in results.best[metric]]
    slow = sum(is_slow(results, metric, n) for n in sound if len(results.passed[n]) > 1)
    return 2 * slow >= len(sound)


def _slow_words(results: Results, node: str, metric: str) -> str:
    what, unit = METRICS[metric]
    values = results.best[metric]
    own = f"{what} {values[node]:.3g} {unit}"
    if results.misses_minimum(metric, values[node]):
        bound = "more than" if metric in LOWER_IS_BETTER else "less than"
        return f"{own}, {bound} the required {results.rules.minimums[metric]:.3g}"
    reference = results.median_of_peers(metric, node)
    assert reference is not None, "without peers nothing is slow but for a minimum"
    times = values[node] / reference if metric in LOWER_IS_BETTER else reference / values[node]
    return f"{own}, {times:.1f} times worse than the median {reference:.3g} {unit} of its peers"


# --- warnings --------------------------------------------------------------------------------


_FactsByNode = dict[str, Mapping[str, Fact]]


def _facts(results: Results) -> tuple[_FactsByNode, dict[str, list[str]]]:
    """Return the warnings on each node, including its differences from other nodes, as text."""
    facts: _FactsByNode = {}
    known = {node: results.known[node].facts for node in results.vouched & results.known.keys()}
    found: list[tuple[str, str]] = []
    for answered in results.steps:
        if answered.step.phase is Phase.FACTS:
            new = {node: record.facts for node, record in answered.records.items() if record.facts}
            found += different_clocks(new)
            facts |= new
        elif answered.step.phase is Phase.SOLO:  # values that are visible only under load
            for node, record in answered.records.items():
                if record.facts:
                    facts[node] = {**facts.get(node, {}), **record.facts}
    different: dict[str, list[str]] = {}
    for node, words in (*different_facts(known | facts), *found):
        different.setdefault(node, []).append(words)
    return facts, different


def _warnings(
    results: Results, node: str, facts: Mapping[str, Fact], different: Iterable[str]
) -> tuple[str, ...]:
    found = list(different)
    if facts.get(WARNINGS):
        found.append(str(facts[WARNINGS]))
    under_load = {name: facts[name] for name in facts if name.startswith(UNDER_LOAD)}
    found += [finding.text for finding in findings(under_load)]
    found += [
        f"with two nodes only, it is unknown which of them causes the {METRICS[metric][0]} "
        "to miss its minimum or maximum"
        for metric in MEETING_METRICS
        if len(results.sound) == 2
        and node in results.best[metric]
        and results.misses_minimum(metric, results.best[metric][node])
    ]
    return tuple(found)


# --- consequences ----------------------------------------------------------------------------


def exit_code(found: NodeVerdict, spec: CheckSpec) -> int:
    """Return the exit code of a node; 0 if it is accepted."""
    match found.standing:
        case Standing.FAULTY:
            return exit_codes.NODE_EXCLUDED
        case Standing.UNDECIDED:
            return exit_codes.CHECKS_FAILED
        case Standing.LEFT_OUT if spec.only:
            return exit_codes.CHECKS_FAILED
        case Standing.SLOW if spec.exclude_straggler:
            return exit_codes.NODE_EXCLUDED
    warned = found.standing is Standing.SLOW or found.warnings
    return exit_codes.CHECKS_WARNED if spec.is_strict and warned else exit_codes.SUCCESS


# --- messages --------------------------------------------------------------------------------


def metric_words(metric: str, value: float) -> str:
    """Return a value with its unit."""
    return f"{value:.3g} {METRICS[metric][1]}"


def _names(names: list[str]) -> str:
    shown = ", ".join(names[:_NAMED])
    return shown + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")


def _sentence(
    nodes: tuple[NodeVerdict, ...], links: tuple[tuple[str, str], ...], all_failure: str
) -> str:
    parts = []
    passed = sum(v.standing in (Standing.PASSED, Standing.SLOW) for v in nodes)
    for standing in (Standing.FAULTY, Standing.UNDECIDED, Standing.SLOW, Standing.LOST):
        names = [verdict.node for verdict in nodes if verdict.standing is standing]
        # If no node passes, the reason is sufficient.
        if names and (passed or standing is not Standing.UNDECIDED or not all_failure):
            parts.append(f"{standing.value}: {_names(names)}")
    if all_failure:
        parts.append(all_failure)
    parts += [f"bad link between {one} and {other}" for one, other in links[:_NAMED]]
    return f"{passed} of {len(nodes)} nodes pass" + "".join(f"; {part}" for part in parts)
