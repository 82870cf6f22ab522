"""The invariants I1 to I9 (docs/internals/architecture.md), checked from outside at every step.

They look at what was sent to and from the nodes, at the nodes themselves, and of the group only
at what its ``Status`` shows: phase, round, restarts, roster.
"""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence

from ft_run import exit_codes
from ft_run.events.master import NodeJoined
from ft_run.rendezvous.group.events import (
    Command,
    Detached,
    Event,
    Finish,
    GroupSettings,
    Hung,
    Received,
    Send,
    Tick,
)
from ft_run.rendezvous.group.group import Group, GroupPhase
from ft_run.rendezvous.group.roster import Node, NodePhase
from ft_run.rendezvous.group.world import usable_size
from ft_run.rendezvous.protocol.check_messages import CheckVerdict
from ft_run.rendezvous.protocol.claim import Claim, ClaimState, Progress
from ft_run.rendezvous.protocol.drain_messages import MayLeave
from ft_run.rendezvous.protocol.failure import FailureKind
from ft_run.rendezvous.protocol.messages import (
    Assignment,
    Attend,
    Excluded,
    Failed,
    JobSpec,
    Leave,
    NodeSpec,
    Outcome,
    Refused,
    Start,
    Stop,
    Stopped,
    Verdict,
)
from ft_run.tests.harness.policy_invariants import PolicyWatch, is_over
from ft_run.tests.harness.progress_invariants import ProgressWatch
from ft_run.tests.harness.simulated_agent import Agent
from ft_run.tests.harness.snapshot_invariants import (
    GrowthWatch,
    check_dismissal,
    check_resumption,
    check_savings,
)
from ft_run.tests.harness.takeover_invariants import TakeoverWatch
from msgspec.structs import replace


class InvariantError(AssertionError):
    """An invariant does not hold."""


_World = tuple[int, str]
"""A round's number and the master that formed it. Two masters that know nothing of each other may
use one number: one that starts from nothing and meets only new nodes, before any member of the
running round is back."""


