"""The gate before a world: which nodes are examined when, and which of them fit. Pure.

In a job without checks every node passes, and none is examined.

What is measured, which nodes meet and which of them is at fault is not decided here: an
``Examiner``, which the launcher gives to the master, does. Here are orders and answers, nodes that
are lost, and time. What the findings mean for the world is decided in ``rounds``.
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
"""What an answer may take beyond the time that its order allows: to end a hanging worker."""


class Findings(Struct, frozen=True):
    """What an examination that is over means for the next world."""

    sentence: str
    ends_job: bool
    """The job was to check its nodes, and nothing else."""
    costs_nodes: bool
    """Nodes were sent away, or cannot be in one world with another."""


class _Current(Struct):
    """An examination on its way."""

    spec: CheckSpec
    examination: Examination
    nodes: frozenset[str]
    until: float
    """When the last order must have been carried out."""
    step_begun: float = 0.0
    step_until: float = 0.0
    limit_s: float = 0.0
    orders: dict[str, CheckOrder] = field(default_factory=dict)
    """Those that are not yet answered."""


class Checks:
    """What the rounds ask before they form a world, and tell when one is over."""

    def __init__(
        self,
        state: JobState,
        out: Outbox,
        examiner: Examiner | None,
        gone: Callable[[Node], None],
    ) -> None:
        """Begin with no examination.

        Args:
            state: what is known of the job.
            out: where orders and findings go.
            examiner: begins an examination; None where no job with checks can come.
            gone: told of each node that is sent away.
        """
        self._state, self._roster, self._out = state, state.roster, out
        self._examiner = examiner
        self._gone = gone
        self._current: _Current | None = None
        self._order_number = 0
        self._bad_links: tuple[tuple[str, str], ...] = ()
        self._examined: frozenset[str] = frozenset()
        """Nodes of the last examination."""
        self._doubted: set[str] = set()
        """Nodes that were lost since they passed: what they claim counts no more."""
        self._told: dict[tuple[str, str], CheckVerdict] = {}
        """What was found last, by identity and incarnation: told again on each new stream."""

    # --- what may be in a world ---------------------------------------------------------------

    def may_join(self, *, loaded_only: bool = False) -> Sizes:
        """Return how many ready nodes of each segment may turn out to be fit for one world.

        All but those on the wrong end of a bad link.

        Args:
            loaded_only: only those that have imported the modules of ``--preload``.
        """
        loading = self._roster.loading if loaded_only else frozenset()
        if not self._bad_links and not loading:
            return self._roster.ready_sizes
        ready = self._roster.ready_nodes()
        out = (self._kept_out(ready) if self._bad_links else set()) | loading
        return sizes_of(node for node in ready if node.spec.node_id not in out)

    def fit(self, ready: Sequence[Node]) -> list[Node]:
        """Return which of the ready nodes are known to be fit for one world."""
        if self._spec is None:
            return list(ready)
        out = self._kept_out(ready)
        fit = [node for node in ready if node.passed and node.spec.node_id not in out]
        # A node that passed alone, beside others that did so another time, is not known to be good
        # company: they have to meet first.
        company = [node for node in fit if node.has_met]
        recent = [node for node in fit if node.spec.node_id in self._examined]
        return max(company, recent, fit[:1], key=len)

    def _kept_out(self, ready: Sequence[Node]) -> set[str]:
        """Return which of these nodes cannot be in a world because of one that is or will be in it.

        Of the two ends of a bad link that are both ready, the one that was in no world; then the
        one that came later.
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
        """Return whether an examination comes before a world of that many nodes.

        Unless that many have passed already.
        """
        if self._spec is None:
            return False
        fit = self._state.usable(sizes_of(self.fit(self._roster.ready_nodes())))
        return self._spec.only or fit != size

    @property
    def _spec(self) -> CheckSpec | None:
        """How the job wants its nodes checked; None: it does not."""
        return self._state.job.checks if self._state.job is not None else None

    def admit(self, node: Node, claim: Claim | None) -> None:
        """A node has joined: take over what it has passed, under this master or an earlier one."""
        is_trusted = claim is not None and claim.checked and node.spec.node_id not in self._doubted
        node.passed = is_trusted
        node.has_met = is_trusted and claim is not None and claim.nodes != 1

    # --- suspicion -------------------------------------------------------------------------------

    def round_ended(self, postmortem: Postmortem) -> None:
        """A round is over: its failures may make nodes suspect, which have to pass again."""
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
        """A node was lost: it has to pass again, should it come back."""
        if self._spec is not None and self._spec.on_restart != "never":
            self._doubted.add(node_id)

    # --- an examination ----------------------------------------------------------------------

    def begin(self, now: float) -> None:
        """Begin to examine all nodes that are ready."""
        spec = self._spec
        assert spec is not None
        assert self._examiner is not None, "a job with checks is admitted only where they can be"
        nodes = self._roster.ready_nodes()
        names = [node.spec.node_id for node in nodes]
        self._told.clear()
        # Of more than two nodes, one that has passed alone only is not known to be good company.
        vouched = [
            node.spec.node_id for node in nodes if node.passed and (node.has_met or len(nodes) == 2)
        ]
        examination = self._examiner(spec, names, vouched)
        # With the default, the examination knows whether it may use all of it: with GPUs.
        most_s = spec.timeout_s or defaults.CHECK_TIMEOUT_GPUS_S
        self._current = _Current(spec, examination, frozenset(names), now + most_s)
        self._out.note(ChecksBegun(len(names) - len(vouched), len(names)))

    def reset(self) -> None:
        """Another job begins: what was found was found for the one before."""
        self.give_up()
        self._bad_links, self._examined = (), frozenset()
        self._doubted.clear()
        self._told.clear()

    def give_up(self) -> None:
        """Forget the examination: there is no use for what it would find."""
        if self._current is not None:
            self._out.note(ChecksAborted())
            self._current = None

    def advance(self, now: float) -> Findings | None:
        """Go on with the examination; return what was found, once, when it is over.

        A step follows as soon as no answer to the one before is waited for.
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
        """Return when the examination has something to do if nothing happens."""
        return self._current.step_until if self._current is not None else None

    def _order(self, current: _Current, step: CheckStep, now: float) -> None:
        self._order_number += 1
        current.step_begun = now
        current.limit_s = step.limit_s
        # The last answer has its grace too, which is no time for another order.
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
        """A node has carried out an order."""
        if self._spec is None:
            return
        if result.number > self._order_number:
            node.offer = result.offer  # the answer to an earlier master, which is not waited for
            return
        if result.number <= node.answered:
            return
        # Also when it comes too late: the store of the next round may be where it says.
        node.answered, node.offer = result.number, result.offer
        current, name = self._current, node.spec.node_id
        order = current.orders.get(name) if current is not None else None
        if current is None or order is None or order.number != result.number:
            return
        del current.orders[name]
        current.examination.answered(name, result.report, now - current.step_begun)

    def repeat_order(self, node: Node) -> None:
        """A node is back: the order, or the answer to it, may be lost."""
        order = self._current.orders.get(node.spec.node_id) if self._current is not None else None
        if order is not None:
            self._out.send(node, order)

    def forget(self, node_id: str) -> None:
        """A node is gone, for whatever reason: it is waited for no longer, and not blamed."""
        current = self._current
        if current is not None and node_id in current.nodes:
            current.orders.pop(node_id, None)
            current.examination.lost(node_id)

    # --- what follows ------------------------------------------------------------------------

    def _conclude(self, current: _Current) -> Findings:
        conclusion = current.examination.conclude()
        self._current = None
        self._examined = current.nodes
        # Each once, however often it is found again in a job of weeks.
        self._bad_links = tuple(dict.fromkeys((*self._bad_links, *conclusion.bad_links)))
        self._out.note(ChecksConcluded(conclusion.sentence))
        went = self._tell_findings(current, conclusion)
        costs_nodes = bool(went or conclusion.bad_links)
        return Findings(conclusion.sentence, current.spec.only, costs_nodes)

    def _tell_findings(self, current: _Current, conclusion: Conclusion) -> int:
        """Tell every node what was found of it; return how many were sent away."""
        went = 0
        found = conclusion.findings
        names = current.nodes & found.keys()
        nodes = [node for node in self._roster if node.spec.node_id in names]
        # The whole goes to one node: it grows with their number. To one that is there, if any is.
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
                continue  # the verdict on the job waits for it: it has not heard its own
            self._out.close(node.link)
            self._gone(node)
            self._state.former_ranks.pop(name, None)  # it is not waited for
        return went

    def tell_again(self, link: int, spec: NodeSpec) -> bool:
        """Tell a node on a new stream what was found of it; return whether it has to go.

        The first time may have been lost.
        """
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
