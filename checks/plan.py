"""Decides which nodes meet next, from the results so far. No I/O, no clock.

The ladder is facts, solo, pair, suspects, all (docs/internals/check-method.md). A node that fails
with one partner is not bad yet. It meets other nodes, known to be good if available, until it has
passed with one, or only its own fault can explain its failures. There are at most four rounds of
meetings for any number of nodes; the meetings of a round run simultaneously.
"""

from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import combinations

from .records import Phase
from .results import SOLO_METRICS, Meeting, MeetingOutcome, Results, Step

MAX_ROUNDS = 4

FAULTS = 3
"""With up to this many bad nodes and bad links in total, no node is blamed for another's fault."""

ENOUGH_NODES = 6
"""From this many nodes on, a node that fails with three may be healthy: a bad one fails with a
fourth."""

PARTNERS_OF_THE_SLOW = 3
"""The number of partners with which a seemingly slow node is measured, if nothing else needs the
time: on a busy machine a healthy node may seem slow with two of them."""

_ALL_STEPS = 2
"""The number of meetings of all: one more if the first has shown a bad link."""


def plan(results: Results, rounds: int = MAX_ROUNDS) -> Step | None:
    """Return the next step, within ``rounds`` rounds of meetings; None if a verdict is possible."""
    step = _next_step(results, min(rounds, MAX_ROUNDS))
    return step if step is None else _revived(results, step)


def _revived(results: Results, step: Step) -> Step:
    """Order nodes that failed together to run alone once more before they meet others.

    Check workers that hang are killed, including those of the healthy partner, and new ones import
    torch. This takes time that gives no information about a node, and must not count as a failed
    meeting.
    """
    if len(step.meetings[0]) == 1:
        return step
    failed = just_failed(results)
    again = [node for meeting in step.meetings for node in meeting if node in failed]
    return Step(Phase.SOLO, tuple((node,) for node in again)) if again else step


def just_failed(results: Results) -> set[str]:
    """Return the nodes that did not pass in the meetings of the last step."""
    last = results.steps[-1] if results.steps else None
    if last is None:
        return set()
    return {
        node
        for meeting in last.step.meetings
        if len(meeting) > 1 and results.outcome(last, meeting) is not MeetingOutcome.PASSED
        for node in meeting
    }


def _next_step(results: Results, rounds: int) -> Step | None:
    alone = _next_alone(results)
    if alone is not None:
        return alone
    if len(results.sound) < 2:
        return None
    if results.rounds == 0:
        pairs = _first_pairs(results)
        if pairs:
            return Step(Phase.PAIR, pairs)
    if results.rounds < rounds and not results.all_steps():
        meetings = _second_meetings(results)
        if meetings:
            return Step(Phase.SUSPECTS, meetings)
    return _next_for_all(results, rounds)


# --- alone -----------------------------------------------------------------------------------


def _next_alone(results: Results) -> Step | None:
    fresh = [node for node in results.sound if node not in results.vouched]
    for phase in (Phase.FACTS, Phase.SOLO):
        if fresh and not any(answered.step.phase is phase for answered in results.steps):
            return Step(phase, tuple((node,) for node in fresh))
    if any(answered.step.phase not in (Phase.FACTS, Phase.SOLO) for answered in results.steps):
        return None
    again = tuple((node,) for node in fresh if _is_slow_alone(results, node))
    return Step(Phase.SOLO, again) if again else None


def _is_slow_alone(results: Results, node: str) -> bool:
    """Whether a node's only measurement without partners requires a second one."""
    return any(
        len(results.measured(node, metric)) == 1 and is_slow(results, metric, node)
        for metric in SOLO_METRICS
    )


def is_slow(results: Results, metric: str, node: str) -> bool:
    """Return whether a node misses a minimum, or is a straggler among the sound nodes."""
    value = results.best[metric].get(node)
    if value is None:
        return False
    if results.misses_minimum(metric, value):
        return True
    reference = results.median_of_peers(metric, node)
    return reference is not None and results.is_worse(metric, value, reference)


# --- meetings of two -------------------------------------------------------------------------


def _first_pairs(results: Results) -> tuple[Meeting, ...]:
    fresh = [node for node in results.sound if node not in results.vouched]
    known = [node for node in results.sound if node in results.vouched]
    if len(known) >= len(fresh):
        return tuple(zip(fresh, known, strict=False))
    if len(fresh) % 2:
        fresh += known[:1]
    return tuple(zip(fresh[::2], fresh[1::2], strict=False))


