"""A world of hosts, a network that breaks in any shape, clocks that differ, and time.

Around the rules that keep two leaders apart: ``Elector``, ``Search``, ``Fence`` and ``Group``, with
the agents of ``simulated_agent``. The transcripts of ``tests/rendezvous/lease`` and the random
histories of ``simulation`` both drive it. It checks, at every step:

- at most one process has the lease;
- **I10**: no worker is started while one lives that another leader has started or taken over, but
  on a host that is frozen or thaws; and workers without a leader die in time.
"""

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ft_run.events.master import MasterEvent, NodeLost, RoundFormed, RoundTakenOver
from ft_run.rendezvous.group.events import (
    Close,
    Detached,
    Event,
    GroupSettings,
    Received,
    Send,
    Tick,
)
from ft_run.rendezvous.group.group import Group, GroupPhase
from ft_run.rendezvous.group.takeover import TakeoverState
from ft_run.rendezvous.lease.elector import Elector
from ft_run.rendezvous.lease.fence import PAUSE_S, Fence
from ft_run.rendezvous.lease.search import Search
from ft_run.rendezvous.lease.times import LeaseTimes
from ft_run.rendezvous.protocol import bounds, lease_messages
from ft_run.rendezvous.protocol.lease_messages import NO_HOST, LeaseAnswer, LeaseAsk, LeaseStep
from ft_run.rendezvous.protocol.messages import Attend, Challenge, JobSpec, NodeSpec, Start, Stop
from ft_run.tests.harness.invariants import InvariantError
from ft_run.tests.harness.simulated_agent import BROKEN, Agent, Stream
from msgspec.structs import replace

KILL_S = 0.3
"""What a kill takes, at most."""
_LOOK_S = 0.2
_NO_ANSWER_S = 1.0
_RESEND_S = 0.2
_LINGERS_S = 30.0
_CLOSE_S = 2.0
_LAST_WORDS_S = 0.5
"""How long the process of a leader that has resigned delivers its last messages."""


@dataclass(slots=True, eq=False)
class Host:
    """A machine. ``rate`` is the speed of its clock."""

    name: str
    place: int
    """In the list of endpoints; ``NO_HOST``: it is not listed."""
    rate: float = 1.0
    is_on: bool = True
    is_frozen: bool = False
    thawed_at: float = -1e9
    is_node: bool = True
    """False: it runs a master by itself."""
    process: "Process | None" = None


@dataclass(slots=True, eq=False)
class Link:
    """A stream between a node and its leader, and what each end knows of it."""

    stream: Stream
    node: "Process"
    leader: "Process"
    opened: float
    """When the node has begun to connect, by its clock."""
    bad_since: float | None = None
    """Since then no keepalive response gets from one end to the other and back."""
    is_open: dict[bool, bool] = field(default_factory=lambda: {True: True, False: True})
    """By end; True: the leader's."""
    is_moving: set[bool] = field(default_factory=set)
    is_heard: bool = False
    """The leader has said something: it knows of the node."""


class Process:
    """One agent process: node, acceptor, and leader when it has the lease."""

    def __init__(self, world: "World", host: Host, spec: NodeSpec) -> None:
        self.world, self.host = world, host
        self.is_alive = True
        self.is_over = False
        """It has returned its lease, and only delivers its last messages."""
        self.agent = Agent(spec, world.job, world.number, self.clock, repeats_leave=False)
        now, times = self.clock(), world.times
        self.search = Search(world.listed)
        self.fence = Fence(times.fence_s, times.silence_s, now)
        self.elector: Elector | None = None
        if host.place != NO_HOST:
            chance = world.chance.random
            name = f"{host.name}{world.number()}"
            self.elector = Elector(world.listed, host.place, name, times, now, chance)
            self.search.target = host.place
        self.group: Group | None = None
        self.held: list[Send | Close] = []
        """What is said when a majority of the listed hosts knows of the new round."""
        self.links: dict[int, Link] = {}
        """The streams of the nodes that attend here."""
        self.link: Link | None = None
        self.withheld: Start | None = None
        """What came while it looked as if there were no leader."""
        self.is_connecting = False
        self.attempts = 0
        self.alone_since = world.now
        self.under = 0
        """The term of the leader that has started these workers, or knows of them."""
        self.is_dying = False
        self.ends_at: float | None = None
        self.wake = 0

    def clock(self) -> float:
        """Return the time of this host's clock."""
        return self.world.now * self.host.rate

    @property
    def runs(self) -> bool:
        """Whether it can do something now."""
        return self.is_alive and not self.host.is_frozen

    @property
    def name(self) -> str:
        """For people."""
        return self.host.name

    @property
    def has_workers(self) -> bool:
        """Whether one is alive here."""
        return self.is_alive and self.agent.live is not None


