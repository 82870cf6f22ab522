"""The master: the group's rules with a clock and streams around them.

It is independent of gRPC: ``server`` attaches network streams to it, ``link.LocalLink`` the agent
in the same process. Everything runs on one asyncio loop, without locks and without blocking.
"""

import asyncio
import os
import time
from collections.abc import Callable

from msgspec.structs import replace

from ...events.master import MasterEvent, NodeRefused
from ..diagnosis.hang_inquiry import HangInquiry
from ..diagnosis.stack_calls import StackCalls, Whereabouts
from ..group.events import (
    Close,
    Command,
    Detached,
    Event,
    Finish,
    GroupSettings,
    Received,
    Renewed,
    Send,
    Tick,
)
from ..group.examination import Examiner
from ..group.group import Group
from ..protocol.messages import (
    Attend,
    Challenge,
    MasterMessage,
    NodeMessage,
    Verdict,
)
from ..protocol.offer import Offer
from ..protocol.stacks import StackOrder, StackReport, Suspicion
from ..protocol.status import WorkProgress
from ..protocol.steps import StepsOrder, StepsReport
from .job import Job

Deliver = Callable[[MasterMessage | None], None]
"""Receives the messages for one stream, in order; None ends the stream after them."""

Renew = Callable[[Attend], Offer | None]
"""Returns the new offer of the node in this process when another node joins; None if unchanged."""

STEPS_S = 1.0
"""Time limit for nodes to report their workers' steps: they only read numbers."""


class Lease:
    """The right of a master to lead: this one is the only master of its job."""

    def holds(self) -> bool:
        """Return whether the lease is still valid; if not, the master is closed."""
        return True

    def announce(self, newest: tuple[int, int]) -> None:
        """Announce the newest round to the other hosts, by term and number."""

    def is_announced(self, formed: tuple[int, int]) -> bool:  # noqa: ARG002 - there is no other host
        """Return whether a majority of the hosts knows a round."""
        return True


ALONE = Lease()
_REASONS_LOGGED = 32
"""Refusals are logged once per reason, so that a peer with many reasons does not fill the
console."""


