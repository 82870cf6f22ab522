"""Checks as part of forming a round: who is checked when, and what follows. Pure.

What is measured, who meets whom and who is at fault is not decided here: an ``Examiner``, which
the launcher gives to the master, does. Here are orders and answers, nodes that are lost, time,
and what a verdict means for the world. This is a part of ``group.Group``.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from ... import exit_codes
from ...values import dataclass, field
from ..policy.recheck import casts_doubt_on_all, may_be_the_machine
from ..protocol.check_messages import (
    CheckOrder,
    CheckProgress,
    CheckResult,
    CheckSpec,
    CheckVerdict,
)
from ..protocol.messages import Claim, NodeSpec, Outcome
from .examination import CheckStep, Conclusion, Examination
from .outbox import Outbox
from .roster import Node, NodePhase
from .rounds import Rounds
from .state import GroupPhase, JobState
from .world import usable_size

_ANSWER_GRACE_S = 2.0
"""What an answer may take beyond the time that its order allows: to end a hanging worker."""

_PROGRESS_S = 1.0
"""How often people are told how far a step is, at most."""


Examiner = Callable[[CheckSpec, Sequence[str], Sequence[str]], Examination]
"""Begins an examination of nodes, the second sequence of which have passed before."""


@dataclass(slots=True)
class _Checks:
    """An examination on its way."""

    examination: Examination
    nodes: frozenset[str]
    until: float
    """When the last order must have been carried out."""
    step_begun: float = 0.0
    step_until: float = 0.0
    limit_s: float = 0.0
    orders: dict[str, CheckOrder] = field(default_factory=dict)
    """Who has not yet answered."""
    told_at: float = 0.0
    """When people were told last how far it is."""
    has_news: bool = False
    """Somebody has answered since."""


class Checking(Rounds):
    """Lets no node into a world that has not passed, in a job with checks."""

    def __init__(self, state: JobState, out: Outbox, examiner: Examiner | None) -> None:
        super().__init__(state, out)
        self.examiner = examiner
        self._checks: _Checks | None = None
        self._order_number = 0
        self._bad_links: tuple[tuple[str, str], ...] = ()
        self._examined: frozenset[str] = frozenset()
        """Who was in the last examination."""
        self._doubted: set[str] = set()
        """Who was lost since it passed: what it claims to have passed counts no more."""
        self._told: dict[tuple[str, str], CheckVerdict] = {}
        """What was found last, by identity and incarnation: told again on each new stream."""

    # --- who may be in a world ---------------------------------------------------------------

    def _could_join(self) -> int:
        count = super()._could_join()
        return count - len(self._kept_out()) if self._bad_links else count

    def _candidates(self, without: str = "") -> list[Node]:
        nodes = super()._candidates(without)
        if self._state.job is None or self._state.job.checks is None:
            return nodes
        out = self._kept_out(without)
        fit = [node for node in nodes if node.passed and node.spec.node_id not in out]
        # Who has passed alone, beside others that did so another time, is not known to be good
        # company: they have to meet first.
        company = [node for node in fit if node.has_met]
        recent = [node for node in fit if node.spec.node_id in self._examined]
        return max(company, recent, fit[:1], key=len)

    def _kept_out(self, without: str = "") -> set[str]:
        """Return which ready nodes cannot be in a world because of one who is or will be in it.

        One node may be left out of account.

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
        ready = super()._candidates(without) if self._bad_links else ()
        for node in sorted(ready, key=lambda node: (node.rank is None, node.arrival)):
            name = node.spec.node_id
            (out if inside & ends[name] else inside).add(name)
        return out

    def _form(self, size: int, now: float) -> None:
        spec = self._state.job.checks if self._state.job is not None else None
        if spec is None:
            super()._form(size, now)
        elif spec.only or self._usable(len(self._candidates())) != size:
            self._begin_checks(spec, now)
        else:
            self._form_fit(size, now)

    def _form_fit(self, size: int, now: float) -> None:
        """Form a world of those who are fit; others may yet turn out to be."""
        super()._form(size, now)
        self._plan_rescale(now)

    def _usable(self, count: int) -> int:
        assert self._state.job is not None
        job = self._state.job
        return usable_size(count, job.min_nodes, job.max_nodes, job.node_unit)

    def _has_passed(self, node_id: str, claim: Claim | None) -> bool:
        """Return whether a node that joins has passed, under this master or an earlier one."""
        return claim is not None and claim.checked and node_id not in self._doubted

    # --- doubt -------------------------------------------------------------------------------

    def _round_is_over(self, now: float) -> None:
        super()._round_is_over(now)
        spec = self._state.job.checks if self._state.job is not None else None
        if spec is None or not self._postmortem.counted:
            return
        if spec.on_restart == "always":
            self._doubt(list(self._roster))
        cause = self._postmortem.cause
        if spec.on_restart == "node" and cause is not None and may_be_the_machine(cause):
            everybody = casts_doubt_on_all(cause)
            suspects = [node for node in self._roster if everybody or node.rank == cause.node_rank]
            self._doubt([node for node in suspects if node.round == self._state.round])

    def _doubt(self, nodes: Iterable[Node]) -> None:
        for node in nodes:
            node.passed = False

    def _lose(self, node: Node, why: str) -> None:
        super()._lose(node, why)
        spec = self._state.job.checks if self._state.job is not None else None
        if spec is not None and spec.on_restart != "never":
            self._doubted.add(node.spec.node_id)

    # --- an examination ----------------------------------------------------------------------

    def _begin_checks(self, spec: CheckSpec, now: float) -> None:
        assert self.examiner is not None, "a job with checks is admitted only where they can be"
        nodes = [node for node in self._roster.in_phase(NodePhase.READY) if node.link is not None]
        names = [node.spec.node_id for node in nodes]
        self._told.clear()
        # Of more than two nodes, one that has passed alone only is not known to be good company.
        vouched = [
            node.spec.node_id for node in nodes if node.passed and (node.has_met or len(nodes) == 2)
        ]
        self._checks = _Checks(
            self.examiner(spec, names, vouched), frozenset(names), now + spec.timeout_s
        )
        self._state.phase = GroupPhase.CHECKING
        self._lobby.close()
        self._lobby.forget_newcomers()
        self._out.note(f"checking {len(names) - len(vouched)} of {len(names)} nodes")
        self._advance_checks(now)

    def _forget_findings(self) -> None:
        """The job is over before it began: what was found was found for it, not for the next."""
        self._bad_links, self._examined = (), frozenset()
        self._doubted.clear()
        self._told.clear()

    def _give_up_checks(self) -> None:
        """A round of an earlier master turns out to run: nobody waits for these checks."""
        if self._checks is not None:
            self._out.note("the checks are given up")
            self._checks = None

    def _advance_checks(self, now: float) -> None:
        """Go on as soon as nobody is waited for."""
        checks = self._checks
        if checks is None:
            return
        if checks.orders and checks.step_until <= now:
            for name in list(checks.orders):
                checks.examination.silent(name, f"no answer within {checks.limit_s:.0f} s")
            checks.orders.clear()
        if checks.orders and checks.has_news and checks.told_at + _PROGRESS_S <= now:
            self._tell_progress(checks, now)
        while not checks.orders:
            remaining_s = checks.until - now
            step = checks.examination.next_step(remaining_s) if remaining_s > 0 else None
            if step is None:
                self._conclude(checks.examination.conclude(), now)
                return
            self._order(checks, step, now)

    def _checks_deadline(self) -> float:
        assert self._checks is not None
        return self._checks.step_until

    def _next_of_checks(self) -> float:
        """Return when the checks have something to do if nothing happens."""
        assert self._checks is not None
        checks, deadline = self._checks, self._checks_deadline()
        return min(deadline, checks.told_at + _PROGRESS_S) if checks.has_news else deadline

    def _tell_progress(self, checks: _Checks, now: float) -> None:
        """Tell one node: to tell all would disturb what they measure."""
        checks.told_at, checks.has_news = now, False
        text = checks.examination.progress()
        there = (node for node in self._roster if node.link is not None)
        node = next((node for node in there if node.spec.node_id in checks.nodes), None)
        if node is not None:
            self._out.send(node, CheckProgress(text))

    def _order(self, checks: _Checks, step: CheckStep, now: float) -> None:
        assert self._state.job is not None
        assert self._state.job.checks is not None
        self._order_number += 1
        checks.step_begun = checks.told_at = now  # each order says how far it is
        checks.has_news = False
        checks.limit_s = step.limit_s
        # The last answer has its grace too, which is no time for another order.
        checks.step_until = now + checks.limit_s + _ANSWER_GRACE_S
        for meeting in step.meetings:
            nodes = [node for name in meeting if (node := self._roster.get(name)) is not None]
            size = sum(node.spec.local_world_size for node in nodes)
            offset = 0
            for node in nodes:
                order = CheckOrder(
                    number=self._order_number,
                    phase=step.phase,
                    level=self._state.job.checks.level,
                    rank_offset=offset,
                    world_size=size,
                    master_addr=nodes[0].offer.address,
                    master_port=nodes[0].offer.port,
                    deadline_s=checks.limit_s,
                    progress=step.progress,
                )
                offset += node.spec.local_world_size
                checks.orders[node.spec.node_id] = order
                self._out.send(node, order)

    def _check_result(self, node: Node, result: CheckResult, now: float) -> None:
        """A node has carried out an order."""
        if result.number > self._order_number:
            node.offer = result.offer  # the answer to an earlier master, which nobody waits for
            return
        if result.number <= node.answered:
            return
        # Also when it comes too late: the store of the next round may be where it says.
        node.answered, node.offer = result.number, result.offer
        checks, name = self._checks, node.spec.node_id
        order = checks.orders.get(name) if checks is not None else None
        if checks is None or order is None or order.number != result.number:
            return
        del checks.orders[name]
        checks.examination.answered(name, result.report, now - checks.step_begun)
        checks.has_news = True

    def _wait(self, node: Node, now: float) -> None:
        super()._wait(node, now)
        # Its stream broke: the order, or the answer to it, may be lost.
        order = self._checks.orders.get(node.spec.node_id) if self._checks is not None else None
        if order is not None:
            self._out.send(node, order)

    def _forget(self, node: Node) -> None:
        super()._forget(node)
        name, checks = node.spec.node_id, self._checks
        if checks is not None and name in checks.nodes:
            checks.orders.pop(name, None)
            checks.examination.lost(name)

    # --- what follows ------------------------------------------------------------------------

    def _conclude(self, conclusion: Conclusion, now: float) -> None:
        checks, self._checks = self._checks, None
        assert checks is not None
        assert self._state.job is not None
        assert self._state.job.checks is not None
        self._state.phase = GroupPhase.GATHERING
        self._examined = checks.nodes
        # Each once, however often it is found again in a job of weeks.
        self._bad_links = tuple(dict.fromkeys((*self._bad_links, *conclusion.bad_links)))
        self._out.note(f"checks: {conclusion.sentence}")
        went = self._tell_findings(self._state.job.checks, checks, conclusion)
        if self._state.job.checks.only:
            self._finish(Outcome.SUCCEEDED, now, f"the checks are over: {conclusion.sentence}")
            return
        size = self._usable(len(self._candidates()))
        if size:
            self._form_fit(size, now)
        elif (went or conclusion.bad_links) and not self._usable(self._potential()):
            self._finish(Outcome.CHECKS_FAILED, now, self._too_few(conclusion))
        else:
            self._lobby.open(now)  # who was lost may be replaced, and who came meanwhile is next

    def _potential(self) -> int:
        """Return how many nodes could be in a world if all went well from now on."""
        return self._could_join() + self._roster.detached + self._roster.count(NodePhase.STALE)

    def _too_few(self, conclusion: Conclusion) -> str:
        assert self._state.job is not None
        job = self._state.job
        unit = f" in multiples of {job.node_unit}" if job.node_unit > 1 else ""
        return (
            f"{len(self._candidates())} of at least {job.min_nodes} nodes{unit} are fit for the "
            f"job after the checks: {conclusion.sentence}"
        )

    def _tell_findings(self, spec: CheckSpec, checks: _Checks, conclusion: Conclusion) -> int:
        """Tell every node what was found of it; return how many were sent away."""
        went = 0
        found = conclusion.findings
        names = checks.nodes & found.keys()
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
            self._out.note(f"node {name} is sent away: {finding.sentence}")
            if finding.exit_code == exit_codes.NODE_EXCLUDED:
                self._state.aftermath.ledger.exclude(
                    name, f"it failed the checks: {finding.sentence}"
                )
            if node.link is None and spec.only:
                continue  # the verdict on the job waits for it: it has not heard its own
            self._let_go(node)
            self._state.former_ranks.pop(name, None)  # nobody waits for it
        return went

    def _tell_again(self, link: int, spec: NodeSpec) -> bool:
        """Tell a node on a new stream what was found of it, since the first time may be lost.

        Returns:
            Whether it has to go.
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
            self._forget(node)
        return True