class World:
    """See the module's text."""

    def __init__(
        self,
        job: JobSpec,
        times: LeaseTimes,
        *,
        listed: int,
        chance: random.Random,
        latency: Callable[[], float],
    ) -> None:
        self.job, self.times, self.listed = job, times, listed
        self.chance, self.latency = chance, latency
        self.now = 0.0
        self.hosts: list[Host] = []
        self.blocked: set[tuple[Host, Host]] = set()
        self.said: list[str] = []
        self.tells_all = False
        self._numbers = itertools.count(1)
        self._queue: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self.changed_at = 0.0
        """When a host has come, gone, frozen or thawed, or the network has changed, last."""
        self.outdated_at: list[float] = []
        """When leaders have heard from nodes of a term after their own."""

    # --- time --------------------------------------------------------------------------------

    def number(self) -> int:
        """Return a new number."""
        return next(self._numbers)

    def later(self, delay_s: float, action: Callable[..., None], *args: Any) -> None:
        """Let something happen after a while."""
        heapq.heappush(self._queue, (self.now + max(0.0, delay_s), self.number(), action, args))

    def run_until(self, end: float) -> None:
        """Let time pass."""
        while self._queue and self._queue[0][0] <= end:
            self.now, _, action, args = heapq.heappop(self._queue)
            action(*args)
        self.now = end

    def tell(self, text: str) -> None:
        """Write down what happens."""
        self.said.append(f"{self.now:.1f} s  {text}")

    # --- hosts -------------------------------------------------------------------------------

    def add_host(self, name: str, rate: float = 1.0) -> Host:
        """Add a machine; the first ones are those that are listed."""
        place = len(self.hosts) if len(self.hosts) < self.listed else NO_HOST
        host = Host(name, place, rate)
        self.hosts.append(host)
        return host

    def start(self, host: Host) -> None:
        """Start the agent of a host."""
        if host.process is not None and host.process.is_alive:
            return
        self.changed_at = self.now
        host.is_on, number = True, self.hosts.index(host)
        spec = NodeSpec(
            host.name, str(self.number()), host.name, f"10.0.0.{number}", "trainer", 1, None
        )
        host.process = process = Process(self, host, spec)
        self.tell(f"{host.name} starts")
        self._live(process)

    def kill(self, host: Host) -> None:
        """Kill the agent of a host, and its workers with it."""
        process = host.process
        if process is not None and process.is_alive:
            process.is_alive = False
            process.agent.kill()
            self.look()

    def power_off(self, host: Host) -> None:
        """Take a host away: nothing is closed, nothing answers."""
        host.is_on = host.is_frozen = False
        self.kill(host)

    def freeze(self, host: Host) -> None:
        """Stop everything on a host for a while."""
        host.is_frozen = True
        self.look()

    def thaw(self, host: Host) -> None:
        """Let a host go on."""
        if host.is_frozen:
            host.is_frozen, host.thawed_at = False, self.now
            self.look()
            if host.process is not None:
                self._live(host.process)

    def block(self, one: Host, other: Host) -> None:
        """Nothing gets from one host to the other any more."""
        self.blocked.add((one, other))

    def heal(self) -> None:
        """Everything gets everywhere again."""
        self.blocked.clear()
        self.look()

    def sees(self, one: Host, other: Host) -> bool:
        """Return whether something gets from one host to the other."""
        return one.is_on and other.is_on and (one is other or (one, other) not in self.blocked)

    def see_each_other(self, one: Host, other: Host) -> bool:
        """Return whether something gets there and back."""
        return self.sees(one, other) and self.sees(other, one)

    def processes(self) -> list[Process]:
        """Return those that are alive."""
        return [h.process for h in self.hosts if h.process is not None and h.process.is_alive]

    # --- one process -------------------------------------------------------------------------

    def _live(self, process: Process) -> None:
        """What a process does by itself, every moment."""
        process.wake += 1
        wake = process.wake
        if not process.runs or process.is_over:
            return
        self._fence(process)
        if process.elector is not None:
            self._elect(process, process.elector)
        if process.group is not None:
            deadline = process.group.deadline()
            if deadline is not None and deadline <= process.clock():
                self._handle(process, Tick())
        withheld, link = process.withheld, process.link
        if withheld is not None and link is not None and not process.fence.is_down(process.clock()):
            self._take_down(link, withheld)
        self._look_at_agent(process)
        self.later(self._next_look(process), self._if_current, process, wake)

    def _if_current(self, process: Process, wake: int) -> None:
        if process.wake == wake and process.is_alive:
            self._live(process)

    def _next_look(self, process: Process) -> float:
        """Return the seconds until a process wants to do something: its own clock says when."""
        now = process.clock()
        at: list[float] = [now + _LOOK_S]
        if not process.fence.is_down(now):
            at.append(process.fence.deadline())
        if process.elector is not None:
            at.append(process.elector.deadline())
        if process.group is not None and (deadline := process.group.deadline()) is not None:
            at.append(deadline)
        return max(0.001, (min(at) - now) / process.host.rate)

    def _fence(self, process: Process) -> None:
        if process.fence.tick(process.clock()) and process.has_workers and not process.is_dying:
            self.tell(f"{process.name} has no leader: it kills its workers")
            process.is_dying = True
            self.later(self.chance.random() * KILL_S, self._killed, process)
        if process.has_workers:
            self._check_alone(process)

    def _killed(self, process: Process) -> None:
        if not process.runs:
            if process.is_alive:
                self.later(0.05, self._killed, process)
            return
        process.is_dying = False
        if process.has_workers:
            process.agent.is_stopping = True
            process.agent.finish_stop()
            self._pump_node(process)

    def _look_at_agent(self, process: Process) -> None:
        agent = process.agent
        if not process.host.is_node or process.is_over:
            return
        if agent.is_stopping and not process.is_dying:
            process.is_dying = True
            self.later(self.chance.random() * KILL_S, self._killed, process)
        if agent.has_ended:
            self._end(process)
        elif process.link is None and not process.is_connecting:
            self._connect(process)
        self._pump_node(process)

    def _end(self, process: Process) -> None:
        """The node has left: its master is needed for a moment longer, then the lease goes back."""
        if process.ends_at is None:
            process.ends_at = self.now + _LINGERS_S
        link, closing_s = process.link, self.now + _LINGERS_S - process.ends_at
        if link is not None and link.stream.up and closing_s < _CLOSE_S:
            return  # as ``GrpcLink.close``, which lets the leader take what was sent
        group = process.group
        if group is not None and not group.is_settled and self.now < process.ends_at:
            return
        if group is not None and group.verdict is None:
            self._step_down(process)
        if process.elector is not None:
            self._ask(process, process.elector.give_back(process.clock()))
        self.tell(f"{process.name} ends")
        process.is_over = True
        self.later(_LAST_WORDS_S, self._exit, process)

    def _exit(self, process: Process) -> None:
        if process.host.process is process:
            self.kill(process.host)

    # --- which host leads --------------------------------------------------------------------

    def _elect(self, process: Process, elector: Elector) -> None:
        now = process.clock()
        self._ask(process, elector.due(now))
        self._use_lease(process, elector)

    def _use_lease(self, process: Process, elector: Elector) -> None:
        now, group = process.clock(), process.group
        if process.is_over:
            return
        if elector.leads(now):
            others = [p for p in self.processes() if p is not process and p.elector is not None]
            for other in others:
                assert other.elector is not None
                if other.elector.leads(other.clock()):
                    raise InvariantError(f"I10: {process.name} and {other.name} have the lease")
        holds = elector.leads(now)
        is_led = holds and group is not None and group.state.settings.term == elector.term
        if group is not None and group.verdict is None and not is_led:
            self._step_down(process)
        if holds and process.group is None:
            self.tell(f"{process.name} leads, term {elector.term}")
            settings = GroupSettings(
                takeover_grace_s=self.times.takeover_grace_s,
                term=elector.term,
                known=elector.known,
                quorum_term=elector.quorum_term,
                wait_s=self.times.wait_s,
                starts_from=now + self.times.wait_s,
                join_timeout_s=1e6,
                last_call_timeout_s=3.0,
                drain_timeout_s=0.0,  # its workers save nothing
            )
            process.group = Group(settings, f"{process.name}-{elector.term}")
        group = process.group
        if group is not None and holds and elector.is_first and group.state.starts_from > now:
            self.tell(f"{process.name} is the first leader: it does not wait")
            group.end_wait()
            self._handle(process, Tick())

    def _step_down(self, process: Process) -> None:
        self.tell(f"{process.name} is no longer the leader")
        group, process.group = process.group, None
        assert group is not None
        process.held.clear()
        last_words = group.resign(process.clock())
        links, process.links = process.links, {}
        for command in last_words:
            if isinstance(command, Send) and command.link in links:
                links[command.link].stream.send_down(command.message)
        for link in links.values():
            link.is_open[True] = False
            link.stream.end_down()
            self._pump(link)

    def _ask(self, process: Process, ask: LeaseAsk | None) -> None:
        if ask is None:
            return
        for host in self.hosts[: self.listed]:
            if host is not process.host:
                self.later(self.latency(), self._asked, process, host, ask)

    def _asked(self, asks: Process, host: Host, ask: LeaseAsk) -> None:
        process = host.process
        if not self.sees(asks.host, host) or process is None or not process.is_alive:
            return
        if host.is_frozen:  # it lies in a buffer until then
            self.later(0.3, self._asked, asks, host, ask)
            return
        if (answer := self._take(process, ask)) is not None:
            self.later(self.latency(), self._answered, asks, host, ask, answer)

    def _take(self, process: Process, ask: LeaseAsk) -> LeaseAnswer | None:
        """Let a listed host answer, unless it sends what makes no sense away."""
        assert process.elector is not None
        try:
            lease_messages.check(ask, self.listed)
            answer = process.elector.answer(ask, process.clock())
            lease_messages.check(answer, self.listed)
        except bounds.OutOfBounds:
            return None
        return answer

    def forge(self, host: Host, step: LeaseStep, number: int, number_of_round: int = -1) -> None:
        """A stranger asks a listed host as another one would."""
        lease_ms = round(self.times.lease_s * 1000)
        ask = LeaseAsk(step, 0, "stranger", number, number, lease_ms, number_of_round)
        if host.process is not None and host.process.runs:
            self._take(host.process, ask)

    def forge_term(self, host: Host, term: int) -> None:
        """A stranger comes to a listed host as a node that has followed that term."""
        process = host.process
        if process is not None and process.runs and process.elector is not None:
            self._ask(process, process.elector.observe(term, process.clock()))
            self._use_lease(process, process.elector)

    def _answered(self, asked: Process, host: Host, ask: LeaseAsk, answer: Any) -> None:
        if not asked.is_alive or not self.sees(host, asked.host):
            return
        if asked.host.is_frozen:
            self.later(0.3, self._answered, asked, host, ask, answer)
            return
        assert asked.elector is not None
        self._ask(asked, asked.elector.receive(host.place, ask, answer, asked.clock()))
        self._use_lease(asked, asked.elector)
        self._say_what_is_held(asked)

    # --- the search --------------------------------------------------------------------------

    def _connect(self, process: Process) -> None:
        process.is_connecting = True
        host = self.hosts[process.search.target]
        takes_s = self.latency() * 2
        is_there = self.see_each_other(process.host, host) and not host.is_frozen
        if not is_there:
            takes_s = _NO_ANSWER_S
        self.later(takes_s, self._connected, process, host, is_there)

    def _connected(self, process: Process, host: Host, is_there: bool) -> None:
        if not process.runs:
            process.is_connecting = False
            return
        self._fence(process)
        other = host.process
        is_there &= self.see_each_other(process.host, host) and not host.is_frozen
        if not is_there or other is None or not other.is_alive or other.elector is None:
            process.search.failed()
            self._try_again(process)
            return
        now = other.clock()
        if (release := other.elector.observe(process.search.term, now)) is not None:
            self.outdated_at.append(self.now)
            self._ask(other, release)
        self._use_lease(other, other.elector)
        if other.group is None or not other.elector.leads(now):
            place, term = other.elector.leader(now) or (NO_HOST, 0)
            process.search.led_by(place, term)
            self._try_again(process)
        elif not process.search.may_follow(other.elector.term):
            self._try_again(process)
        else:
            process.is_connecting, process.attempts = False, 0
            self._attend(process, other)

    def _try_again(self, process: Process) -> None:
        process.attempts += 1
        pause_s = min(1.0, 0.1 * 2.0 ** min(process.attempts, 10)) * 0.75
        self.later(pause_s, self._may_try, process)

    def _may_try(self, process: Process) -> None:
        process.is_connecting = False

    def _attend(self, process: Process, leader: Process) -> None:
        stream = process.agent.attend(self.number())
        process.link = link = Link(stream, process, leader, process.clock())
        leader.links[stream.number] = link
        self._look_at_link(link)
        self._pump(link)

    # --- streams -----------------------------------------------------------------------------

    def look(self) -> None:
        """Something about hosts or network has changed: every stream notices in its time."""
        self.changed_at = self.now
        for process in [h.process for h in self.hosts if h.process is not None]:
            if process.link is not None:
                self._look_at_link(process.link, is_again=False)

    def _look_at_link(self, link: Link, *, is_again: bool = True) -> None:
        node, leader = link.node, link.leader
        if link.is_open[True] or link.is_open[False]:
            if is_again:
                self.later(_LOOK_S, self._look_at_link, link)
        else:
            return
        meet = self.see_each_other(node.host, leader.host)
        if meet and node.runs and leader.runs:
            link.bad_since = None
            is_closed = {end: not link.is_open[end] for end in (True, False)}
            if is_closed[False] or (is_closed[True] and not link.stream.down):
                self._break(link)
            return
        if link.bad_since is None:
            link.bad_since = self.now
        for process, end, peer in ((leader, True, node), (node, False, leader)):
            silent_s = (self.now - link.bad_since) * process.host.rate
            is_reset = meet and not peer.is_alive
            if process.runs and (is_reset or silent_s >= self.times.silence_s):
                self._close(link, end)

    def _break(self, link: Link) -> None:
        for end in (True, False):
            self._close(link, end)

    def _close(self, link: Link, end: bool) -> None:
        if not link.is_open[end]:
            return
        link.is_open[end] = False
        if end:
            link.leader.links.pop(link.stream.number, None)
            if link.leader.group is not None and link.leader.is_alive:
                self._handle(link.leader, Detached(link.stream.number))
        elif link.node.is_alive:
            self._lost(link)

    def _lost(self, link: Link) -> None:
        """The node has noticed that its stream is no more."""
        node = link.node
        link.is_open[False] = False
        if node.link is link:
            node.alone_since = self.now if link.bad_since is None else link.bad_since
            node.link = node.withheld = None
            node.agent.receive(link.stream, BROKEN)
            self._fence(node)
            node.fence.lost(node.clock())

    def _pump_node(self, process: Process) -> None:
        if process.link is not None:
            self._pump(process.link)

    def _pump(self, link: Link) -> None:
        for is_up, queue in ((True, link.stream.up), (False, link.stream.down)):
            if queue and is_up not in link.is_moving:
                link.is_moving.add(is_up)
                self.later(self.latency(), self._move, link, is_up)

    def _move(self, link: Link, is_up: bool) -> None:
        """The first message of a direction arrives, if it can."""
        link.is_moving.discard(is_up)
        queue: Any = link.stream.up if is_up else link.stream.down
        sender, receiver = (link.node, link.leader) if is_up else (link.leader, link.node)
        is_lost = not receiver.is_alive or (not sender.host.is_on)
        if is_lost or not queue or (is_up and not link.is_open[True]):
            queue.clear()
            return
        if not is_up and not link.is_open[False]:
            queue.clear()
            return
        if not self.sees(sender.host, receiver.host) or receiver.host.is_frozen:
            link.is_moving.add(is_up)
            self.later(_RESEND_S, self._move, link, is_up)
            return
        message = queue.popleft()
        if is_up:
            self._take_up(link, message)
        else:
            self._take_down(link, message)
        self._pump(link)

    def _take_up(self, link: Link, message: Any) -> None:
        leader = link.leader
        if message is BROKEN:
            self._close(link, True)
        elif leader.group is not None and link.stream.number in leader.links:
            assert leader.elector is not None
            self._use_lease(leader, leader.elector)
            if leader.group is not None:
                if isinstance(message, Attend):
                    link.stream.send_down(Challenge())  # as ``Master`` does
                link.node.under = max(link.node.under, leader.group.state.settings.term)
                self._handle(leader, Received(link.stream.number, message))

    def _take_down(self, link: Link, message: Any) -> None:
        node = link.node
        self._fence(node)
        if message is BROKEN:
            self._lost(link)
            return
        if not link.is_heard:
            link.is_heard = True
            node.fence.found(node.clock(), link.opened)
        if isinstance(message, Start | Stop):
            node.withheld = None
        if isinstance(message, Start) and node.fence.is_down(node.clock()):
            node.withheld = message
            return
        if node.agent.receive(link.stream, message):
            node.is_dying = False
            self._started(node)
        self._look_at_agent(node)

    def _handle(self, leader: Process, event: Event) -> None:
        group, elector = leader.group, leader.elector
        assert group is not None
        assert elector is not None
        before = group.state.newest
        commands = group.handle(event, leader.clock())
        for command in commands:
            if isinstance(command, MasterEvent):
                self._noted(leader, command)
            elif isinstance(command, Send | Close):
                leader.held.append(command)
        self._say_what_is_held(leader)
        if group.state.newest != before:
            self._ask(leader, elector.announce(group.state.newest, leader.clock()))

    def _say_what_is_held(self, leader: Process) -> None:
        group, elector = leader.group, leader.elector
        if group is None or elector is None or elector.announced < group.state.formed:
            return
        held, leader.held = leader.held, []
        for command in held:
            if isinstance(command, Send) and (link := leader.links.get(command.link)) is not None:
                link.stream.send_down(command.message)
                self._pump(link)
            elif isinstance(command, Close):
                closed = leader.links.pop(command.link, None)
                if closed is not None:
                    closed.is_open[True] = False
                    closed.stream.end_down()
                    self._pump(closed)
                    self._handle(leader, Detached(command.link))

    def _noted(self, leader: Process, note: MasterEvent) -> None:
        if isinstance(note, RoundFormed):
            self.tell(f"{leader.name} forms round {note.round} of {note.nodes} nodes")
        elif isinstance(note, RoundTakenOver):
            self.tell(f"{leader.name} takes round {note.round} over: {note.finding}")
            if note.finding == TakeoverState.COMPLETE.value:
                self._check_others(leader, note.round)
        elif isinstance(note, NodeLost):
            self.tell(f"{leader.name} gives {note.node_id} up")

    # --- what must hold ----------------------------------------------------------------------

    def _started(self, node: Process) -> None:
        """Check I10: workers of a round have been started."""
        assert node.agent.assignment is not None
        at = node.agent.assignment
        node.under = at.term
        self.tell(f"{node.name} starts workers of round {at.round}, term {at.term}")
        for other in self.processes():
            of = other.agent.assignment
            if of is not None and (of.term, of.round) == (at.term, at.round):
                continue  # of one world: this start was on its way when the leader gave up
            if other.under != at.term and self._counts(other):
                raise InvariantError(
                    f"I10: {node.name} starts workers of term {at.term} while {other.name} has "
                    f"workers under term {other.under}"
                )

    def _check_others(self, leader: Process, number: int) -> None:
        """Check I10: a round has been taken over as it is."""
        assert leader.elector is not None
        assert leader.group is not None
        # The leader that formed the round had given the others up itself: they die by the fence.
        terms = (leader.elector.term, leader.group.state.term)
        for other in self.processes():
            is_led = other.under in terms
            if other.agent.live != number and not is_led and self._counts(other):
                raise InvariantError(
                    f"I10: {leader.name} takes round {number} over while {other.name} has workers "
                    f"of round {other.agent.live} under term {other.under}"
                )

    def _counts(self, process: Process) -> bool:
        """Whether a process has workers, and its host is not frozen and does not thaw."""
        thaws = process.host.is_frozen or self.now - process.host.thawed_at <= 2 * KILL_S
        return process.has_workers and not thaws

    def _check_alone(self, process: Process) -> None:
        link = process.link
        since = process.alone_since if link is None else link.bad_since
        if since is None or not process.runs or self.now - process.host.thawed_at <= 2 * KILL_S:
            return
        longest = (self.times.silence_s + PAUSE_S + self.times.fence_s) / 0.95
        longest += 2 * KILL_S + _LOOK_S
        if self.now - since > longest:
            raise InvariantError(f"I10: workers of {process.name} outlive their leader")

    def running(self) -> Group | None:
        """Return the group whose round runs on all its members now."""
        for process in self.processes():
            group = process.group
            if group is None or group.phase is not GroupPhase.RUNNING:
                continue
            members = [p for p in self.processes() if p.agent.live == group.round]
            if len(members) == group.state.world_nodes and len(members) >= self.job.min_nodes:
                return group
        return None


def job_of(minimum: int, maximum: int, max_restarts: int = 1000) -> JobSpec:
    """Return a job of so many nodes."""
    return replace(JobSpec("job", minimum, maximum, 1, max_restarts), rescale_delay_s=5.0)
