"""Decides whether this agent hosts the master, and creates the agent's link to it."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from msgspec.structs import replace

from ... import exit_codes
from ...errors import PortInUseError, UsageError
from ...events.master import (
    EndpointsAreOne,
    HostLeads,
    MasterMoved,
    UnauthenticatedClientsAccepted,
)
from ...rendezvous.group.events import GroupSettings
from ...rendezvous.lease.succession import Succession
from ...rendezvous.lease.times import LeaseTimes
from ...rendezvous.master.link import (
    LinkDown,
    LinkEvent,
    LinkLost,
    LinkUp,
    MasterLink,
)
from ...rendezvous.master.master import Lease, Master
from ...rendezvous.protocol.endpoint import Endpoint
from ...rendezvous.protocol.messages import Outcome, Refused, Verdict
from ...rendezvous.transport.addresses import HOSTS
from ...rendezvous.transport.client import GrpcLink
from ...rendezvous.transport.lease_calls import LeaseCalls
from ...rendezvous.transport.server import MasterServer
from ...rendezvous.trust.credentials import Trust
from ...tasks import in_daemon_thread, show_bug
from ..machine.network import any_address, is_loopback, own_endpoints
from ..options import RendezvousOptions
from ..version import VERSION
from .agent import Agent
from .lifecycle import JobOver
from .standalone import Note, Standalone

_FIND_AGAIN_S, _FIND_AGAIN_MAX_S = 1.0, 15.0
"""Delays before the endpoint names are resolved again: the first, doubled up to the maximum."""


class Hosting(Standalone):
    """The master of several nodes, if it belongs here, and the agent's link to the job's master."""

    def __init__(
        self,
        options: RendezvousOptions,
        note: Note,
        trust: Trust | None = None,
        changed: Callable[[Master], None] | None = None,
        report: Callable[[], str] = str,
        meet: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """``changed`` is called after each event of the group, ``report`` for ``ft-run report``."""
        super().__init__(options, note, changed, meet)
        self._trust, self._report = trust, report
        self._address: Endpoint | None = None
        """The listen address, if this process should host the master; otherwise None."""
        self._port_is_taken = False
        self._retry: asyncio.Task[None] | None = None
        self._search: asyncio.Task[None] | None = None
        """Waits for the name of this host to enter the DNS."""
        self._has_received = False
        """Whether a master has sent this node a message."""
        self._agent: Agent | None = None
        self._server: MasterServer | None = None
        self._succession: Succession | None = None
        self._over: asyncio.Future[Verdict] | None = None
        """The verdict, when this host was the last leader among several candidates."""

    @property
    def master(self) -> Master | None:
        """The master in this process; with several candidates, only while this host leads."""
        return self._master if self._succession is None else self._succession.master

    async def start(self) -> None:
        """Start the master if it belongs here; raise ``UsageError`` if it cannot listen."""
        endpoint = self._options.endpoint
        assert endpoint is not None
        endpoints = self._options.endpoints or (endpoint,)
        own, are_known = own_endpoints(endpoints)
        if self._options.endpoints:
            self.where = f"master at one of {self._options.where}"
            await self._become_candidate(own)
        else:
            self.where = f"master at {endpoint}"
            if self._options.hosts_master is False:
                return
            if self._options.hosts_master and not own:
                # The name belongs to a service or to a translated address in front of this host.
                own = {0: Endpoint(any_address(), endpoint.port)}
            if own:
                self._address = own[0]
                await self._serve(own[0])
        if not own and not are_known:
            self._search = asyncio.create_task(self._find_own_name(endpoints))
            self._search.add_done_callback(partial(show_bug, "the search for this host's name"))

    def connect(self, agent: Agent) -> MasterLink:
        """Return the agent's link to the master."""
        self._agent = agent
        self._follow_succession(agent)
        if self.master is not None:
            return super().connect(agent)
        endpoint = self._options.endpoint
        assert endpoint is not None
        return GrpcLink(
            endpoint,
            agent.attend,
            self._watched(agent.post),
            silence_s=self._options.timeouts.silence_s,
            # Needed even if a process has the port but does not respond: it may be a frozen master.
            connect_timeout_s=self._options.timeouts.connect_timeout_s,
            master_timeout_s=self._options.timeouts.master_timeout_s,
            port_is_taken=self._port_is_taken,
            listed=self._options.endpoints,
            trust=self._trust,
            claims=agent.claims,
        )

    def _follow_succession(self, agent: Agent) -> None:
        """Notify the agent of the end of the job, or of a refusal, even if it is disconnected."""
        if self._succession is not None:
            # Otherwise a node that is disconnected when the job ends would keep searching for a
            # leader.
            self._succession.over.add_done_callback(
                lambda over: agent.post(JobOver(unheard(over.result())))
            )
            self._succession.refused.add_done_callback(
                lambda refused: agent.post(Refused(refused.result()))
            )
        if self._over is not None:
            # Needed while this host leads, too: its own master ends with the agent.
            self._over.add_done_callback(lambda over: agent.post(JobOver(over.result())))

    @property
    def serves_others(self) -> bool:
        """Whether the master is in this process and other nodes connect to it."""
        return self._server is not None and self._succession is None

    @property
    def is_needed(self) -> bool:
        """Whether the master is in this process and other nodes are about to need it."""
        is_here = self._server is not None and self.master is not None
        return is_here and self.master is not None and not self.master.group.is_settled

    async def stop(self, *, wait: bool) -> None:
        """Stop the master; ``wait``: first wait until every node has received the verdict."""
        if self._search is not None:
            self._search.cancel()
        if self._retry is not None:
            await self._retry  # this is short, and the server that it starts must be stopped
        master, verdict = self.master, None
        if master is not None and self._succession is not None:
            # A leader elected after the verdict of an earlier leader may never give one.
            wait &= master.group.verdict is not None
        if master is not None and wait:
            verdict = await master.finished()
        if self._succession is not None:
            await self._succession.stop(verdict)
        if self._server is not None:
            await self._server.stop()

    async def _become_candidate(self, own: Mapping[int, Endpoint]) -> None:
        endpoints = self._options.endpoints
        settings, new_master = self._settings(), self._new_master
        listed = await listed_host(endpoints, own, settings, new_master, self._note, self._trust)
        if listed is not None:
            self._over = asyncio.get_running_loop().create_future()
            self._succession, self._server = listed
            self._server.report = self._report
            self.where += f"; this host may lead, at {endpoints[self._succession.own]}"

    async def _find_own_name(self, endpoints: Sequence[Endpoint]) -> None:
        """Host the master as soon as an endpoint name resolves to this host.

        The name of a pod can enter the DNS after the pod has started. The search ends when all
        names are known, or when a single master has sent a message.
        """
        delay_s, own, are_known = _FIND_AGAIN_S, dict[int, Endpoint](), False
        while not (own or are_known):
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, _FIND_AGAIN_MAX_S)
            if self._has_received and not self._options.endpoints:
                return
            with suppress(OSError):  # no thread can be started
                own, are_known = await in_daemon_thread(partial(own_endpoints, endpoints))
        if own:
            # ``stop`` cancels this task, but waits for the other one.
            self._retry = asyncio.create_task(self._host_after_all(own))
            self._retry.add_done_callback(partial(show_bug, "hosting the master"))

    async def _host_after_all(self, own: Mapping[int, Endpoint]) -> None:
        if self._options.endpoints:
            with suppress(UsageError):  # an address that this host no longer has
                await self._become_candidate(own)
            if self._succession is not None and self._agent is not None:
                self._follow_succession(self._agent)
        elif not self._has_received:
            self._address = own[0]
            await self._serve_after_all()

    async def _serve(self, address: Endpoint) -> None:
        master = self._new_master(self._settings())
        server = MasterServer(master, VERSION, self._options.timeouts.silence_s, self._trust)
        server.report = self._report
        try:
            await server.start(address)
        except PortInUseError:
            # The port belongs to another agent of this host, to the master of the previous job,
            # which is about to exit, or to another program. The connection will show which.
            await server.stop()
            self._port_is_taken = True
            return
        self._master, self._server = master, server
        self.where = f"master at {self._options.endpoint} hosted here, listening at {address}"
        tell_if_open(address, self._trust, self._note)

    def _watched(self, post: Callable[[LinkEvent], None]) -> Callable[[LinkEvent], None]:
        """Take over a port of this host if it becomes free before a master there has responded.

        The port then belonged to the previous job, whose master does not respond to a new node.
        If a master has responded, this node waits for it: the scheduler restarts that master.
        """

        def on_event(event: LinkEvent) -> None:
            self._has_received |= not isinstance(event, LinkUp | LinkDown | LinkLost)
            is_trying = self._retry is not None and not self._retry.done()
            may_try = self._port_is_taken and not (self._has_received or is_trying or self.master)
            if isinstance(event, LinkDown) and may_try:
                self._retry = asyncio.create_task(self._serve_after_all())
            post(event)

        return on_event

    async def _serve_after_all(self) -> None:
        assert self._address is not None
        with suppress(UsageError):  # an address that this host no longer has
            await self._serve(self._address)
        if self.master is not None:
            self._note(MasterMoved(str(self._address)))

    def _ended(self, verdict: Verdict) -> None:
        if self._over is not None and not self._over.done():
            self._over.set_result(verdict)


