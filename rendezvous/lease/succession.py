"""One listed host: its vote, and the master while it leads.

``elector`` has the rules. This module has its clock, its tasks and the master, which is created
with each lease and closed before the lease expires. The calls to the other hosts are passed in.
"""

import asyncio
import os
import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from msgspec import Struct
from msgspec.structs import replace

from ... import defaults
from ...tasks import show_bug
from ..group.admission import succession_differences
from ..group.events import GroupSettings
from ..master.master import Lease, Master
from ..protocol.endpoint import Endpoint
from ..protocol.lease_messages import (
    NO_HOST,
    NO_ROUND,
    LeaseAnswer,
    LeaseAsk,
    LeaseStep,
    SuccessionSpec,
)
from ..protocol.messages import Verdict
from .elector import Elector
from .times import LeaseTimes

_LAST_WORDS_S = 0.5
"""Time for the other hosts to receive the release of a lease."""

_DIFFERS_S = 2 * defaults.VERDICT_GRACE_S
"""A host with different options may belong to the previous job, whose master runs for at most this
time."""


class OtherOptionsError(Exception):
    """Raised if another listed host has different options."""

    def __init__(self, sentence: str, spec: SuccessionSpec) -> None:
        super().__init__(sentence)
        self.spec = spec
        """The options of that host."""


class HostCalls(Protocol):
    """Calls the other listed hosts."""

    async def ask(self, host: int, ask: LeaseAsk) -> LeaseAnswer | None:
        """Return a valid answer in time, else None; raise ``OtherOptionsError`` on a mismatch."""

    async def close(self) -> None:
        """Close the connections to the other hosts."""


class Greeting(NamedTuple):
    """The first message to a node."""

    term: int
    led_by: int | None = None
    """The host that leads, -1 for none; None for this host."""
    spec: SuccessionSpec | None = None
    """Options of this host, if it knows that they are those of the job."""


class _Rival(Struct):
    """A listed host with different options, as long as it answers."""

    since: float
    last: float
    """When its last message arrived."""
    sentence: str
    is_other_list: bool
    """Whether its list of hosts differs, so that each list may have its own majority."""