class Invariants:
    """What an observer of one history has seen, and what follows for the next step."""

    def __init__(
        self,
        job: JobSpec,
        settings: GroupSettings,
        agents: list[Agent],
        *,
        bad_alone: frozenset[str] = frozenset(),
        bad: frozenset[str] = frozenset(),
    ) -> None:
        self._job = job
        self._bad_links: list[list[str]] = []
        """Pairs of nodes that do not reach each other, as the checks have found."""
        self._bad_alone = bad_alone if job.checks is not None else frozenset()
        self._bad = bad if job.checks is not None else frozenset()
        self._is_any_silent = False
        """A node did not answer in time in the checks: it and its partners may be blamed."""
        self._settings = settings
        self._agents = agents
        self._policy = PolicyWatch(job)
        self._progress = ProgressWatch(job.policy.max_no_progress if job.policy else 0)
        self._takeover = TakeoverWatch()
        self._growth = GrowthWatch(settings.drain_timeout_s)
        self._highest = -1
        self._given_up: dict[str, int] = {}
        """By incarnation: up to this round its workers are no longer waited for."""
        self._done: dict[_World, set[str]] = defaultdict(set)
        self._is_settling = False
        self._found_fit: set[str] = set()
        """By incarnation: nodes that were told that they passed; they tell every later master."""
        self.new_master()

    def new_master(self) -> None:
        """Another master: what the one before has said is no longer known."""
        self._policy.new_master()
        self._progress.new_master()
        self._takeover.new_master()
        self._is_silent = False
        """Nothing was heard since a stream broke."""
        self._silent_since = 0.0
        self._came: set[str] = set()
        """By incarnation: nodes that have been in the job."""
        self._of_the_next_job: dict[int, str] = {}
        """Nodes new to a job that was over when they came: incarnations by stream."""
        self._worlds: dict[int, dict[str, Assignment]] = {}
        self._heard_of = -1
        self._restarts_heard_of = 0
        self._waiting: dict[int, Attend] = {}
        """By stream: nodes with a claim that wait for another process to give up their identity."""
        self._ranks: dict[str, int] = {}
        """By identity: node ranks in the last world; -1 for a spare."""
        self._served: set[str] = set()
        """By incarnation: what has been in a round of this master, formed or taken over."""
        self._claims: dict[str, Claim] = {}
        """By incarnation, what was claimed last."""
        self._in_world: dict[str, _World] = {}
        """By incarnation: the world whose workers the master knows it to have."""
        self._failed: set[_World] = set()
        self._stops: set[tuple[int, int]] = set()
        self._verdict: Verdict | None = None
        self._has_failed_before = False
        """The job was over before the faults were, though no node was there to be told."""
        self._adopting_since: float | None = None
        self._has_decided = False
        self._is_counted: bool | None = None
        self._last_restarts: int | None = None

    def came(self, world: _World, progress: Progress) -> None:
        """The workers of a node have come so far."""
        self._progress.came(world, progress)

    # --- around each event -------------------------------------------------------------------

    def before(self, group: Group, event: Event) -> None:
        """Take note of how things stand."""
        self._phase, self._round, self._restarts = group.phase, group.round, group.restarts
        self._formed_by = group.state.formed_by
        self._roster = {n.spec.incarnation: n for n in group.roster}
        self._came |= self._roster.keys()
        self._ranks |= {n.spec.node_id: -1 if n.rank is None else n.rank for n in group.roster}
        self._links = {n.link for n in group.roster}
        self._node_phases = {n.spec.incarnation: n.phase for n in group.roster}
        if isinstance(event, Received) and hasattr(event.message, "offer"):
            self._policy.hear_offer(event.message.offer)
        if isinstance(event, Received) and not isinstance(event.message, Attend):
            self._hear(group, event)
        if isinstance(event, Received) and isinstance(event.message, Attend):
            self._comes(group, event.link, event.message)

    def _comes(self, group: Group, link: int, attend: Attend) -> None:
        """A node that comes to a job that is over, and knows nothing of it, is of the next one."""
        incarnation = attend.node.incarnation
        is_new = attend.claim is None and incarnation not in self._came
        if group.verdict is not None and is_new:
            self._of_the_next_job[link] = incarnation

    def _hear(self, group: Group, event: Received) -> None:
        node = group.roster.by_link(event.link)
        if node is None:
            return
        incarnation, message = node.spec.incarnation, event.message
        if isinstance(message, Leave):
            self._takeover.leaves(incarnation)
        world = self._in_world.get(incarnation)
        if world is None or world[0] != getattr(message, "round", None):
            return
        if isinstance(message, Stopped):
            del self._in_world[incarnation]
            if node.phase is not NodePhase.STALE:
                self._progress.heard(message.round, node.spec.node_id, message.progress)
        if not isinstance(message, Failed) or node.phase is NodePhase.STALE:
            return
        self._takeover.failed(incarnation, world, message.failure)
        # While a round is taken over, a failure during an earlier master's stop says nothing new.
        if not (message.failure.after_stop and group.phase is GroupPhase.TAKING_OVER):
            self._hear_of_failure(group, world)

    def _hear_of_failure(self, group: Group, world: _World) -> None:
        if group.phase is GroupPhase.TAKING_OVER:
            is_current = world[0] == self._heard_of
        else:
            is_current = world == (group.round, group.state.formed_by)
        if is_current and group.phase is not GroupPhase.FINISHED:
            self._failed.add(world)

    def after(self, group: Group, event: Event, commands: Sequence[Command], now: float) -> None:
        """Check all that must hold now."""
        if isinstance(event, Received) and isinstance(event.message, Attend):
            self._hear_attend(group, event.link, event.message, now)
        if isinstance(event, Detached):
            self._waiting.pop(event.link, None)
        claim = _claim_in(event)
        if isinstance(event, Received) and isinstance(event.message, Attend) and claim is not None:
            brought = [claim] if self._may_teach(event.message.node.incarnation) else []
        else:
            brought = self._claims_let_in(commands)
        for learned in brought:
            # What it brings is learned before it leads to anything, also where the node has to go.
            self._restarts = max(self._restarts, min(learned.restarts, group.restarts))
        self._has_failed_before |= group.verdict is not None and not self._is_settling
        self._note_taken_over(group)
        self._how_the_policy_saw_it(group, commands, now, claim)
        self._give_up_lost(group, now)
        self._how_the_round_ended(group, event)
        self._takeover.look(group, {n.spec.incarnation: n.spec.node_id for n in self._both(group)})
        self._what_was_sent(group, commands, now)
        self._all_were_stopped(group)
        self._is_loss_allowed(group, event, now)

    def _may_teach(self, incarnation: str) -> bool:
        """A master with a round of its own believes only nodes that were in a round of it."""
        return self._round < 0 or incarnation in self._served

    def _note_taken_over(self, group: Group) -> None:
        """The members of a round that is taken over have been in a round of this master."""
        if self._round < 0 <= group.round:
            world = (group.round, group.state.formed_by)
            members = {n for n, c in self._claims.items() if c.nodes and _world_of(c) == world}
            self._served |= members & {node.spec.incarnation for node in group.roster}

    def _both(self, group: Group) -> list[Node]:
        """Nodes that attended before the event, or attend after it."""
        return [*self._roster.values(), *group.roster]

    # --- the master may be cut off -----------------------------------------------------------

    def _is_loss_allowed(self, group: Group, event: Event, now: float) -> None:
        """No node is lost while nothing is heard of several hosts, before they give up too."""
        if isinstance(event, Received):
            self._is_silent = False
        elif isinstance(event, Detached) and event.link in self._links:
            self._silent_since = self._silent_since if self._is_silent else now
            self._is_silent = True
        in_round = (NodePhase.RUNNING, NodePhase.DONE, NodePhase.STOPPING)
        hosts = {self._roster[i].spec.host for i, p in self._node_phases.items() if p in in_round}
        is_live = self._phase in (GroupPhase.RUNNING, GroupPhase.STOPPING)
        if not (self._is_silent and is_live and len(hosts) > 1 and isinstance(event, Tick)):
            return
        is_early = now < self._silent_since + self._settings.master_timeout_s
        names = {node.spec.node_id for node in group.roster}
        lost = [n.spec.node_id for n in self._roster.values() if n.spec.node_id not in names]
        if lost and is_early:
            raise InvariantError(f"I1: {lost} lost, but nothing was heard of any node")

    def _how_the_policy_saw_it(
        self, group: Group, commands: Sequence[Command], now: float, claim: Claim | None
    ) -> None:
        # A round of one node is taken over with the very message that tells of it.
        is_heard_of = self._heard_of >= 0 or claim is not None
        is_adopted = self._round < 0 <= group.round and is_heard_of
        if is_adopted:
            self._policy.adopted()
        was_live = self._phase in (GroupPhase.RUNNING, GroupPhase.TAKING_OVER) or is_adopted
        if was_live and group.phase not in (GroupPhase.RUNNING, GroupPhase.TAKING_OVER):
            self._policy.broken(now)
        sent = [command.message for command in commands if isinstance(command, Send)]
        starts = {message.assignment.round for message in sent if isinstance(message, Start)}
        is_at_once = was_live and bool(starts - self._worlds.keys())
        if is_at_once:
            self._policy.broken(now)
        between = (GroupPhase.GATHERING, GroupPhase.CHECKING, GroupPhase.FINISHED)
        is_between = group.phase in between
        if is_over(self._phase, group) or (was_live and (is_between or is_at_once)):
            self._policy.over(group, self._restarts, now)
        self._policy.look(group)

    def _hear_attend(self, group: Group, link: int, attend: Attend, now: float) -> None:
        node = group.roster.by_link(link)
        self._takeover.attended(attend)  # also of one that is sent away for what it says
        if attend.claim is None:
            return
        claim, incarnation = attend.claim, attend.node.incarnation
        may_teach = self._may_teach(incarnation)
        if may_teach:
            self._policy.hear(claim, now, is_admitted=node is not None)
        if node is None:
            self._waiting[link] = attend
            return
        self._claims[incarnation] = claim
        if may_teach:
            self._heard_of = max(self._heard_of, claim.round)
            self._restarts_heard_of = max(self._restarts_heard_of, claim.restarts)
        if claim.nodes == 0:
            return
        world, known = _world_of(claim), self._in_world.get(incarnation)
        if claim.state is ClaimState.STOPPED:
            if known is None or known[0] <= claim.round:
                self._in_world.pop(incarnation, None)
        elif known is None or claim.round > known[0]:
            self._in_world[incarnation] = world
        was_member = known == world or group.phase is GroupPhase.TAKING_OVER
        if was_member and any(not failure.after_stop for failure in claim.failures):
            self._hear_of_failure(group, world)

    def _claims_let_in(self, commands: Sequence[Command]) -> list[Claim]:
        """Return the claims of nodes whose identity became free with an event, even for a moment.

        One of them may be sent away at once, excluded by what the event leads to.
        """
        joined = {_joined_node(command) for command in commands}
        links = [link for link, a in self._waiting.items() if a.node.node_id in joined]
        let_in = [self._waiting.pop(link) for link in links]
        claims = []
        for attend in let_in:
            if attend.claim is None:
                continue
            self._claims[attend.node.incarnation] = attend.claim
            if self._may_teach(attend.node.incarnation):
                claims.append(attend.claim)
        for claim in claims:
            self._heard_of = max(self._heard_of, claim.round)
            self._restarts_heard_of = max(self._restarts_heard_of, claim.restarts)
        return claims

    def _give_up_lost(self, group: Group, now: float) -> None:
        """Workers of nodes that the master has declared lost may run on, for a while."""
        present = {node.spec.incarnation for node in group.roster}
        for incarnation in self._roster.keys() - present:
            self._in_world.pop(incarnation, None)
            self._give_up(_is_incarnation(incarnation))
        is_adopting = group.phase is GroupPhase.TAKING_OVER
        if is_adopting and self._adopting_since is None:
            self._adopting_since = now
        if self._has_decided or is_adopting or group.round < 0:
            return
        # The first decision of a new master. Before its grace is over it may only go on without
        # nodes that were not in the round that it takes over.
        self._has_decided = True
        since = self._adopting_since
        is_patient = since is not None and now < since + self._settings.takeover_grace_s
        # A process that was started in the place of one of those says that it is gone.
        names = {node.spec.node_id for node in group.roster}
        self._give_up(
            lambda agent: (
                agent.spec.incarnation not in present
                and not (is_patient and _is_in(agent, group) and agent.spec.node_id not in names)
            )
        )

    def _give_up(self, which: Callable[[Agent], bool]) -> None:
        for agent in self._agents:
            if which(agent):  # also with a start that it has yet to hear of
                self._given_up[agent.spec.incarnation] = self._highest

    # --- I1: one world -----------------------------------------------------------------------

    def started(self, agent: Agent) -> None:
        """Workers have started on a node."""
        assignment = agent.assignment
        assert assignment is not None
        # A start that was on its way when this node was given up: it is stopped when it attends.
        is_late = assignment.round <= self._given_up.get(agent.spec.incarnation, -1)
        for other in () if is_late else self._agents:
            if (
                other.live is None
                or other.live > assignment.round
                or _shares_world(other, assignment)
            ):
                continue
            if other.live > self._given_up.get(other.spec.incarnation, -1):
                raise InvariantError(
                    f"I1: {agent.name} starts round {assignment.round} while {other.name} has "
                    f"workers of round {other.live}"
                )
        if assignment.node_rank == 0 and (assignment.master_addr, assignment.master_port) != (
            agent.offer.address,
            agent.offer.port,
        ):
            raise InvariantError(f"I2: {agent.name} does not host {assignment.master_port}")

    def done(self, agent: Agent) -> None:
        """The workers of a node have exited 0."""
        assert agent.assignment is not None
        done = self._done[_world_of(agent.assignment)]
        done.add(agent.spec.incarnation)

    # --- I2, I3, I5: what was sent -----------------------------------------------------------

    def _what_was_sent(self, group: Group, commands: Sequence[Command], now: float) -> None:
        new: dict[int, dict[str, Assignment]] = defaultdict(dict)
        incarnations = {n.link: n.spec.incarnation for n in group.roster if n.link is not None}
        identities = {n.spec.incarnation: n.spec.node_id for n in group.roster}
        verdicts: dict[str, Verdict] = {}
        has_verdict = self._verdict is not None
        for command in commands:
            if not isinstance(command, Send):
                self._growth.noted(command, group.state.master_id, group.round, now)
                continue
            match command.message:
                case Start(assignment):
                    incarnation = incarnations[command.link]
                    if assignment.round in self._worlds:
                        if self._worlds[assignment.round].get(incarnation) != assignment:
                            raise InvariantError("I2: another place in the same round")
                    else:
                        new[assignment.round][incarnation] = assignment
                        self._takeover.started(incarnation, identities[incarnation], assignment)
                        self._in_world[incarnation] = _world_of(assignment)
                        self._served.add(incarnation)
                case MayLeave():
                    check_dismissal(command.message, self._agents, group.state.formed_by)
                case Stop(round_number):
                    self._stops.add((command.link, round_number))
                    of = (group.state.master_id, group.state.formed_by)
                    self._growth.stopped(command.message, self._agents, *of, now)
                case CheckVerdict(exit_code, report=report):
                    self._bad_links += json.loads(report)["bad_links"] if report else []
                    if (spec := self._spec_of(group, command.link)) is not None:
                        self._found(spec.incarnation, spec.node_id, exit_code)
                case Verdict():
                    if (incarnation := incarnations.get(command.link, "")) and not has_verdict:
                        verdicts[incarnation] = command.message
                    self._one_verdict(group, replace(command.message, saving=None), now)
                    if command.link in self._of_the_next_job:
                        raise InvariantError("I5: the verdict is told to a node of the next job")
        if group.phase is GroupPhase.RUNNING:
            self._growth.looked(group.state.master_id, group.round, now)
        if verdicts:
            self._all_are_saved(group, verdicts)
        for round_number, assignments in new.items():
            self._agreed(group, round_number, assignments, now)

    def _spec_of(self, group: Group, link: int) -> NodeSpec | None:
        """Return the node that has the stream, or had it before this event."""
        node = group.roster.by_link(link)
        known = [n.spec for n in self._roster.values() if n.link == link]
        return node.spec if node is not None else next(iter(known), None)

    def _agreed(
        self, group: Group, round_number: int, assignments: dict[str, Assignment], now: float
    ) -> None:
        job = self._job
        ordered = sorted(assignments.values(), key=lambda assignment: assignment.node_rank)
        first = ordered[0]
        specs = {n.spec.incarnation: n.spec for n in group.roster}
        nodes = {assignment.node_rank: specs[name] for name, assignment in assignments.items()}
        if [assignment.node_rank for assignment in ordered] != list(range(first.nodes)):
            raise InvariantError(
                f"I2: node ranks {[p.node_rank for p in ordered]} of {first.nodes}"
            )
        if not job.min_nodes <= first.nodes <= job.max_nodes or first.nodes % job.node_unit:
            raise InvariantError(f"I2: a world of {first.nodes} nodes")
        for start in range(0, first.nodes, job.node_unit):
            unit = {nodes[rank].segment for rank in range(start, start + job.node_unit)}
            if len(unit) > 1 and any(agent.spec.segment for agent in self._agents):
                raise InvariantError(f"I2: the unit at node rank {start} is of {sorted(unit)}")
        offset = 0
        role_offsets: defaultdict[str, int] = defaultdict(int)
        for assignment in ordered:
            spec = nodes[assignment.node_rank]
            if (
                assignment.rank_offset != offset
                or assignment.role_rank_offset != role_offsets[spec.role]
            ):
                raise InvariantError("I2: ranks overlap or leave a gap")
            offset += spec.local_world_size
            role_offsets[spec.role] += spec.local_world_size
        for assignment in ordered:
            if assignment.world_size != offset:
                raise InvariantError("I2: the world's size is not the sum of its nodes")
            if assignment.role_world_size != role_offsets[nodes[assignment.node_rank].role]:
                raise InvariantError("I2: the role's size is not the sum of its nodes")
            if (assignment.master_addr, assignment.master_port) != (
                first.master_addr,
                first.master_port,
            ):
                raise InvariantError("I2: two addresses of rank 0")
            if (assignment.restarts, assignment.nodes) != (first.restarts, first.nodes):
                raise InvariantError("I3: two counts of restarts")
        if self._worlds and round_number <= max(self._worlds):
            raise InvariantError("numbers of rounds must increase")
        if round_number <= self._heard_of:
            raise InvariantError(f"round {round_number} formed after {self._heard_of} was heard of")
        for agent in self._agents:
            if (
                agent.spec.incarnation in assignments
                and max(agent.starts, default=-1) >= round_number
            ):
                raise InvariantError(f"{agent.name} has seen {round_number} and will ignore it")
            is_known = agent.spec.incarnation in specs
            if is_known and agent.live is not None and agent.live < round_number:
                raise InvariantError(
                    f"I1: round {round_number} formed while {agent.name} has workers"
                )
        self._all_are_fit(nodes)
        check_resumption(assignments, self._agents, (self._round, self._formed_by))
        self._highest = max(self._highest, round_number)
        members = {rank: spec.node_id for rank, spec in nodes.items()}
        shrinks = first.decision.startswith("rule device-oom=shrink")
        has_failed = first.cause is not None and not shrinks
        self._progress.formed((round_number, first.formed_by), len(members), has_failed=has_failed)
        is_counted = self._policy.formed(first, members, now)
        if is_counted is not None and self._is_counted is not None:
            was_left = first.cause is not None and first.cause.kind is FailureKind.PREEMPTED
            if not (self._is_counted or was_left):
                raise InvariantError("I3: a regroup is taken for a restart")
            self._is_counted = is_counted
        self._counted(first.restarts)
        self._takeover.formed(first)
        self._pins_hold(nodes)
        self._worlds[round_number] = assignments

    # --- I8: fitness -------------------------------------------------------------------------

    def was_silent(self) -> None:
        """A node did not answer in time."""
        self._is_any_silent = True

    def was_condemned(self, node_id: str) -> None:
        """The checks have ruled out a node, which may not be connected to hear it."""
        self._policy.condemned(node_id)

    def _all_are_fit(self, nodes: dict[int, NodeSpec]) -> None:
        if self._job.checks is None:
            return
        names = {spec.node_id for spec in nodes.values()}
        if names & self._bad_alone or (len(names) > 1 and names & self._bad):
            raise InvariantError(f"I8: an unfit node is in the world of {sorted(names)}")
        for spec in nodes.values():
            if spec.incarnation not in self._found_fit:
                raise InvariantError(f"I8: {spec.node_id} enters unchecked")

    def _found(self, incarnation: str, node_id: str, exit_code: int) -> None:
        if not exit_code:
            self._found_fit.add(incarnation)
            return
        is_blamed = exit_code == exit_codes.NODE_EXCLUDED
        is_healthy = node_id not in self._bad_alone | self._bad
        if is_blamed and is_healthy and not self._is_any_silent:
            raise InvariantError(f"I8: {node_id} is healthy and was condemned")

    def _pins_hold(self, nodes: dict[int, NodeSpec]) -> None:
        for rank, spec in nodes.items():
            wanted = None if any(other.segment for other in nodes.values()) else spec.wanted_rank
            if wanted is None or wanted >= len(nodes) or wanted == rank:
                continue
            # A survivor without a pin keeps its rank.
            holder = nodes[wanted]
            had_it = self._round < 0 or self._ranks.get(holder.node_id) == wanted
            if holder.wanted_rank is not None or not had_it:
                raise InvariantError(f"I2: --node-rank {wanted} has rank {rank}")

    def _counted(self, restarts: int) -> None:
        has_window = self._job.policy is not None and self._job.policy.restart_window_s
        most = restarts if has_window else self._job.max_restarts
        if not self._restarts_heard_of <= restarts <= most:
            raise InvariantError(f"I3: {restarts} restarts")
        if self._last_restarts is not None and self._is_counted is not None:
            before, heard_of = self._last_restarts, self._restarts_heard_of
            expected = max(before, heard_of) + self._is_counted
            # What comes to light after the round has ended is not counted on top.
            if restarts not in (expected, max(before + self._is_counted, heard_of)):
                raise InvariantError(f"I3: {restarts} restarts where there were {expected}")
        self._last_restarts, self._is_counted = restarts, None

    def _how_the_round_ended(self, group: Group, event: Event) -> None:
        """Tell a restart from a regroup by what happened, as a bystander would."""
        if self._phase is not GroupPhase.RUNNING or group.phase is GroupPhase.RUNNING:
            return
        present = {node.spec.incarnation for node in group.roster}
        was_lost = any(
            phase is NodePhase.RUNNING and name not in present
            for name, phase in self._node_phases.items()
        )
        received = event if isinstance(event, Received) else None
        message = received.message if received is not None else None
        sender = group.roster.by_link(received.link) if received is not None else None
        was_running = sender and self._node_phases.get(sender.spec.incarnation) is NodePhase.RUNNING
        is_left = isinstance(message, Leave) and was_running
        if isinstance(message, Attend) and message.leaving:
            # Its workers have stopped because of that, unless one had failed before.
            was_running = self._node_phases.get(message.node.incarnation) is NodePhase.RUNNING
            failures = message.claim.failures if message.claim is not None else ()
            is_left = was_running and all(failure.after_stop for failure in failures)
        self._is_counted = not is_left and (
            was_lost or isinstance(event, Hung) or isinstance(message, Failed | Attend | Stopped)
        )
        if not self._is_counted:
            self._takeover.ended_freely((self._round, self._formed_by))

    def _all_are_saved(self, group: Group, verdicts: Mapping[str, Verdict]) -> None:
        """Check what nodes are told to save, when they are told first how the job ended."""
        told = {name: one.saving for name, one in verdicts.items() if one.saving is not None}
        ready = {n.spec.incarnation for n in group.roster.in_phase(NodePhase.READY)}
        agents = [a for a in self._agents if a.spec.incarnation in ready & verdicts.keys()]
        has_succeeded = any(one.outcome is Outcome.SUCCEEDED for one in verdicts.values())
        check_savings(told, [] if has_succeeded else agents, (group.round, group.state.formed_by))

    def _one_verdict(self, group: Group, verdict: Verdict, now: float) -> None:
        if self._verdict is not None:
            if verdict != self._verdict:
                raise InvariantError("I5: two verdicts")
            return
        self._verdict = verdict
        has_window = self._job.policy is not None and self._job.policy.restart_window_s
        if verdict.restarts > self._job.max_restarts and not has_window:
            raise InvariantError("I3: the verdict counts too many restarts")
        is_stuck = any(f.kind is FailureKind.STUCK for f in verdict.failures)
        is_exhausted = self._progress.ended(verdict)
        self._policy.ended(verdict, now, is_stuck=is_stuck, is_exhausted=is_exhausted)
        match verdict.outcome:
            case Outcome.SUCCEEDED:
                self._all_are_done(group)
            case Outcome.WORKERS_FAILED:
                if verdict.cause is None and verdict.failures:
                    raise InvariantError("I5: failed without a cause")
            case Outcome.RENDEZVOUS_FAILED:
                if not self._has_failed_before and self._is_settling and self._usable():
                    raise InvariantError(f"I7: {self._usable()} healthy nodes and no round")

    def _all_are_done(self, group: Group) -> None:
        if self._rank0_is_done(group):
            return
        present = {node.spec.incarnation for node in group.roster}
        for agent in self._agents:
            # Not what an earlier master's round of that number has left: it is told to stop.
            if agent.spec.incarnation in present and _is_in(agent, group):
                raise InvariantError(f"I5: succeeded while {agent.name} has workers")
        assignments = [
            a.assignment for a in self._agents if a.spec.incarnation in present and a.is_done
        ]
        for assignment in assignments:
            assert assignment is not None
            done = self._done[_world_of(assignment)]
            members = self._worlds.get(assignment.round, {})
            if assignment.round == group.round and (
                len(done) < assignment.nodes or members.keys() - done
            ):
                raise InvariantError("I5: succeeded, but not all were done")

    def _rank0_is_done(self, group: Group) -> bool:
        """Whether rank 0 decides and has exited 0 in the present round."""
        if self._job.policy is None or not self._job.policy.rank0_decides:
            return False
        return any(
            agent.spec.incarnation in self._done[_world_of(assignment)]
            for agent in self._agents
            if (assignment := agent.assignment)
            and assignment.round == group.round
            and assignment.node_rank == 0
        )

    # --- I4: lockstep ------------------------------------------------------------------------

    def _all_were_stopped(self, group: Group) -> None:
        if self._verdict is not None:
            return
        current = self._heard_of if group.phase is GroupPhase.TAKING_OVER else group.round
        for node in group.roster:
            world = self._in_world.get(node.spec.incarnation)
            if world is None or node.link is None:
                continue
            is_over = world in self._failed or world[0] < current
            if group.phase is not GroupPhase.TAKING_OVER:
                is_over |= world[0] == current and world[1] != group.state.formed_by
            if is_over and (node.link, world[0]) not in self._stops:
                raise InvariantError(f"I4: {node.spec.node_id} was not told to stop {world}")

    # --- I6: idempotence ---------------------------------------------------------------------

    def repeated(
        self, group: Group, event: Received, now: float, handle: Callable[[Event], list[object]]
    ) -> None:
        """Deliver again what has just been delivered: nothing may change."""
        before = snapshot(group)
        commands = handle(event)
        if snapshot(group) != before:
            raise InvariantError(f"I6: {event} changed {before} to {snapshot(group)}")
        for command in commands:
            # A node that is not, or no longer, in the job is told so again.
            says_no = isinstance(command, Send) and isinstance(
                command.message, Refused | Verdict | Excluded | CheckVerdict
            )
            if isinstance(command, Send | Finish) and not says_no:
                raise InvariantError(f"I6: {event} repeated led to {command}")

    def deadline_moved(
        self, group: Group, now: float, handle: Callable[[Event], list[object]]
    ) -> None:
        """A deadline that is reached must not be asked for again and again."""
        for _ in range(3):
            deadline = group.deadline()
            if deadline is None or deadline > now:
                return
            handle(Tick())
        raise InvariantError(f"I7: at {now} the next tick is wanted at {group.deadline()}")

    # --- I7: progress ------------------------------------------------------------------------

    def settling(self) -> None:
        """From now on nothing goes wrong."""
        self._is_settling = True

    def _usable(self) -> int:
        """How many nodes a world could have now."""
        healthy = {
            a.spec.node_id: a.spec.segment for a in self._agents if a.is_there and not a.is_leaving
        }
        for name in self._policy.excluded | self._bad_alone | self._bad:
            healthy.pop(name, None)
        job, sizes = self._job, Counter(healthy.values())
        return usable_size(sizes, job.min_nodes, job.max_nodes, job.node_unit)

    def settled(self, group: Group) -> None:
        """Nothing more happens by itself: the job runs or is over."""
        for agent in self._agents:
            if agent.is_there and agent.is_leaving:
                raise InvariantError(f"I7: {agent.name} cannot leave")
        if group.phase is GroupPhase.RUNNING:
            self._runs(group)
            self._growth.settled(self._agents)
        elif group.phase is not GroupPhase.FINISHED and group.job is not None:
            raise InvariantError(f"I7: the group is {group.phase.value} for ever")

    def _runs(self, group: Group) -> None:
        members = 0
        for agent in self._agents:
            if agent.live is not None and not _is_in(agent, group):
                raise InvariantError(f"I4: {agent.name} runs round {agent.live} on")
            members += agent.live is not None
            if agent.is_there and group.roster.get(agent.spec.node_id) is None:
                raise InvariantError(f"I7: the group does not know {agent.name}")
        if members != group.roster.count(NodePhase.RUNNING):
            raise InvariantError(f"I7: {members} nodes run of {group.state.world_nodes}")
        running = {n.spec.node_id for n in group.roster if n.phase is NodePhase.RUNNING}
        cut_off = {end for link in self._bad_links if running & set(link) for end in link}
        spares = {n.spec.node_id for n in group.roster if n.phase is NodePhase.READY} - cut_off
        job, ready = self._job, len(spares)
        sizes = Counter(n.spec.segment for n in group.roster if n.spec.node_id in running | spares)
        could = usable_size(sizes, job.min_nodes, job.max_nodes, job.node_unit)
        grows = group.state.rescale_delay_s < math.inf and members == group.state.world_nodes
        if grows and could > members:
            raise InvariantError(f"I7: {ready} spares and a world of {members} nodes")

    def ended(self, group: Group, has_finished: bool) -> None:
        """All workers have exited 0, or the job has failed: all nodes have heard and are gone."""
        if group.job is None:
            return
        if group.verdict is None or not has_finished:
            raise InvariantError(f"I5: no verdict, but {group.phase.value}")
        for agent in self._agents:
            is_of_it = agent.spec.incarnation not in self._of_the_next_job.values()
            if agent.is_there and is_of_it:
                raise InvariantError(f"I5: {agent.name} never heard the verdict")