def tell_if_open(address: Endpoint, trust: Trust | None, note: Note) -> None:
    """Warn that unauthenticated clients can reach a master that has no token."""
    if trust is None and not is_loopback(address.host):
        note(UnauthenticatedClientsAccepted(str(address)))


async def listed_host(
    endpoints: Sequence[Endpoint],
    own: Mapping[int, Endpoint],
    settings: GroupSettings,
    new_master: Callable[[GroupSettings, Lease], Master],
    note: Note,
    trust: Trust | None,
) -> tuple[Succession, MasterServer] | None:
    """Become a candidate at the first free endpoint of this host: vote, and lead if elected.

    ``own`` has the listen address of each endpoint that names this host, by its position. The
    result is None if no such endpoint is free. Raises ``UsageError`` if this process cannot listen
    there.
    """
    times = LeaseTimes(settings.lease_s, settings.fence_s, settings.silence_s)
    spec = settings.succession_spec(endpoints)
    assert spec is not None
    for place, address in own.items():
        succession = Succession(
            endpoints,
            place,
            times,
            replace(settings, succession=spec),
            new_master,
            lambda term: note(HostLeads(term)),
            lambda same: note(EndpointsAreOne(tuple(map(str, same)), len(endpoints))),
            LeaseCalls(endpoints, spec, times, trust),
        )
        server = MasterServer(None, VERSION, times.silence_s, trust, succession)
        try:
            await server.start(address)
        except PortInUseError:  # by another process of this host, which votes there
            await server.stop()
            continue
        HOSTS.keep_own(endpoints[place], address.host)
        tell_if_open(address, trust, note)
        succession.start()
        return succession, server
    return None


def unheard(exit_code: int) -> Verdict:
    """Return the verdict of a job of which this node received only the exit code."""
    has_succeeded = exit_code == exit_codes.SUCCESS
    return Verdict(
        outcome=Outcome.SUCCEEDED if has_succeeded else Outcome.RENDEZVOUS_FAILED,
        exit_code=exit_code,
        sentence="it finished while this node was not connected; other nodes show the result",
        restarts=0,
        rounds=0,
        cause=None,
        failures=(),
        failure_count=0,
    )
