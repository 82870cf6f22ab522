"""Tests of where the master lives."""

import asyncio
import socket
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import grpc
import grpc.aio
import pytest
from ft_run.errors import UsageError
from ft_run.events.event import Event
from ft_run.events.master import HostLeads, UnauthenticatedClientsAccepted
from ft_run.launcher.agent import hosting as hosting_module
from ft_run.launcher.agent.agent import Agent
from ft_run.launcher.agent.hosting import Hosting, unheard
from ft_run.launcher.agent.lifecycle import JobOver
from ft_run.launcher.agent.standalone import Standalone
from ft_run.launcher.machine import network
from ft_run.launcher.options import RendezvousOptions
from ft_run.rendezvous.group.events import GroupSettings
from ft_run.rendezvous.lease.succession import Succession
from ft_run.rendezvous.master.link import (
    LinkDown,
    LinkEvent,
    LinkLost,
    LinkUp,
    LocalLink,
    MasterLink,
)
from ft_run.rendezvous.master.master import Master
from ft_run.rendezvous.protocol.endpoint import Endpoint
from ft_run.rendezvous.protocol.messages import (
    PROTOCOL_VERSION,
    Attend,
    Done,
    Heard,
    JobSpec,
    NodeSpec,
    Outcome,
    Refused,
    Start,
    Verdict,
    Waiting,
)
from ft_run.rendezvous.protocol.offer import Offer
from ft_run.rendezvous.transport.channel_options import SERVICE
from ft_run.rendezvous.trust.credentials import TokenTrust
from ft_run.rendezvous.trust.token import new_token
from ft_run.rendezvous.trust.wire import open_channel
from ft_run.tests.harness.link_events import plain
from ft_run.tests.harness.ports import free_port
from msgspec.structs import replace

_E = TypeVar("_E")

TIMEOUT_S = 60.0
FOREIGN = "198.51.100.1"  # of a block for documentation: no host has it


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), TIMEOUT_S))


def hosting(endpoint: Endpoint, *, hosts_master: bool | None = None) -> Hosting:
    options = RendezvousOptions(job_id="j", endpoint=endpoint, hosts_master=hosts_master)
    return Hosting(options, lambda _: None)


@pytest.fixture
def port() -> int:
    return free_port()


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 5).close()
    except ConnectionRefusedError:
        return False
    return True


def test_standalone_has_a_master_and_no_socket() -> None:
    async def test() -> None:
        here = Standalone(RendezvousOptions(job_id="j"), lambda _: None)
        await here.start()
        assert here.master is not None
        assert here.where == "standalone"
        await here.stop(wait=False)

    run(test)


@pytest.mark.parametrize(
    ("host", "hosts_master", "here"),
    [
        ("127.0.0.1", None, True),
        ("127.0.0.1", True, True),
        ("127.0.0.1", False, False),
        (FOREIGN, None, False),
        (FOREIGN, False, False),
        (FOREIGN, True, True),  # a service's or a translated address in front of this host
    ],
)
def test_which_node_hosts_the_master(
    port: int, host: str, hosts_master: bool | None, here: bool
) -> None:
    async def test() -> None:
        node = hosting(Endpoint(host, port), hosts_master=hosts_master)
        await node.start()
        assert (node.master is not None) is here
        assert listens(port) is here
        assert ("hosted here" in node.where) is here
        await node.stop(wait=False)
        assert not listens(port)

    run(test)


def test_of_several_agents_on_a_host_the_first_has_it(port: int) -> None:
    async def test() -> None:
        first, second = (hosting(Endpoint("127.0.0.1", port)) for _ in range(2))
        await first.start()
        await second.start()
        assert first.master is not None
        assert second.master is None
        await second.stop(wait=True)  # not its own to wait for
        assert listens(port)
        await first.stop(wait=False)

    run(test)


def agent_with(attend: Callable[[], Attend], post: Callable[[LinkEvent], None]) -> Agent:
    """What a link needs of an agent."""
    return cast(Agent, SimpleNamespace(attend=attend, claims=tuple, post=post))


def first_word(incarnation: str) -> Attend:
    return Attend(
        protocol=PROTOCOL_VERSION,
        version="1",
        job=JobSpec("j", 1, 1, 1, 0),
        node=NodeSpec(f"{incarnation}/0", incarnation, "h", "127.0.0.1", "r", 1, None),
        offer=Offer("127.0.0.1", 1000),
        claim=None,
    )


def test_the_agent_beside_the_master_needs_no_socket(port: int) -> None:
    async def test() -> None:
        here = hosting(Endpoint("127.0.0.1", port))
        await here.start()
        events: asyncio.Queue[LinkEvent] = asyncio.Queue()
        agent = agent_with(lambda: first_word("i0"), events.put_nowait)
        link = here.connect(agent)
        assert isinstance(link, LocalLink)
        assert isinstance(await events.get(), Start)
        await link.close()
        await here.stop(wait=False)

    run(test)


async def next_of(events: "asyncio.Queue[Any]", kind: type[_E]) -> _E:
    while not isinstance(event := await events.get(), kind):
        assert not isinstance(event, LinkLost), event.sentence
    return event