class _Pairing:
    """The meetings of one round: no node is in two of them, or meets a partner again."""

    def __init__(self, results: Results) -> None:
        self._results = results
        self._busy: set[str] = set()
        self._pools: list[dict[str, None]] = []
        self.meetings: list[Meeting] = []

    def pool(self, nodes: Iterable[str]) -> Iterable[str]:
        """Return the free nodes among these; a node that finds a partner is removed later, too.

        This avoids a scan of thousands of nodes for each of thousands.
        """
        pool = dict.fromkeys(node for node in nodes if node not in self._busy)
        self._pools.append(pool)
        return pool

    def pair(self, node: str, partners: Iterable[str]) -> None:
        """Pair a free node with the first of these partners that is free and new to it, if any."""
        if node in self._busy:
            return
        met, busy = self._results.met(node), self._busy
        new = (name for name in partners if name != node and name not in met)
        partner = next((name for name in new if name not in busy), None)
        if partner is None:
            return
        self.meetings.append((node, partner))
        for name in (node, partner):
            self._busy.add(name)
            for pool in self._pools:
                pool.pop(name, None)


def _second_meetings(results: Results) -> tuple[Meeting, ...]:
    """Pair each node without a judgment with another one."""
    pairing = _Pairing(results)
    needy = [node for node in results.sound if _needs_partner(results, node)]
    fast = results.trusted - results.slow_in_meetings
    good = pairing.pool(node for node in results.sound if node in fast)
    for node in _most_urgent_first(results, needy):
        pairing.pair(node, good)
    # Nodes without a good partner meet each other.
    free = pairing.pool(needy)
    for node in needy:
        pairing.pair(node, free)
    if _slow_ones_could_hide(results):
        alike = [node for node in results.sound if results.passed[node]]
        for position, node in enumerate(alike):
            pairing.pair(node, (*alike[position + 1 : position + 2], *alike))
    if (
        results.rounds < MAX_ROUNDS - 1
    ):  # the last meeting is for links that only a meeting of all shows
        for node in results.sound:
            if node in results.slow_in_meetings and _could_be_fast(results, node):
                pairing.pair(node, good)
    return tuple(pairing.meetings)


def _most_urgent_first(results: Results, needy: Sequence[str]) -> list[str]:
    """Return the nodes in the order in which they get a good partner.

    Nodes that may be bad precede nodes that may be slow, and nodes with fewer failures come first.
    The two nodes of a failed pair are separated: each that passes is a partner for the next.
    """
    order = {node: position for position, node in enumerate(results.sound)}

    def urgency(node: str) -> tuple[bool, int, int, int]:
        failed_with = len(results.failed[node] & results.trusted)
        return node in results.trusted, failed_with, order[node] % 2, order[node]

    return sorted(needy, key=urgency)


def _needs_partner(results: Results, node: str) -> bool:
    if results.passed[node]:
        return node in results.slow_in_meetings and not _is_settled_slow(results, node)
    return node not in results.vouched and not is_surely_bad(results, node)


def _is_settled_slow(results: Results, node: str) -> bool:
    """Whether a node has been slow with two partners, one of which is fast with others."""
    partners = results.passed[node]
    return len(partners) > 1 and bool(partners - results.slow_in_meetings)


def _could_be_fast(results: Results, node: str) -> bool:
    """Whether a node that was slow with two partners should meet a third."""
    partners = results.passed[node]
    return _is_settled_slow(results, node) and len(partners) < PARTNERS_OF_THE_SLOW