class Master:
    """Drives a ``Group`` with real time and real streams."""

    def __init__(
        self,
        settings: GroupSettings,
        note: Callable[[MasterEvent], None],
        clock: Callable[[], float] = time.monotonic,
        examiner: Examiner | None = None,
        lease: Lease = ALONE,
        ended: Callable[[Verdict], None] = lambda _: None,
        changed: "Callable[[Master], None] | None" = None,
    ) -> None:
        """Create a master on the running event loop.

        ``clock`` is in monotonic seconds; ``note`` gets each event; ``ended`` is called when every
        connected node has received the verdict, ``changed`` after each event of the group.
        """
        self._lease = lease
        self._held: list[Command] = []
        """Messages that wait until a majority of the listed hosts knows the new round."""
        self.group = Group(settings, os.urandom(8).hex(), examiner)
        self._job = Job(self.group)
        self.started_at = clock()
        self.round_started_at = self.started_at
        self._note = note
        self._ended = ended
        self._changed = changed
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._streams: dict[int, Deliver] = {}
        self._calls = StackCalls(self._send)
        self._hangs = HangInquiry(self.group, self.whereabouts, self._send, self._handle)
        self._logged_reasons: set[str] = set()
        self._next_link = 0
        self._own: tuple[int, Renew] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at: float | None = None
        self.is_closed = False
        """Whether it ignores all events."""
        self._handled = asyncio.Event()
        self._finished: asyncio.Future[Verdict] = self._loop.create_future()

    def attach(self, deliver: Deliver, renew: Renew | None = None) -> int:
        """Add a stream; return its number. ``renew`` renews the offer of this process's node."""
        self._next_link += 1
        self._streams[self._next_link] = deliver
        if renew is not None:
            self._own = self._next_link, renew
        return self._next_link

    def receive(self, link: int, message: NodeMessage) -> None:
        """Process a message of a stream; drop it if the stream has ended."""
        if link not in self._streams:
            return
        if isinstance(message, StackReport):
            self._calls.take(link, self._own_stacks(link, message))
        elif isinstance(message, Suspicion):
            self._hangs.suspect(link, message)
        elif isinstance(message, StepsReport):
            self._calls.take(link, self._own_steps(link, message))
        else:
            if isinstance(message, Attend) and self._lease is not ALONE and self._lease.holds():
                self._send(link, Challenge())  # confirms that the leader has received it
            if isinstance(message, Attend):
                self._renew(link, message)
            self._handle(Received(link, message))

    def _renew(self, link: int, attend: Attend) -> None:
        """Renew the offer of the node in this process, as the new node may complete a world."""
        if self._own is None or self._own[0] == link or self._own[0] not in self._streams:
            return
        own, renew = self._own
        if (offer := renew(attend)) is not None:
            self._handle(Renewed(own, offer))

    def _own_stacks(self, link: int, report: StackReport) -> StackReport:
        """Return a report without the ranks of other nodes, each rank once."""
        node = self.group.roster.by_link(link)
        if node is None or node.rank is None:
            return replace(report, stacks=())
        rank, host = node.rank, node.spec.host
        own = {stack.rank: stack for stack in report.stacks if node.has_rank(stack.rank)}
        placed = (replace(stack, node_rank=rank, host=host) for stack in own.values())
        return replace(report, stacks=tuple(placed))

    def _own_steps(self, link: int, report: StepsReport) -> StepsReport:
        node = self.group.roster.by_link(link)
        own = {rank.rank: rank for rank in report.workers if node and node.has_rank(rank.rank)}
        return replace(report, workers=tuple(own.values()))

    def detach(self, link: int) -> None:
        """Record that a stream has ended."""
        self._calls.gone(link)
        if self._streams.pop(link, None) is not None:
            self._handle(Detached(link))

    async def whereabouts(self, inquiry: int = 0) -> Whereabouts:
        """Return the current stacks of the round's workers, from nodes that respond in time.

        ``inquiry`` is as in ``StackOrder``.
        """
        nodes, away = {}, []
        for node in self.group.roster:
            if node.rank is not None and node.round == self.group.round:
                name = f"node {node.rank} ({node.spec.host})"
                if node.link is not None:
                    nodes[node.link] = name
                else:
                    away.append(name)
        return await self._calls.ask(StackOrder(0, inquiry), nodes, away)

    async def steps(self, *, only_first: bool = False) -> Whereabouts:
        """Return the steps of watched ranks, and the newest checkpoint.

        Nodes that do not respond immediately are left out. ``only_first``: query only the node with
        rank 0, which is one message for any number of nodes.
        """
        nodes = {
            node.link: node.spec.node_id
            for node in self.group.roster
            if node.link is not None and node.round == self.group.round
            if node.rank == 0 or not only_first
        }
        return await self._calls.ask(StepsOrder(0), nodes, timeout_s=STEPS_S)

    def refused(self, refusal: NodeRefused) -> None:
        """Log that a node was refused, once per reason."""
        if refusal.sentence in self._logged_reasons or len(self._logged_reasons) >= _REASONS_LOGGED:
            return
        self._logged_reasons.add(refusal.sentence)
        self._note(refusal)

    async def finished(self) -> Verdict:
        """Return the verdict when every connected node has received it."""
        return await asyncio.shield(self._finished)

    async def settled(self) -> None:
        """Return when nothing that needs a master is pending (``Group.is_settled``)."""
        while not self.group.is_settled:
            self._handled.clear()
            await self._handled.wait()

    def close(self) -> None:
        """Stop the clock and end all streams; later events are ignored."""
        if not self.is_closed:
            for command in self.group.resign(self._clock()):
                self._carry_out(command)
        self.is_closed = True
        self._hangs.close()
        if self._timer is not None:
            self._timer.cancel()
        for deliver in self._streams.values():
            deliver(None)
        self._streams.clear()
        self._held.clear()

    def end_wait(self) -> None:
        """Allow rounds immediately, because no earlier leader has started a worker."""
        self.group.end_wait()
        self._handle(Tick())

    def release(self) -> None:
        """Send the held messages, if a majority knows the round now."""
        if not self._lease.is_announced(self.group.state.formed):
            return
        held, self._held = self._held, []
        for command in held:
            self._carry_out(command)

    def now(self) -> float:
        """Return the group's time, in seconds."""
        return self._clock()

    def progress(self) -> tuple[WorkProgress, ...]:
        """Return the progress of what the job does next to its steps."""
        return self._job.work.progress(self._clock())

    def uptime_s(self) -> tuple[float, float]:
        """Return the seconds since the master started, and since its round was formed."""
        now = self._clock()
        return now - self.started_at, now - self.round_started_at

    def _handle(self, event: Event) -> None:
        if self.is_closed or not self._lease.holds():
            return
        round_before, newest_before = self.group.round, self.group.state.newest
        self._held += self._job.handle(event, self._clock())
        if self.group.round != round_before:
            self.round_started_at = self._clock()
        self.release()  # messages that need no announcement first
        if self.group.state.newest != newest_before:
            self._lease.announce(self.group.state.newest)
        self._set_timer()
        self._handled.set()
        if self._changed is not None:
            self._changed(self)

    def _carry_out(self, command: Command) -> None:
        match command:
            case Send(link, message):
                self._send(link, message)
            case Close(link):
                deliver = self._streams.pop(link, None)
                if deliver is not None:
                    deliver(None)
                    self._loop.call_soon(self._handle, Detached(link))
            case NodeRefused():
                self.refused(command)
            case MasterEvent():
                self._note(command)
            case Finish(verdict):
                if not self._finished.done():
                    self._finished.set_result(verdict)
                    self._ended(verdict)

    def _send(self, link: int, message: MasterMessage) -> None:
        deliver = self._streams.get(link)
        if deliver is not None:
            deliver(message)

    def _set_timer(self) -> None:
        deadline = self.group.deadline()
        if deadline == self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_at = deadline
        if deadline is not None:
            delay = max(0.0, deadline - self._clock())
            self._timer = self._loop.call_later(delay, self._tick)

    def _tick(self) -> None:
        self._timer = self._timer_at = None
        self._handle(Tick())