def test_the_next_job_hosts_its_master_when_that_of_the_last_one_has_ended(port: int) -> None:
    """With the same id: it must not be told the verdict on the job before it."""

    async def test() -> None:
        last, coming = (hosting(Endpoint("127.0.0.1", port)) for _ in range(2))
        await last.start()
        heard, events = asyncio.Queue[LinkEvent](), asyncio.Queue[LinkEvent]()
        agent = agent_with(lambda: first_word("old"), heard.put_nowait)
        old = last.connect(agent)
        await next_of(heard, Start)
        old.send(Done(0))
        await next_of(heard, Verdict)

        await coming.start()
        assert coming.master is None
        agent = agent_with(lambda: first_word("new"), events.put_nowait)
        link = coming.connect(agent)
        await next_of(events, LinkUp)
        old.send(Heard())
        await last.stop(wait=True)  # which waits for no other node
        assignment = (await next_of(events, Start)).assignment
        assert coming.serves_others
        assert assignment.formed_by != ""
        link.send(Done(0))
        await next_of(events, Verdict)
        link.send(Heard())
        await link.close()
        await coming.stop(wait=True)
        assert not listens(port)

    run(test)


@pytest.fixture
def late_names(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Resolve no name at first; return a function that lets every name be that of this host."""
    known: list[str] = []
    monkeypatch.setattr(network, "resolve", lambda _: known)
    monkeypatch.setattr(hosting_module, "_FIND_AGAIN_S", 0.01)
    return lambda: known.append("127.0.0.1")


def test_master_is_hosted_when_the_own_name_enters_the_dns(
    port: int, late_names: Callable[[], None]
) -> None:
    async def test() -> None:
        node = hosting(Endpoint("pod-a", port))
        await node.start()
        assert node.master is None
        agent = agent_with(lambda: first_word("i0"), lambda _: None)
        link = node.connect(agent)
        late_names()
        assert node._search is not None
        await node._search
        assert node._retry is not None
        await node._retry
        assert node.serves_others
        await link.close()
        await node.stop(wait=False)

    run(test)


def test_no_second_master_is_hosted_when_one_has_sent_a_message(
    port: int, late_names: Callable[[], None]
) -> None:
    async def test() -> None:
        node = hosting(Endpoint("pod-a", port))
        await node.start()
        agent = agent_with(lambda: first_word("i0"), lambda _: None)
        link = node.connect(agent)
        node._watched(agent.post)(Refused("no"))
        late_names()
        assert node._search is not None
        await node._search
        assert node.master is None
        await link.close()
        await node.stop(wait=False)

    run(test)


def test_search_for_the_own_name_does_not_delay_the_end(
    port: int, late_names: Callable[[], None]
) -> None:
    async def test() -> None:
        node = hosting(Endpoint("pod-a", port))
        await node.start()
        await node.stop(wait=False)
        late_names()
        assert node._search is not None
        await asyncio.wait([node._search])
        assert not listens(port)

    run(test)


class ThreeHosts:
    """The hosts that may lead a job of one node, which runs at one of them."""

    def __init__(self, port: int) -> None:
        endpoints = tuple(Endpoint(f"127.0.0.{n}", port) for n in (1, 2, 3))
        options = RendezvousOptions(job_id="j", endpoint=endpoints[0], endpoints=endpoints)
        self._succession = options.timeouts.succession_spec(endpoints)
        self.all = [Hosting(options, lambda _: None) for _ in endpoints]
        self._links: list[MasterLink] = []

    def connect(self, host: Hosting, incarnation: str) -> tuple[MasterLink, asyncio.Queue[Any]]:
        events = asyncio.Queue[Any]()
        first = first_word(incarnation)
        first = replace(first, job=replace(first.job, succession=self._succession))
        agent = agent_with(lambda: first, events.put_nowait)
        self._links.append(link := host.connect(agent))
        return link, events

    async def run_job(self) -> tuple[Hosting, Verdict]:
        """Run the job to its end; return the host that leads, and how the job ended."""
        for host in self.all:
            await host.start()
        link, heard = self.connect(self.all[0], "i0")
        await next_of(heard, Start)
        leads = next(host for host in self.all if host.master is not None)
        link.send(Done(0))
        verdict = await next_of(heard, Verdict)
        link.send(Heard())
        return leads, verdict

    async def close(self, *others: Hosting) -> None:
        for link in self._links:
            await link.close()
        for host in others:
            await host.stop(wait=False)


def test_a_host_that_was_not_connected_is_told_that_the_job_is_over(port: int) -> None:
    """It would look for a leader for minutes, and the others have ended."""

    async def test() -> None:
        hosts = ThreeHosts(port)
        leads, _ = await hosts.run_job()
        away = next(host for host in hosts.all[1:] if host is not leads)
        await leads.stop(wait=True)
        over = await next_of(hosts.connect(away, "i1")[1], JobOver)
        assert over.verdict.exit_code == 0
        assert over.verdict.outcome is Outcome.SUCCEEDED
        assert unheard(3).outcome is Outcome.RENDEZVOUS_FAILED
        await hosts.close(*(host for host in hosts.all if host is not leads))

    run(test)


def test_a_host_that_leads_tells_its_own_agent_that_comes_after_the_end(port: int) -> None:
    """Its master lets such a node wait for the next master, and it ends with the agent."""

    async def test() -> None:
        hosts = ThreeHosts(port)
        leads, verdict = await hosts.run_job()
        assert leads.master is not None
        await leads.master.finished()
        over = await next_of(hosts.connect(leads, "i1")[1], JobOver)
        assert over.verdict == verdict
        await hosts.close(*hosts.all)

    run(test)


def test_a_host_waits_for_no_verdict_of_a_master_that_knows_of_no_end() -> None:
    """It was elected while its agent, which has the verdict of an earlier leader, still saved."""

    async def test() -> None:
        given_back: list[Verdict | None] = []

        async def stop(verdict: Verdict | None) -> None:
            given_back.append(verdict)

        host = hosting(Endpoint("127.0.0.1", 1))
        master = Master(GroupSettings(), lambda _: None)
        host._succession = cast(Succession, SimpleNamespace(master=master, stop=stop))
        await host.stop(wait=True)
        assert given_back == [None]
        master.close()

    run(test)


def test_the_next_job_may_have_another_token(port: int) -> None:
    """The master of the last one, which has the port for a moment, cannot even be asked."""

    async def test() -> None:
        options = RendezvousOptions(job_id="j", endpoint=Endpoint("127.0.0.1", port))
        last, coming = (Hosting(options, lambda _: None, TokenTrust(new_token())) for _ in range(2))
        await last.start()
        await coming.start()
        events = asyncio.Queue[LinkEvent]()
        agent = agent_with(lambda: first_word("new"), events.put_nowait)
        link = coming.connect(agent)
        assert plain(await next_of(events, LinkDown)) == LinkDown(
            "the token differs from that of the master"
        )
        await last.stop(wait=False)
        await next_of(events, Start)
        assert coming.serves_others
        await link.close()
        await coming.stop(wait=False)

    run(test)


@pytest.mark.parametrize(
    ("bind", "trust", "others", "is_told"),
    [
        ("127.0.0.1", None, (), False),
        ("localhost", None, (), False),
        ("::", None, (), True),
        ("::", TokenTrust(new_token()), (), False),
        ("::", None, (Endpoint(FOREIGN, 1), Endpoint(FOREIGN, 2)), True),
    ],
)
def test_a_master_that_is_open_to_all_says_so_once(
    port: int, bind: str, trust: TokenTrust | None, others: tuple[Endpoint, ...], is_told: bool
) -> None:
    async def test() -> None:
        notes: list[Event] = []
        endpoint = Endpoint(bind, port)
        listed = (endpoint, *others) if others else ()
        options = RendezvousOptions(job_id="j", endpoint=endpoint, endpoints=listed)
        here = Hosting(options, notes.append, trust)
        await here.start()
        assert here.serves_others is (not others)
        assert notes == ([UnauthenticatedClientsAccepted(str(endpoint))] if is_told else [])
        await here.stop(wait=False)

    run(test)


def test_the_hosts_that_may_lead_trust_each_other_by_the_token_and_no_other() -> None:
    async def test() -> None:
        listed = tuple(Endpoint("127.0.0.1", free_port()) for _ in range(3))
        options = RendezvousOptions(job_id="j", endpoint=listed[0], endpoints=listed)
        trust, leads = TokenTrust(new_token()), asyncio.Event()

        def note(event: Event) -> None:
            if isinstance(event, HostLeads) and event.term:
                leads.set()

        hosts = [Hosting(options, note, trust) for _ in listed]
        for host in hosts:
            await host.start()
        await leads.wait()
        for endpoint in listed:
            async with open_channel(endpoint, (), None) as channel:
                ask: Any = channel.unary_unary(f"/{SERVICE}/Status")
                with pytest.raises(grpc.aio.AioRpcError) as error:
                    await ask(b"")
                assert error.value.code() is grpc.StatusCode.UNAVAILABLE
        for host in hosts:
            await host.stop(wait=False)

    run(test)


def test_a_master_that_has_spoken_is_waited_for(port: int) -> None:
    """It will be started again, and would find its port taken."""

    async def test() -> None:
        first, second = (hosting(Endpoint("127.0.0.1", port)) for _ in range(2))
        await first.start()
        await second.start()
        events = asyncio.Queue[LinkEvent]()
        word = first_word("i")
        word = replace(word, job=replace(word.job, min_nodes=2, max_nodes=2))
        agent = agent_with(lambda: word, events.put_nowait)
        link = second.connect(agent)
        await next_of(events, Waiting)
        await first.stop(wait=False)
        for _ in range(3):
            await next_of(events, LinkDown)
        assert second.master is None
        assert not listens(port)
        await link.close()
        await second.stop(wait=False)

    run(test)


def test_an_address_of_another_host_cannot_be_listened_at(port: int) -> None:
    async def test() -> None:
        from ft_run.rendezvous.transport.server import check_can_bind

        with pytest.raises(UsageError, match="give an address of this host"):
            check_can_bind(Endpoint(FOREIGN, port))

    run(test)