def _slow_ones_could_hide(results: Results) -> bool:
    """Whether a few slow nodes could be in all meetings that passed, so that these look alike.

    Then no meeting shows the speed of the others. This takes a minority that is in every pair:
    impossible if an even number has met in pairs, or more than seven with three slow ones.
    """
    nodes = [node for node in results.sound if results.passed[node]]
    if results.slow_in_meetings or not 3 <= len(nodes) <= 2 * FAULTS + 1 or results.vouched:
        return False
    pairs = [set(m) for m, outcome, _ in results.meetings if outcome is MeetingOutcome.PASSED]
    return any(
        all(pair & set(slow) for pair in pairs)
        for slow in combinations(nodes, (len(nodes) - 1) // 2)
    )


# --- faults ----------------------------------------------------------------------------------


def bad_links(nodes: int) -> int:
    """Return how many of the faults among this many nodes may be links."""
    return FAULTS if nodes >= ENOUGH_NODES else FAULTS - 1


def is_surely_bad(results: Results, node: str) -> bool:
    """Return whether a node is bad because nothing else explains its failures.

    It must have failed with two nodes that pass with others. In addition, either it has failed with
    all others, or ``FAULTS`` faults cannot explain the failures if it is not one of them.
    """
    failed_with = results.failed[node]
    if len(failed_with & results.trusted) < 2:
        return False
    if len(failed_with) == len(results.sound) - 1:
        return True
    failures = _failures_to_explain(results, node)
    return not _can_be_explained(results, failures, innocent=node)


def _failures_to_explain(results: Results, node: str) -> frozenset[Meeting]:
    """Return the failed meetings that a node may have caused.

    These are all failed meetings, if ``FAULTS`` faults can explain them. Otherwise there are more
    faults, anywhere among many nodes but not around a single one: only failures that are connected
    with the failures of this node are then considered.
    """
    if len(results.failures) <= _EXPLAINED_MAX:
        failures = frozenset(results.failures)
        if _can_be_explained(results, failures):
            return failures
    return _around(results, node)


_EXPLAINED_MAX = FAULTS * MAX_ROUNDS
"""``FAULTS`` faults never explain more failed meetings: no node is in two of one round."""


def _around(results: Results, node: str) -> frozenset[Meeting]:
    """Return the failed meetings that are connected with a node's own, up to a limit."""
    edges: set[Meeting] = set()
    near, todo = {node}, [node]
    while todo and len(edges) <= _EXPLAINED_MAX:
        one = todo.pop()
        for other in results.failed[one]:
            edges.add((min(one, other), max(one, other)))
            if other not in near and other not in results.trusted:
                near.add(other)
                todo.append(other)
    return frozenset(edges)


def _can_be_explained(results: Results, failures: frozenset[Meeting], innocent: str = "") -> bool:
    """Return whether ``FAULTS`` bad nodes and links can explain all these failed meetings.

    Nodes that have passed are not bad, nor is ``innocent``.
    """
    could_be_bad = {name for meeting in failures for name in meeting} - results.trusted - {innocent}

    def explained(failures: frozenset[Meeting], faults: int, links: int) -> bool:
        """Return whether this many faults, including this many links, are enough."""
        if not failures:
            return True
        if len(failures) > faults * MAX_ROUNDS:  # no node is in more of them
            return False
        first = min(failures)  # one fault explains it: the link, or one of the two nodes
        if links and explained(failures - {first}, faults - 1, links - 1):
            return True
        return any(
            explained(frozenset(m for m in failures if node not in m), faults - 1, links)
            for node in could_be_bad.intersection(first)
        )

    return explained(failures, FAULTS, bad_links(len(results.sound)))


# --- all together ----------------------------------------------------------------------------


def _next_for_all(results: Results, rounds: int) -> Step | None:
    nodes = together(results)
    done = results.all_steps()
    if len(nodes) < 2 or results.before.issuperset(nodes):
        return None  # their world would not have a new node
    if not done:
        has_met = len(nodes) == 2 and nodes[1] in results.passed[nodes[0]]
        return None if has_met else Step(Phase.ALL, (nodes,))
    last = done[-1]
    (meeting,) = last.step.meetings
    outcome = results.outcome(last, meeting)
    if outcome is MeetingOutcome.PASSED or len(done) >= _ALL_STEPS + len(results.lost):
        return None
    if outcome is MeetingOutcome.UNKNOWN or meeting != nodes:
        return Step(Phase.ALL, (nodes,))
    # Pairs that have not met yet may reveal the link that breaks it.
    hunt = tuple(_unmet_pairs(results, nodes)) if results.rounds < rounds else ()
    return Step(Phase.SUSPECTS, hunt) if hunt else None


def _unmet_pairs(results: Results, nodes: tuple[str, ...]) -> Iterator[Meeting]:
    free = dict.fromkeys(nodes)
    for node in nodes:
        if node not in free:
            continue
        del free[node]
        met = results.met(node)
        partner = next((name for name in free if name not in met), None)
        if partner is not None:
            del free[partner]
            yield node, partner


def together(results: Results) -> tuple[str, ...]:
    """Return the nodes that could be in one world: trusted nodes, without one end of each bad link.

    The end that has not passed before is left out; otherwise the end with more bad links; otherwise
    the later end in the order.
    """
    order = {node: position for position, node in enumerate(results.nodes)}
    linked: dict[str, set[str]] = {}
    for one, other in results.bad_links:
        linked.setdefault(one, set()).add(other)
        linked.setdefault(other, set()).add(one)

    def worst_first(node: str) -> tuple[bool, int, int, str]:
        return node in results.before, -len(linked[node]), -order[node], node

    out: set[str] = set()
    waiting = [worst_first(node) for node in linked]
    heapify(waiting)
    while waiting:
        *_, node = known = heappop(waiting)
        now = worst_first(node)
        if now != known:
            heappush(waiting, now)  # its bad links led to nodes that are left out
        elif linked[node]:
            out.add(node)
            for other in linked.pop(node):
                linked[other].discard(node)
    return tuple(n for n in results.sound if n in results.trusted and n not in out)