class Succession(Lease):
    """See the module docstring. Everything runs on one event loop."""

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        own: int,
        times: LeaseTimes,
        settings: GroupSettings,
        new_master: Callable[[GroupSettings, Lease], Master],
        led: Callable[[int], None],
        found_same: Callable[[Sequence[Endpoint]], None],
        calls: HostCalls,
    ) -> None:
        """Start without knowledge of the other hosts; ``start`` lets it vote.

        Args:
            own: position of this host in ``endpoints``.
            settings: settings of the group that do not follow from the election, including the
                options that must be the same on all hosts.
            new_master: creates the master when this host is elected.
            led: called with the term when this host starts to lead, and with 0 when it stops.
            found_same: called with endpoints that turn out to be this same process.
        """
        self.endpoints, self.own = endpoints, own
        self._times, self._settings = times, settings
        self._new_master, self._led, self._hosts = new_master, led, calls
        self._found_same = found_same
        assert settings.succession is not None
        self._spec = settings.succession
        self._process = os.urandom(8).hex()
        self._elector = Elector(len(endpoints), own, self._process, times, _now(), random.random)
        self.master: Master | None = None
        self.over: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        """Exit code of the job, when its leader has reported its end."""
        self.refused: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Why this host cannot take part: other hosts have different options."""
        self._rival: _Rival | None = None
        self._same: set[int] = set()
        """Positions of other endpoints that are also this process: it has their votes."""
        self._has_ended = False
        self._timer: asyncio.TimerHandle | None = None
        self._calls: set[asyncio.Task[None]] = set()

    # --- calls by the server -------------------------------------------------------------------

    def answer(self, ask: LeaseAsk, theirs: SuccessionSpec) -> LeaseAnswer:
        """Answer another host; raise ``OtherOptionsError`` if its options (``theirs``) differ."""
        if theirs != self._spec:
            raise OtherOptionsError("this host has different options", theirs)
        if ask.host in self._same and ask.process != self._process:
            self._differs(ask.host, self._spec, self.spec_seen)
            sentence = "this host is reached at the endpoint of the requesting host"
            raise OtherOptionsError(sentence, theirs)
        answer = self._elector.answer(ask, _now())
        if ask.step is LeaseStep.END and answer.accepted and not self.over.done():
            self.over.set_result(ask.exit_code)
            if self._timer is not None:
                self._timer.cancel()
        self._turn()
        return answer

    def greeting(self, followed: int) -> Greeting:
        """Return the first message to a node that has followed a leader of this term."""
        self._ask(self._elector.observe(followed, _now()))
        self._turn()
        if (master := self.leading()) is not None:
            return Greeting(master.group.settings.term)
        position, term = self.leader() or (NO_HOST, 0)
        return Greeting(term, position, None if position == NO_HOST else self._spec)

    @property
    def spec_seen(self) -> SuccessionSpec:
        """This host's options, with one name for all endpoints that are this process."""
        hosts = range(len(self.endpoints))
        seen = [self.own if host in self._same else host for host in hosts]
        return replace(self._spec, endpoints=",".join(str(self.endpoints[host]) for host in seen))

    def lease_left_s(self) -> float:
        """Return how long this host can rely on its lease, in seconds; 0 if it does not lead."""
        return self._elector.lease_left_s(_now())

    def leader_in_words(self) -> str:
        """Return a message that names the host to ask."""
        leader = self.leader()
        return (
            "there is no leader now"
            if leader is None
            else f"the leader is {self.endpoints[leader[0]]}"
        )

    def leading(self) -> Master | None:
        """Return the master, if this host leads."""
        self._use_lease()
        return self.master

    def leader(self) -> tuple[int, int] | None:
        """Return host and term of the leader, as far as this host knows."""
        return self._elector.leader(_now())

    # --- the master's lease --------------------------------------------------------------------

    def holds(self) -> bool:
        """Return whether the lease is valid; a master with a verdict continues to send it."""
        master = self.master
        if master is None:
            return False
        term = master.group.settings.term
        leads = self._elector.leads(_now()) and self._elector.term == term
        if not leads and master.group.verdict is None:
            self._step_down()
            return False
        return True

    def announce(self, newest: tuple[int, int]) -> None:
        """Send the newest round to the other hosts."""
        self._ask(self._elector.announce(newest, _now()))

    def is_announced(self, formed: tuple[int, int]) -> bool:
        """Return whether a majority knows the round; a verdict does not need a lease."""
        has_ended = self.master is not None and self.master.group.verdict is not None
        return has_ended or self._elector.announced >= formed

    # --- tasks ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Vote, and lead when no other host does."""
        self._turn()

    async def stop(self, verdict: Verdict | None = None) -> None:
        """Release the lease and end.

        ``verdict`` is the one that all nodes have received; None if the job has not ended.
        """
        if self.master is not None:
            self._step_down()
        exit_code = None if verdict is None else verdict.exit_code
        self._ask(self._elector.give_back(_now(), exit_code))
        self._has_ended = True
        if self._timer is not None:
            self._timer.cancel()
        if self._calls:
            await asyncio.wait(self._calls, timeout=_LAST_WORDS_S)
        for call in self._calls:
            call.cancel()
        await self._hosts.close()

    def _turn(self) -> None:
        """Process expired deadlines; a host whose job has ended only votes."""
        if self._has_ended or self.over.done():
            return
        self._ask(self._elector.due(_now()))
        self._face_rival()
        self._use_lease()
        if self._timer is not None:
            self._timer.cancel()
        delay_s = max(0.01, self._elector.deadline() - _now())
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._turn)

    def _use_lease(self) -> None:
        if (rival := self._rival) is not None and rival.is_other_list:
            if self.master is not None and self.master.group.verdict is None:
                self._step_down()
            self._ask(self._elector.give_back(_now()))
            return
        if self.master is not None and not self.holds():
            return
        if not self._elector.leads(_now()) or self._has_ended or self.over.done():
            return
        if self.master is None:
            settings = replace(
                self._settings,
                term=self._elector.term,
                known=self._elector.known,
                quorum_term=self._elector.quorum_term,
                wait_s=self._times.wait_s,
                starts_from=time.monotonic() + self._times.wait_s,
                takeover_grace_s=self._times.takeover_grace_s,
            )
            self.master = self._new_master(settings, self)
            self._led(settings.term)
        if self._elector.is_first and self.master.group.is_waiting:
            self.master.end_wait()
        self.master.release()

    def _step_down(self) -> None:
        master, self.master = self.master, None
        assert master is not None
        master.close()
        self._led(0)

    # --- calls to other hosts ----------------------------------------------------------------

    def _ask(self, ask: LeaseAsk | None) -> None:
        if ask is None or self._has_ended:
            return
        for host in range(len(self.endpoints)):
            if host != self.own:
                call = asyncio.create_task(self._call(host, ask))
                self._calls.add(call)
                call.add_done_callback(self._calls.discard)
                call.add_done_callback(partial(show_bug, "the election"))

    async def _call(self, host: int, ask: LeaseAsk) -> None:
        try:
            answer = await self._hosts.ask(host, ask)
        except OtherOptionsError as other:
            if not self._has_ended:
                self._differs(host, other.spec, self._spec)
            return
        if answer is None or self._has_ended:
            return
        if answer.host == self.own and host not in self._same:
            self._same.add(host)
            self._found_same([self.endpoints[one] for one in sorted({self.own, *self._same})])
        self._ask(self._elector.receive(host, ask, answer, _now()))
        self._turn()

    # --- hosts with different options --------------------------------------------------------

    def _differs(self, host: int, theirs: SuccessionSpec, own: SuccessionSpec) -> None:
        """Record a host with different options, whose vote does not count."""
        where = str(self.endpoints[host])
        differences = succession_differences(own, theirs, where, both_lead=True)
        is_other_list = theirs.endpoints != own.endpoints
        now, before = _now(), self._rival
        since = now if before is None else before.since
        sentence = f"this host's options differ: {', '.join(differences)}."
        self._rival = _Rival(since, now, sentence, is_other_list)
        self._turn()

    def _face_rival(self) -> None:
        """Exit if this host cannot take part: no host leads, or two might.

        If it knows a round of the job, this host stays, and the other one exits.
        """
        if (rival := self._rival) is None:
            return
        has_begun = self._elector.acceptor.formed != NO_ROUND
        if has_begun or _now() - rival.last > 2 * self._times.lease_s:
            self._rival = None
            return
        is_stuck = rival.is_other_list or self.leader() is None
        if is_stuck and _now() - rival.since >= _DIFFERS_S and not self.refused.done():
            self.refused.set_result(rival.sentence)


def _now() -> float:
    """Return seconds of a clock that continues while the host is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