def snapshot(group: Group) -> tuple[object, ...]:
    """Return all of a group that a message could change."""
    nodes = tuple(
        (n.spec, n.offer, n.phase, n.link, n.round, n.rank, n.rank_offset, n.assignment, n.leaving)
        for n in group.roster
    )
    return (
        group.phase,
        group.round,
        group.restarts,
        group.state.world_nodes,
        group.verdict,
        group.deadline(),
        nodes,
    )


def _claim_in(event: Event) -> Claim | None:
    message = event.message if isinstance(event, Received) else None
    return message.claim if isinstance(message, Attend) else None


def _joined_node(command: Command) -> str:
    match command:
        case NodeJoined(node_id):
            return node_id
    return ""


def _world_of(of: Claim | Assignment) -> _World:
    return (of.round, of.formed_by)


def _is_in(agent: Agent, group: Group) -> bool:
    """Whether an agent has workers of the group's present world."""
    assignment = agent.assignment if agent.live is not None else None
    return assignment is not None and _world_of(assignment) == (group.round, group.state.formed_by)


def _shares_world(agent: Agent, assignment: Assignment) -> bool:
    return agent.assignment is not None and _world_of(agent.assignment) == _world_of(assignment)


def _is_incarnation(incarnation: str) -> Callable[[Agent], bool]:
    return lambda agent: agent.spec.incarnation == incarnation
