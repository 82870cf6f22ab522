"""Pre-flight checks before a world: when to examine nodes, and which nodes fit.

In a job without checks, every node passes and none is examined.

The launcher gives the master an ``Examiner``, which selects the measurements and meetings, and
finds faulty nodes. This module handles orders, answers, lost nodes and time limits; ``rounds``
applies the findings to the world.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct, field

from ... import defaults, exit_codes
from ...events.master import ChecksAborted, ChecksBegun, ChecksConcluded, NodeFailedChecks
from ..policy.postmortem import Postmortem
from ..policy.recheck import casts_doubt_on_all, may_be_the_machine
from ..protocol.check_messages import (
    CheckOrder,
    CheckResult,
    CheckSpec,
    CheckVerdict,
)
from ..protocol.claim import Claim
from ..protocol.messages import NodeSpec
from .examination import CheckStep, Conclusion, Examination, Examiner
from .outbox import Outbox
from .roster import Node, NodePhase, Sizes, sizes_of
from .state import JobState

_ANSWER_GRACE_S = 2.0
"""Additional time for an answer beyond the limit of its order, to end a hanging worker."""


class Findings(Struct, frozen=True):
    """Result of an examination, for the next world."""

    sentence: str
    ends_job: bool
    """Whether the job was only to check its nodes."""
    costs_nodes: bool
    """Whether nodes were rejected, or cannot be in one world with another node."""


class _Current(Struct):
    spec: CheckSpec
    examination: Examination
    nodes: frozenset[str]
    until: float
    """Deadline of the last order."""
    step_begun: float = 0.0
    step_until: float = 0.0
    limit_s: float = 0.0
    orders: dict[str, CheckOrder] = field(default_factory=dict)
    """Unanswered orders, by node identity."""


class Checks:
    """The gate between the ready nodes and a world."""

    def __init__(
        self,
        state: JobState,
        out: Outbox,
        examiner: Examiner | None,
        gone: Callable[[Node], None],
    ) -> None:
        """``gone`` is called with each rejected node."""
        self._state, self._roster, self._out = state, state.roster, out
        self._examiner = examiner
        self._gone = gone
        self._current: _Current | None = None
        self._order_number = 0
        self._bad_links: tuple[tuple[str, str], ...] = ()
        self._examined: frozenset[str] = frozenset()
        """Nodes of the last examination."""
        self._doubted: set[str] = set()
        """Nodes that were lost since they passed, so their claims to have passed are no longer
        valid."""
        self._told: dict[tuple[str, str], CheckVerdict] = {}
        """Last findings, by identity and incarnation; sent again on each new stream."""

    # --- nodes that fit -----------------------------------------------------------------------

    def may_join(self, *, loaded_only: bool = False) -> Sizes:
        """Return how many ready nodes of each segment could be fit for one world.

        Nodes that a bad link keeps out do not count. ``loaded_only``: count only nodes that
        have imported the modules of ``--preload``.
        """
        loading = self._roster.loading if loaded_only else frozenset()
        if not self._bad_links and not loading:
            return self._roster.ready_sizes
        ready = self._roster.ready_nodes()
        out = (self._kept_out(ready) if self._bad_links else set()) | loading
        return sizes_of(node for node in ready if node.spec.node_id not in out)

    def fit(self, ready: Sequence[Node]) -> list[Node]:
        """Return the ready nodes that are known to be fit for one world."""
        if self._spec is None:
            return list(ready)
        out = self._kept_out(ready)
        fit = [node for node in ready if node.passed and node.spec.node_id not in out]
        # Nodes that passed separately have not been tested with each other, so they must meet
        # first.
        company = [node for node in fit if node.has_met]
        recent = [node for node in fit if node.spec.node_id in self._examined]
        return max(company, recent, fit[:1], key=len)

    def _kept_out(self, ready: Sequence[Node]) -> set[str]:
        """Return the nodes to keep out of the next world because of bad links.

        If both ends of a link are ready, the node without a rank stays out; if both or none have
        one, the node that joined later does.
        """
        inside = {
            node.spec.node_id
            for node in self._roster.in_phase(NodePhase.RUNNING, NodePhase.DONE, NodePhase.STOPPING)
        }
        out: set[str] = set()
        ends: defaultdict[str, set[str]] = defaultdict(set)
        for one, other in self._bad_links:
            ends[one].add(other)
            ends[other].add(one)
        for node in sorted(
            ready if self._bad_links else (), key=lambda node: (node.rank is None, node.arrival)
        ):
            name = node.spec.node_id
            (out if inside & ends[name] else inside).add(name)
        return out

    def must_examine(self, size: int) -> bool:
        """Return whether checks must precede a world of this size.

        They must if too few nodes have passed, or if the job consists of checks.
        """
        if self._spec is None:
            return False
        fit = self._state.usable(sizes_of(self.fit(self._roster.ready_nodes())))
        return self._spec.only or fit != size

    @property
    def _spec(self) -> CheckSpec | None:
        return self._state.job.checks if self._state.job is not None else None

    def admit(self, node: Node, claim: Claim | None) -> None:
        """Accept a node's claim that it has passed, unless it was lost since."""
        is_trusted = claim is not None and claim.checked and node.spec.node_id not in self._doubted
        node.passed = is_trusted
        node.has_met = is_trusted and claim is not None and claim.nodes != 1

    # --- suspicion -------------------------------------------------------------------------------

    def round_ended(self, postmortem: Postmortem) -> None:
        """After a round: failures can make nodes suspect, which must then pass again."""
        spec = self._spec
        if spec is None or not postmortem.counted:
            return
        if spec.on_restart == "always":
            self._suspect(list(self._roster))
        cause = postmortem.cause
        if spec.on_restart == "node" and cause is not None and may_be_the_machine(cause):
            all_nodes = casts_doubt_on_all(cause)
            suspects = [node for node in self._roster if all_nodes or node.rank == cause.node_rank]
            self._suspect([node for node in suspects if node.round == self._state.round])

    def _suspect(self, nodes: Iterable[Node]) -> None:
        for node in nodes:
            node.passed = False

    def lost(self, node_id: str) -> None:
        """Record a lost node, which must pass again if it returns."""
        if self._spec is not None and self._spec.on_restart != "never":
            self._doubted.add(node_id)

    # --- examinations ------------------------------------------------------------------------

    def begin(self, now: float) -> None:
        """Start to examine all ready nodes."""
        spec = self._spec
        assert spec is not None
        assert self._examiner is not None, "a job with checks is admitted only where they can be"
        nodes = self._roster.ready_nodes()
        names = [node.spec.node_id for node in nodes]
        self._told.clear()
        # With more than two nodes, a node that passed alone must still be tested with another.
        vouched = [
            node.spec.node_id for node in nodes if node.passed and (node.has_met or len(nodes) == 2)
        ]
        examination = self._examiner(spec, names, vouched)
        # With the default, the examination decides whether to use all of this time: with GPUs.
        most_s = spec.timeout_s or defaults.CHECK_TIMEOUT_GPUS_S
        self._current = _Current(spec, examination, frozenset(names), now + most_s)
        self._out.note(ChecksBegun(len(names) - len(vouched), len(names)))

    def reset(self) -> None:
        """Drop all findings, which belong to the previous job."""
        self.give_up()
        self._bad_links, self._examined = (), frozenset()
        self._doubted.clear()
        self._told.clear()

    def give_up(self) -> None:
        """Abort the examination: its result is no longer needed."""
        if self._current is not None:
            self._out.note(ChecksAborted())
            self._current = None

    def advance(self, now: float) -> Findings | None:
        """Advance the examination; return its result once, at the end.

        A step starts as soon as all answers to the previous one have arrived or timed out.
        """
        current = self._current
        if current is None:
            return None
        if current.orders and current.step_until <= now:
            for name in list(current.orders):
                current.examination.silent(name, f"no answer within {current.limit_s:.0f} s")
            current.orders.clear()
        while not current.orders:
            remaining_s = current.until - now
            step = current.examination.next_step(remaining_s) if remaining_s > 0 else None
            if step is None:
                return self._conclude(current)
            self._order(current, step, now)
        return None

    def deadline(self) -> float | None:
        """Return when the examination must act if no message arrives."""
        return self._current.step_until if self._current is not None else None

    def _order(self, current: _Current, step: CheckStep, now: float) -> None:
        self._order_number += 1
        current.step_begun = now
        current.limit_s = step.limit_s
        # The last answer has this grace too, which is too short for another order.
        current.step_until = now + current.limit_s + _ANSWER_GRACE_S
        for meeting in step.meetings:
            nodes = [node for name in meeting if (node := self._roster.get(name)) is not None]
            size = sum(node.spec.local_world_size for node in nodes)
            offset = 0
            for node in nodes:
                order = CheckOrder(
                    number=self._order_number,
                    phase=step.phase,
                    level=current.spec.level,
                    rank_offset=offset,
                    world_size=size,
                    master_addr=nodes[0].offer.address,
                    master_port=nodes[0].offer.port,
                    deadline_s=current.limit_s,
                    progress=step.progress,
                )
                offset += node.spec.local_world_size
                current.orders[node.spec.node_id] = order
                self._out.send(node, order)

    def result(self, node: Node, result: CheckResult, now: float) -> None:
        """Process a node's result of an order."""
        if self._spec is None:
            return
        if result.number > self._order_number:
            node.offer = result.offer  # the answer to an order of an earlier master
            return
        if result.number <= node.answered:
            return
        # Even a late answer counts here: its offer can contain the store for the next round.
        node.answered, node.offer = result.number, result.offer
        current, name = self._current, node.spec.node_id
        order = current.orders.get(name) if current is not None else None
        if current is None or order is None or order.number != result.number:
            return
        del current.orders[name]
        current.examination.answered(name, result.report, now - current.step_begun)

    def repeat_order(self, node: Node) -> None:
        """Resend the order to a node that reconnected: the order or its answer may be lost."""
        order = self._current.orders.get(node.spec.node_id) if self._current is not None else None
        if order is not None:
            self._out.send(node, order)

    def forget(self, node_id: str) -> None:
        """Forget a removed node: do not wait for its answer, and do not report it as faulty."""
        current = self._current
        if current is not None and node_id in current.nodes:
            current.orders.pop(node_id, None)
            current.examination.lost(node_id)

    # --- findings ----------------------------------------------------------------------------

    def _conclude(self, current: _Current) -> Findings:
        conclusion = current.examination.conclude()
        self._current = None
        self._examined = current.nodes
        # Each link once, even if it is found repeatedly in a job of weeks.
        self._bad_links = tuple(dict.fromkeys((*self._bad_links, *conclusion.bad_links)))
        self._out.note(ChecksConcluded(conclusion.sentence))
        went = self._tell_findings(current, conclusion)
        costs_nodes = bool(went or conclusion.bad_links)
        return Findings(conclusion.sentence, current.spec.only, costs_nodes)

    def _tell_findings(self, current: _Current, conclusion: Conclusion) -> int:
        """Send every node its findings; return how many were rejected."""
        went = 0
        found = conclusion.findings
        names = current.nodes & found.keys()
        nodes = [node for node in self._roster if node.spec.node_id in names]
        # Only one node gets the whole report, whose size grows with the number of nodes: a
        # connected one if there is any.
        there = (node for node in nodes if node.link is not None)
        reporter = next(there, nodes[0] if nodes else None)
        for node in nodes:
            name, finding = node.spec.node_id, found[node.spec.node_id]
            report = conclusion.report if node is reporter else ""
            verdict = CheckVerdict(finding.exit_code, finding.sentence, conclusion.sentence, report)
            self._told[name, node.spec.incarnation] = verdict
            self._out.send(node, verdict)
            node.passed = not finding.exit_code
            node.has_met |= finding.has_met
            if node.passed:
                self._doubted.discard(name)
                continue
            went += 1
            self._out.note(NodeFailedChecks(name, finding.sentence))
            if finding.exit_code == exit_codes.NODE_EXCLUDED:
                self._state.aftermath.ledger.exclude(
                    name, f"it failed the checks: {finding.sentence}"
                )
            if node.link is None and current.spec.only:
                continue  # the verdict on the job waits until this node has its own
            self._out.close(node.link)
            self._gone(node)
            self._state.former_ranks.pop(name, None)  # do not wait for it
        return went

    def tell_again(self, link: int, spec: NodeSpec) -> bool:
        """Resend a node's findings, as they may be lost; return whether it must leave."""
        found = self._told.get((spec.node_id, spec.incarnation))
        if found is None:
            return False
        self._out.send_on(link, found)
        if not found.exit_code:
            return False
        self._out.close(link)
        node = self._roster.get(spec.node_id)
        if node is not None:
            self._gone(node)
        return True
