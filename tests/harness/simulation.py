"""A simulated world around the group's rules: agents, streams, masters, a clock, and faults.

A history is a string of bytes, two for each step: what happens, and where. Zeros do nothing,
so that hypothesis can shrink a history to the few steps that matter.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ft_run import exit_codes
from ft_run.checks.ladder import Ladder
from ft_run.checks.records import Phase, Record, record_to_json
from ft_run.launcher.workers.smaller_parts import NAME
from ft_run.rendezvous.group.events import (
    Close,
    Detached,
    Event,
    Finish,
    GroupSettings,
    Hung,
    Received,
    Send,
)
from ft_run.rendezvous.group.events import Tick as TickEvent
from ft_run.rendezvous.group.examination import Conclusion, Examiner
from ft_run.rendezvous.group.group import Group
from ft_run.rendezvous.master.job import Job
from ft_run.rendezvous.protocol.carried import value_of
from ft_run.rendezvous.protocol.check_messages import CheckOrder, CheckSpec
from ft_run.rendezvous.protocol.claim import Progress
from ft_run.rendezvous.protocol.failure import FailureKind, hung
from ft_run.rendezvous.protocol.lease_messages import NO_ROUND
from ft_run.rendezvous.protocol.messages import Attend, JobSpec, NodeSpec, PolicySpec
from ft_run.rendezvous.work.node_work import Taker
from ft_run.tests.harness.invariants import InvariantError, Invariants
from ft_run.tests.harness.simulated_agent import BROKEN, Agent, Stream
from ft_run.tests.harness.work_invariants import LOOPS, WorkWatch
from msgspec.structs import replace

_T = TypeVar("_T")
SETUP_BYTES = 6
_SETTLE_STEPS = 3000
_WAIT_S = 11.9
_NODES_BEYOND_MAX = 2
_SEGMENTS = ("east", "west", "east", "east", "", "west", "west")


@dataclass(frozen=True, slots=True)
class Setup:
    """What a history begins with."""

    job: JobSpec
    rescale_delay_s: float
    has_pins: bool
    has_segments: bool
    """Nodes have labels, all but some."""
    is_replicated: bool
    """Any rank's state is that of all, so that it outlives a change of the world."""
    saves: bool
    """The script has a Checkpointer."""
    repeats_leave: bool
    nodes_at_start: int
    runs_at_start: bool
    bad_alone: frozenset[str] = frozenset()
    """Nodes that fail the checks by themselves."""
    bad: frozenset[str] = frozenset()
    """Nodes that fail the checks with every partner."""
    has_terms: bool = False
    """Several hosts may lead: each master has a term, and waits for what an earlier one left."""

    @classmethod
    def decode(cls, data: bytes) -> "Setup":
        """Return the setup that ``SETUP_BYTES`` bytes stand for."""
        size, restarts, options, start, rules, times = data
        unit = (1, 1, 1, 2)[size % 4]
        minimum = unit * (1 + size // 4 % 2) if unit == 2 else 1 + size // 4 % 3
        maximum = minimum + size // 16 % 3
        policy = _policy(rules, times, shrinks=bool(start & 64)) if restarts & 4 else None
        checks = _checks(options)
        job = JobSpec("job", minimum, maximum, unit, restarts % 4, policy, checks)
        names = [f"node-{n}" for n in range(maximum + _NODES_BEYOND_MAX)]
        bad_alone, bad = restarts // 8 % 8, restarts // 32 % 8
        return cls(
            job=job,
            rescale_delay_s=math.inf if options & 1 else 10.0,
            has_pins=bool(options & 2) and bool(options & 4),
            has_segments=bool(start & 128),
            is_replicated=bool(times & 128),
            saves=not rules & 64,
            repeats_leave=bool(options & 8),
            nodes_at_start=start // 2 % (maximum + _NODES_BEYOND_MAX + 1),
            runs_at_start=not start & 1,
            # None more often than not.
            bad_alone=frozenset(names[bad_alone : bad_alone + 1]),
            bad=frozenset(names[bad : bad + 1]),
            has_terms=bool(options & 128),
        )


RULES = (
    "exit:3=fail",
    "exit:75=restart-free",
    "exit:9=replace-node",
    "node-lost=replace-node",
    "preempted=restart",
    "hang=replace-node",
)
SHRINK = "device-oom=shrink"
EXIT_CODES = (1, 1, 2, 3, 9, 75)
"""How workers fail."""


def _policy(rules: int, times: int, *, shrinks: bool) -> PolicySpec:
    first, longest = ((0.0, 0.0), (0.0, 0.0), (0.0, 4.0), (2.0, 8.0))[times // 2 % 4]
    return PolicySpec(
        rules=(
            *(text for bit, text in enumerate(RULES) if rules >> bit & 1),
            *((SHRINK,) if shrinks else ()),
        ),
        restart_window_s=20.0 if times & 1 else 0.0,
        backoff_first_s=first,
        backoff_max_s=longest,
        max_node_failures=(3, 1, 2, 0)[times // 8 % 4],
        rank0_decides=times >> 5 & 3 == 3,
        max_no_progress=(times >> 7) * (1 + rules // 32 % 2),
    )


def _checks(options: int) -> CheckSpec | None:
    if not options & 16:
        return None
    on_restart = ("node", "always", "never", "node")[options // 32 % 4]
    return CheckSpec("light", 60.0, on_restart=on_restart)


class Simulation:
    """The world of one history."""

    def __init__(
        self,
        setup: Setup,
        group_factory: Callable[[GroupSettings, str, Examiner], Group] = Group,
    ) -> None:
        self.setup = setup
        self.now = 0.0
        self.agents: list[Agent] = []
        self.streams: dict[int, Stream] = {}
        self._closed: set[int] = set()
        self.group: Group | None = None
        self.rules: Job
        """The group, and shared work next to it."""
        self.has_finished = False
        self._is_cut_off = False
        """The master's own link is down: no stream lives, and no node gets to it."""
        self.trace: list[str] = []
        self._group_factory = group_factory
        self._settings = GroupSettings(
            rescale_delay_s=setup.rescale_delay_s, wait_s=_WAIT_S if setup.has_terms else 0.0
        )
        self._term, self._known = 0, NO_ROUND
        self._numbers = 1000
        self._meetings: dict[tuple[int, int], set[NodeSpec]] = {}
        """Which nodes were told to meet, by number of the order and port of the store."""
        self._checks = Invariants(
            setup.job, self._settings, self.agents, bad_alone=setup.bad_alone, bad=setup.bad
        )
        self._work = WorkWatch(self.agents)
        self._node_ids = [f"node-{n}" for n in range(setup.job.max_nodes + _NODES_BEYOND_MAX)]
        self._new_master()
        for _ in range(setup.nodes_at_start):
            self._start_node(0)
        if setup.runs_at_start:
            self._flush(0)

    def run(self, history: bytes) -> None:
        """Live through a history; each step is checked."""
        for step, choice in zip(history[::2], history[1::2], strict=False):
            _ACTIONS[step % len(_ACTIONS)](self, choice)

    # --- the master --------------------------------------------------------------------------

    def handle(self, event: Event) -> list[object]:
        """Let the group take an event, carry out its commands, check the invariants."""
        group = self.group
        assert group is not None
        self._checks.before(group, event)
        commands = self.rules.handle(event, self.now)
        self._log(
            f"{self.now:.2f} {event} -> {[c for c in commands if isinstance(c, Send | Close)]}"
        )
        for command in commands:
            if isinstance(command, Send):
                self._stream_of(command.link).send_down(command.message)
                if isinstance(command.message, CheckOrder):
                    self._note_meeting(command.link, command.message)
            elif isinstance(command, Close):
                self._closed.add(command.link)
                self._stream_of(command.link).end_down()
                self._stream_of(command.link).end_up()
            elif isinstance(command, Finish):
                if self.has_finished:
                    raise InvariantError("I5: finished twice")
                self.has_finished = True
        self._checks.after(group, event, commands, self.now)
        self._work.look(self.rules, event, commands)
        return list(commands)

    def _stream_of(self, link: int) -> Stream:
        return self.streams[link]

    def _new_master(self) -> None:
        master = f"master-{self._number()}"
        settings = self._settings
        if self.setup.has_terms:
            is_first, self._term = not self._term, self._term + 1
            settings = replace(
                settings,
                term=self._term,
                known=self._known,
                quorum_term=self._known[0] * (self._number() % 2),
                starts_from=-math.inf if is_first else self.now + settings.wait_s,
            )
        self.group = self._group_factory(settings, master, self._examine)
        self.rules = Job(self.group)
        self.has_finished = False
        self._checks.new_master()
        self._work.new_master()
        self._log("a master starts")

    def _examine(
        self, spec: CheckSpec, nodes: Sequence[str], vouched: Sequence[str]
    ) -> "_WatchedLadder":
        return _WatchedLadder(spec, nodes, vouched, self._checks)

    def _kill_master(self, choice: int) -> None:
        if self.group is None:
            return
        self._log("the master is killed")
        self._learn_round(choice)
        self.group = None
        for number, stream in self.streams.items():
            stream.cut(0, (choice + number) % 3)
            stream.up.clear()

    def _resign(self, choice: int) -> None:
        """A leader gives its lease back, and says what it has decided."""
        if self.group is None or not self.setup.has_terms or self.group.verdict is not None:
            return
        self._log("the leader resigns")
        for command in self.group.resign(self.now):
            assert isinstance(command, Send)
            self._stream_of(command.link).send_down(command.message)
        self._learn_round(choice)
        self.group = None
        for stream in self.streams.values():
            stream.end_down()
            stream.is_up_open = False
            stream.up.clear()
        if choice & 64:
            self._new_master()

    def _learn_round(self, choice: int) -> None:
        """The listed hosts know the round that may have started, perhaps that the next is due."""
        assert self.group is not None
        state = self.group.state
        self._known = max(self._known, state.newest if choice & 32 else state.formed)

    def _start_master(self, _who: int) -> None:
        if self.group is None:
            self._new_master()

    def _cut_off_master(self, _who: int) -> None:
        self._log("the master is cut off")
        self._is_cut_off = True
        for stream in self.streams.values():
            stream.cut(0, 0)

    def _mend_master(self, _who: int) -> None:
        self._is_cut_off = False

    # --- messages and time -------------------------------------------------------------------

    def _deliveries(self) -> list[tuple[Stream, bool]]:
        up = [(s, True) for s in self.streams.values() if s.up and self.group is not None]
        return up + [(s, False) for s in self.streams.values() if s.down and not s.agent.is_frozen]

    def _pick_message(self, choice: int) -> tuple[Stream, bool] | None:
        """Choose a stream and a direction in which a message, not its end, is next."""
        waiting = self._deliveries()
        return _pick(
            [(s, up) for s, up in waiting if (s.up if up else s.down)[0] is not BROKEN], choice
        )

    def _deliver(self, choice: int) -> None:
        if chosen := _pick(self._deliveries(), choice):
            self._deliver_one(*chosen)

    def _deliver_one(self, stream: Stream, is_up: bool) -> None:
        if not is_up:
            self._receive(stream)
            return
        message: Any = stream.up.popleft()
        if message is BROKEN:
            self.handle(Detached(stream.number))
        elif not (isinstance(message, Attend) and stream.number in self._closed):
            self.handle(Received(stream.number, message))

    def _receive(self, stream: Stream) -> None:
        message = stream.down.popleft()
        agent = stream.agent
        self._log(f"{agent.name} gets {message}")
        if agent.receive(stream, message):
            self._checks.started(agent)
        self._work.held_by_one()

    def _deliver_some(self, choice: int) -> None:
        for _ in range(1 + choice % 8):
            self._deliver(choice)

    def _deliver_twice(self, choice: int) -> None:
        chosen = self._pick_message(choice)
        if chosen is None:
            return
        stream, is_up = chosen
        message: Any = (stream.up if is_up else stream.down)[0]
        self._deliver_one(stream, is_up)
        group = self.group
        if not is_up:
            stream.down.appendleft(message)
            self._deliver_one(stream, is_up)
        elif group is not None and stream.number not in self._closed:
            self._checks.repeated(group, Received(stream.number, message), self.now, self.handle)

    def _deliver_late_copy(self, choice: int) -> None:
        chosen = self._pick_message(choice)
        if chosen is None:
            return
        stream, is_up = chosen
        queue: deque[Any] = stream.up if is_up else stream.down
        message = queue[0]
        self._deliver_one(stream, is_up)
        end = len(queue) - (1 if BROKEN in queue else 0)
        if end >= 0:
            queue.insert(min(end, choice % 5), message)

    def _tick(self, _who: int) -> None:
        if self.group is None:
            return
        deadline = self.group.deadline()
        if deadline is not None:
            self.now = max(self.now, deadline)
            self.handle(TickEvent())
            self._checks.deadline_moved(self.group, self.now, self.handle)

    def _pass_time(self, choice: int) -> None:
        self.now += choice % 32 / 20
        if choice & 32 and self.group is not None:
            self.handle(TickEvent())

    # --- nodes -------------------------------------------------------------------------------

    def _there(self) -> list[Agent]:
        return [agent for agent in self.agents if agent.is_there]

    def _start_node(self, choice: int) -> None:
        taken = {agent.spec.node_id for agent in self._there()}
        if node_id := _pick([name for name in self._node_ids if name not in taken], choice):
            self._add_agent(node_id)

    def _start_twin(self, choice: int) -> None:
        if agent := _pick(self._there(), choice):
            self._add_agent(agent.spec.node_id)

    def _add_agent(self, node_id: str) -> None:
        number = int(node_id.split("-")[1])
        pin = number if self.setup.has_pins and number < self.setup.job.max_nodes else None
        spec = NodeSpec(
            node_id=node_id,
            incarnation=str(self._number()),
            host=node_id,
            address=f"10.0.0.{number}",
            role=("trainer", "reader")[number % 2],
            local_world_size=1 + number % 3,
            wanted_rank=pin,
            segment=_SEGMENTS[number % len(_SEGMENTS)] if self.setup.has_segments else "",
        )
        agent = Agent(
            spec,
            self.setup.job,
            self._number,
            lambda: self.now,
            repeats_leave=self.setup.repeats_leave,
            is_replicated=self.setup.is_replicated,
            saves=self.setup.saves,
        )
        self.agents.append(agent)
        self._log(f"{agent.name} starts")
        self._attend(agent)

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers

    def _attend(self, agent: Agent) -> None:
        if self.group is not None and not self._is_cut_off:
            stream = agent.attend(self._number())
            self.streams[stream.number] = stream
            self._log(f"{agent.name} attends on {stream.number}: {stream.up}")

    def _can_attend(self) -> list[Agent]:
        if self.group is None or self._is_cut_off:
            return []
        return [a for a in self._there() if a.stream is None and not a.is_frozen]

    def _reconnect(self, choice: int) -> None:
        if agent := _pick(self._can_attend(), choice):
            self._attend(agent)

    def _cut(self, choice: int) -> None:
        streams = [a.stream for a in self._there() if a.stream is not None]
        if stream := _pick(streams, choice):
            self._log(f"stream {stream.number} of {stream.agent.name} breaks")
            stream.cut(choice // 8 % 4, choice // 32 % 4)

    def _notice_cut(self, choice: int) -> None:
        """The agent sees at once that its stream broke, and connects again."""
        agents = [a for a in self._there() if a.stream is not None and not a.is_frozen]
        if agent := _pick(agents, choice):
            assert agent.stream is not None
            agent.stream.cut(choice // 8 % 4, 0)
            self._receive(agent.stream)
            self._attend(agent)

    def _kill(self, choice: int) -> None:
        if agent := _pick(self._there(), choice):
            self._log(f"{agent.name} is killed")
            agent.kill()
            if agent.stream is not None:
                agent.stream.cut(choice // 8 % 4, 0)

    def _freeze(self, choice: int) -> None:
        if agent := _pick([a for a in self._there() if not a.is_frozen], choice):
            self._log(f"{agent.name} freezes")
            agent.is_frozen = True
            if agent.stream is not None and choice & 128:
                agent.stream.cut(choice // 8 % 4, 0)

    def _thaw(self, choice: int) -> None:
        if agent := _pick([a for a in self._there() if a.is_frozen], choice):
            agent.is_frozen = False

    def _terminate(self, choice: int) -> None:
        if agent := _pick([a for a in self._there() if not a.is_leaving], choice):
            self._log(f"{agent.name} gets SIGTERM")
            agent.leave()

    def _give_notice(self, choice: int) -> None:
        """A node learns that it will be gone; its time limit is a SIGTERM of this history."""
        if agent := _pick([a for a in self._working() if not a.is_leaving], choice):
            self._log(f"{agent.name} will be gone")
            agent.give_notice(5.0)

    def _agree_on_drain(self, choice: int) -> None:
        """The ranks of a round hear of an order to drain, and agree on the next step of all.

        Often all do it before anything else happens.
        """
        told = [
            a for a in self._working() if a.saves and a.drain is not None and a.drains_at is None
        ]
        if agent := _pick(told, choice):
            peers = [a for a in self._working() if a.line == agent.line]
            step = 1 + max(a.steps for a in peers)
            self._log(f"the ranks of {agent.line} leave the state of step {step}")
            for peer in peers:
                peer.drains_at = step
                while choice & 12 and not peer.has_drained:
                    peer.take_snapshot()

    def _plan_growth(self, choice: int) -> None:
        """A node joins in peace, the next thing that the master plans is due, and ranks save."""
        self._start_node(choice)
        self._flush(0)
        self._tick(0)
        if choice & 64:
            self._flush(0)
        if choice & 128:
            self._agree_on_drain(choice)

    # --- checks ------------------------------------------------------------------------------

    def _note_meeting(self, link: int, order: CheckOrder) -> None:
        meeting = self._meetings.setdefault((order.number, order.master_port), set())
        meeting.add(self.streams[link].agent.spec)

    def _check(self, choice: int) -> None:
        if agent := _pick(self._checking(), choice):
            order = agent.order
            assert order is not None
            name, phase = agent.spec.node_id, Phase(order.phase)
            meeting = {spec.node_id for spec in self._meeting(order)}
            fails = name in self.setup.bad_alone and phase is Phase.SOLO
            fails |= len(meeting) > 1 and bool(meeting & self.setup.bad)
            agent.finish_check(record_to_json(Record(name, phase, failure="no" if fails else "")))
            self._log(f"{agent.name} has checked {order.number}: {fails=}")

    def _checking(self) -> list[Agent]:
        """Agents that can carry out their order: all that they meet have it too."""
        return [
            agent
            for agent in self._there()
            if agent.order is not None
            and not agent.is_frozen
            and agent.order.world_size
            == sum(spec.local_world_size for spec in self._meeting(agent.order))
        ]

    def _meeting(self, order: CheckOrder) -> set[NodeSpec]:
        return self._meetings[order.number, order.master_port]

    # --- workers -----------------------------------------------------------------------------

    def _fail(self, choice: int) -> None:
        if agent := _pick([a for a in self._there() if a.live is not None], choice):
            code = EXIT_CODES[choice // 8 % len(EXIT_CODES)]
            assert agent.assignment is not None
            samples = 0
            if code == 1 and choice & 128:  # the script may not do as it is told
                given = value_of(agent.assignment.carried, NAME) if choice & 1 else None
                samples = given.value if given is not None else 4
            self._log(f"a worker of {agent.name} fails with {code}, in a part of {samples}")
            agent.fail(exit_code=code, samples=samples)

    def _train(self, choice: int) -> None:
        """The workers of a node do a step; some say which."""
        if agent := _pick(self._working(), choice):
            furthest = max(agent.progress.furthest, choice // 8 % 8 - 4, -1)
            agent.progress = Progress(furthest, has_stepped=True)
            assert agent.assignment is not None
            self._checks.came((agent.assignment.round, agent.assignment.formed_by), agent.progress)
            self._log(f"{agent.name} has come to {agent.progress}")

    def _hang(self, choice: int) -> None:
        """The master finds that the workers of this round or the one before hang, also too late."""
        agents = [a for a in self._there() if a.assignment is not None]
        if self.group is not None and (agent := _pick(agents, choice)):
            assert agent.assignment is not None
            failure = hung(agent.assignment.node_rank, agent.spec.host, "", "it hangs")
            if choice & 64:
                failure = hung(None, "", "", "they hang")
            self.handle(Hung(agent.assignment.round, failure, "", is_alone=bool(choice & 128)))

    def _stick(self, choice: int) -> None:
        if agent := _pick([a for a in self._there() if a.is_stopping], choice):
            self._log(f"a worker of {agent.name} does not die")
            agent.fail(FailureKind.STUCK)
            agent.finish_stop()

    def _finish_stop(self, choice: int) -> None:
        if agent := _pick([a for a in self._there() if a.is_stopping], choice):
            self._log(f"{agent.name} has stopped")
            agent.finish_stop()

    def _finish(self, choice: int) -> None:
        if agent := _pick(self._working(), choice):
            self._log(f"{agent.name} is done")
            agent.finish()
            self._checks.done(agent)

    def _finish_rank0(self, choice: int) -> None:
        decides = self.setup.job.policy is not None and self.setup.job.policy.rank0_decides
        agents = [
            a for a in self._working() if a.assignment is not None and a.assignment.node_rank == 0
        ]
        if decides and (agent := _pick(agents, choice)):
            self._log(f"rank 0 of {agent.name} is done")
            agent.finish_rank0()
            self._checks.done(agent)

    def _take_snapshots(self, choice: int) -> None:
        """The workers do a step; at times a kill follows before all have done it."""
        working = [agent for agent in self._working() if not agent.has_drained]
        working.sort(key=lambda agent: agent.steps)
        for agent in working if choice & 1 else working[:1]:
            agent.take_snapshot()
            self._log(f"{agent.name} has done step {agent.steps}")

    def _replicate(self, choice: int) -> None:
        """Nodes of a round send their shares of a step to the next ones; some do not arrive."""
        agent = _pick(self._working(), choice)
        if not agent or self.setup.is_replicated:  # then each node has all: nothing is sent
            return
        peers = [a for a in self._working() if a.line == agent.line and a.assignment is not None]
        peers.sort(key=lambda a: a.assignment.node_rank if a.assignment is not None else 0)
        steps = sorted({step for peer in peers for step in peer.left})
        step = _pick(steps, choice // 8)
        for number, peer in enumerate(peers if step is not None else ()):
            assert step is not None
            sender = peers[number - 1]
            if sender is not peer and step in sender.left and (choice >> number % 3) & 32 == 0:
                peer.take_replica(step, sender.left[step])
                self._log(f"{peer.name} has step {step} of {sender.name}")

    def _share_work(self, choice: int) -> None:
        """A rank begins a loop, ends a piece, leaves its loop, or its agent's clock strikes."""
        agents = [a for a in self._working() if not a.is_frozen]
        if not (agent := _pick(agents, choice)):
            return
        assert agent.assignment is not None
        rank = agent.assignment.rank_offset + choice // 4 % agent.spec.local_world_size
        claim = LOOPS[choice // 16 % 3 == 2]
        taker = next(
            (t for t in (*agent.pieces, *agent.waits) if t.rank == rank),
            Taker(rank, self._number()),
        )
        claim = next((one for one in LOOPS if one.name == agent.loop_of.get(taker)), claim)
        if choice >= 240:
            agent.leave_loop(taker, claim)
        elif choice >= 220:
            agent.work.tick(self.now)
        elif taker not in agent.waits:
            agent.ask(taker, claim)
        self._log(f"{agent.name}: {taker} of {claim.name} has {agent.pieces.get(taker)}")
        self._work.held_by_one()

    def _share_all_work(self) -> None:
        """All ranks do all pieces."""
        assert self.group is not None
        for claim in LOOPS:
            for agent in self._working():
                assert agent.assignment is not None
                for rank in range(agent.spec.local_world_size):
                    taker = Taker(agent.assignment.rank_offset + rank, self._number())
                    if not any(t.rank == taker.rank for t in (*agent.pieces, *agent.waits)):
                        agent.ask(taker, claim)
            for _ in range(_SETTLE_STEPS):
                self._flush(0)
                busy = [agent for agent in self._working() if agent.pieces]
                for agent in busy[:1]:
                    taker = next(iter(agent.pieces))
                    name = agent.loop_of[taker]
                    agent.ask(taker, next(one for one in LOOPS if one.name == name))
                due_at = min((a.work.due_at() for a in self._working()), default=math.inf)
                if not busy and due_at == math.inf:
                    break
                if not busy:
                    self.now = max(self.now, due_at)
                    for agent in self._working():
                        agent.work.tick(self.now)
                self._work.held_by_one()
        self._work.ended(self.rules)

    def _working(self) -> list[Agent]:
        return [a for a in self._there() if a.live is not None and not a.is_stopping]

    # --- quiescence --------------------------------------------------------------------------

    def _flush(self, _who: int) -> None:
        """Everything that takes no time happens."""
        for _ in range(_SETTLE_STEPS):
            if deliveries := self._deliveries():
                self._deliver_one(*deliveries[0])
            elif agents := self._can_attend():
                self._attend(agents[0])
            elif stopping := [a for a in self._there() if a.is_stopping]:
                stopping[0].finish_stop()
            elif self._checking():
                self._check(0)
            else:
                return
        raise InvariantError("I7: messages without end")

    def settle(self) -> None:
        """End all faults; everything happens that can; then the job must run or be over (I7)."""
        self._log("no more faults")
        self._mend_master(0)
        self._start_master(0)
        for agent in self._there():
            agent.is_frozen = False
            if agent.notice is not None and not agent.is_leaving:
                agent.leave()  # its time is over
        self._checks.settling()
        for _ in range(_SETTLE_STEPS):
            self._flush(0)
            assert self.group is not None
            if self.group.deadline() is None:
                break
            self._tick(0)
        else:
            raise InvariantError("I7: time passes without end")
        self._checks.settled(self.group)
        self._share_all_work()
        for agent in self._working():
            agent.finish()
            self._checks.done(agent)
        self._flush(0)
        if self.agents:
            self._checks.ended(self.group, self.has_finished)

    def _log(self, text: str) -> None:
        self.trace.append(text)


def _pick(options: Sequence[_T], choice: int) -> _T | None:
    return options[choice % len(options)] if options else None


def _nothing(_simulation: Simulation, _who: int) -> None:
    pass


_WEIGHTS: dict[Callable[[Simulation, int], None], int] = {
    _nothing: 1,
    Simulation._deliver: 26,
    Simulation._deliver_some: 14,
    Simulation._flush: 10,
    Simulation._deliver_twice: 6,
    Simulation._deliver_late_copy: 3,
    Simulation._tick: 8,
    Simulation._pass_time: 4,
    Simulation._start_node: 6,
    Simulation._start_twin: 1,
    Simulation._reconnect: 10,
    Simulation._cut: 5,
    Simulation._notice_cut: 4,
    Simulation._kill: 3,
    Simulation._freeze: 1,
    Simulation._thaw: 2,
    Simulation._terminate: 2,
    Simulation._give_notice: 2,
    Simulation._agree_on_drain: 8,
    Simulation._plan_growth: 8,
    Simulation._fail: 5,
    Simulation._train: 1,
    Simulation._hang: 1,
    Simulation._stick: 1,
    Simulation._finish_stop: 8,
    Simulation._finish: 5,
    Simulation._finish_rank0: 2,
    Simulation._take_snapshots: 6,
    Simulation._replicate: 5,
    Simulation._check: 10,
    Simulation._kill_master: 2,
    Simulation._resign: 2,
    Simulation._start_master: 4,
    Simulation._cut_off_master: 1,
    Simulation._mend_master: 3,
    Simulation._share_work: 16,
}
_ACTIONS = tuple(action for action, weight in _WEIGHTS.items() for _ in range(weight))
_OF_GROWTH: dict[Callable[[Simulation, int], None], int] = {
    Simulation._deliver: 4,
    Simulation._deliver_some: 4,
    Simulation._flush: 6,
    Simulation._deliver_late_copy: 1,
    Simulation._tick: 1,
    Simulation._pass_time: 4,
    Simulation._reconnect: 2,
    Simulation._cut: 1,
    Simulation._notice_cut: 2,
    Simulation._kill: 1,
    Simulation._terminate: 1,
    Simulation._give_notice: 1,
    Simulation._agree_on_drain: 10,
    Simulation._plan_growth: 6,
    Simulation._finish_stop: 4,
    Simulation._take_snapshots: 2,
    Simulation._kill_master: 1,
    Simulation._resign: 1,
    Simulation._start_master: 3,
}
_STEPS_OF_GROWTH = tuple(
    _ACTIONS.index(action) for action, weight in _OF_GROWTH.items() for _ in range(weight)
)
"""What happens while worlds grow, as first bytes of the steps of a history."""


def growing_history(data: bytes) -> bytes:
    """Return the bytes of a history, changed so that only what is of growing worlds happens."""
    steps = bytearray(data)
    steps[::2] = (_STEPS_OF_GROWTH[step % len(_STEPS_OF_GROWTH)] for step in steps[::2])
    return bytes(steps)


def growing_setup(data: bytes) -> bytes:
    """Return the bytes of a setup, changed so that worlds may grow, and all ranks save before."""
    size, restarts, options, start, rules, times = data
    smallest = size % 16 + 16 * (1 + size // 16 % 2)
    return bytes((smallest, restarts, options & ~0b10011, start, rules & ~192, times))


class _WatchedLadder(Ladder):
    """A ladder that tells the invariants what healthy nodes may be blamed for."""

    def __init__(
        self, spec: CheckSpec, nodes: Sequence[str], vouched: Sequence[str], checks: Invariants
    ) -> None:
        super().__init__(spec, nodes, vouched)
        self._checks = checks

    def silent(self, node_id: str, why: str) -> None:
        """A node has not answered in time."""
        super().silent(node_id, why)
        self._checks.was_silent()

    def conclude(self) -> Conclusion:
        """Tell which nodes are ruled out."""
        conclusion = super().conclude()
        for node_id, finding in conclusion.findings.items():
            if finding.exit_code == exit_codes.NODE_EXCLUDED:
                self._checks.was_condemned(node_id)
        return conclusion


def live_through(
    data: bytes, group_factory: Callable[[GroupSettings, str, Examiner], Group] = Group
) -> Simulation:
    """Live through one history, settle, and return the world; raises what went wrong.

    Args:
        data: setup and history.
        group_factory: makes the group; the tests of the tests give a broken one.
    """
    simulation = Simulation(Setup.decode(data[:SETUP_BYTES]), group_factory)
    try:
        simulation.run(data[SETUP_BYTES:])
        simulation.settle()
    except Exception as error:
        error.args = (f"{error}\n" + "\n".join(simulation.trace),)
        raise
    return simulation
