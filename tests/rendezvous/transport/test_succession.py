"""Hosts that may lead, on real sockets: one leads, the others say which, another succeeds it."""

import asyncio
import gc
import math
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import grpc
import pytest
from ft_run.protos import rendezvous_pb2 as pb
from ft_run.rendezvous.group.events import GroupSettings
from ft_run.rendezvous.group.group import GroupPhase
from ft_run.rendezvous.lease import succession as succession_module
from ft_run.rendezvous.lease.succession import Succession
from ft_run.rendezvous.lease.times import LeaseTimes
from ft_run.rendezvous.master.link import LinkEvent, LinkUp
from ft_run.rendezvous.master.master import Lease, Master
from ft_run.rendezvous.protocol.bounds import COUNT_MAX
from ft_run.rendezvous.protocol.endpoint import Endpoint
from ft_run.rendezvous.protocol.lease_messages import (
    LeaseAnswer,
    LeaseAsk,
    LeaseStep,
    SuccessionSpec,
)
from ft_run.rendezvous.protocol.messages import (
    Challenge,
    Failed,
    Outcome,
    Refused,
    Start,
    Stop,
    Stopped,
    Verdict,
    Waiting,
)
from ft_run.rendezvous.protocol.offer import Offer
from ft_run.rendezvous.protocol.timeouts import Timeouts
from ft_run.rendezvous.transport import client as client_module
from ft_run.rendezvous.transport.channel_options import (
    LED_BY_KEY,
    SERVICE,
    SUCCESSION_KEY,
    TERM_KEY,
)
from ft_run.rendezvous.transport.client import GrpcLink
from ft_run.rendezvous.transport.codec import decode, encode
from ft_run.rendezvous.transport.lease_calls import LeaseCalls
from ft_run.rendezvous.transport.server import MasterServer
from ft_run.rendezvous.trust.credentials import TokenTrust, Trust
from ft_run.rendezvous.trust.token import new_token
from ft_run.rendezvous.trust.wire import open_channel
from ft_run.tests.harness.ports import free_port
from ft_run.tests.harness.scene import worker_failure
from ft_run.tests.rendezvous.transport.test_client import ends_of_channels
from ft_run.tests.rendezvous.transport.test_server import attend
from msgspec.structs import replace

TIMES = LeaseTimes(lease_s=1.0, fence_s=1.0, silence_s=5.0)
TIMEOUT_S = 60.0


class Hosts:
    """Three hosts that may lead; all are this one."""

    def __init__(
        self,
        trust: Trust | None = None,
        given: Callable[[int, SuccessionSpec], SuccessionSpec] = lambda _, spec: spec,
    ) -> None:
        """Make them; ``given`` changes what a host was given, by its place."""
        self.trust = trust
        self.endpoints = [Endpoint("127.0.0.1", free_port()) for _ in range(3)]
        spec = Timeouts(lease_s=1.0, fence_s=1.0).succession_spec(self.endpoints)
        assert spec is not None
        self.spec, self.given = spec, given
        self.same: list[Sequence[Endpoint]] = []
        """Endpoints that a host has found to be itself."""
        self.parts: list[tuple[Succession, MasterServer]] = []

    async def __aenter__(self) -> "Hosts":
        for place in range(3):
            self.parts.append(await self.start(place))
        return self

    async def start(self, place: int) -> tuple[Succession, MasterServer]:
        """Start a host."""
        spec = self.given(place, self.spec)
        succession = Succession(
            self.endpoints,
            place,
            TIMES,
            GroupSettings(succession=spec),
            self._lead,
            lambda _: None,
            self.same.append,
            LeaseCalls(self.endpoints, spec, TIMES, self.trust),
        )
        server = MasterServer(None, "1", 5.0, self.trust, succession)
        await server.start(self.listens_at(place))
        succession.start()
        return succession, server

    async def __aexit__(self, *_: object) -> None:
        for place in range(len(self.parts)):
            await self.stop(place)

    def listens_at(self, place: int) -> Endpoint:
        """Return the address of a host."""
        return self.endpoints[place]

    def _lead(self, settings: GroupSettings, lease: Lease) -> Master:
        return Master(replace(settings, starts_from=-math.inf), lambda _: None, lease=lease)

    async def stop(self, place: int) -> None:
        """End a host in order."""
        succession, server = self.parts[place]
        await succession.stop()
        await server.stop()

    async def leader(self, *besides: int) -> int:
        """Wait until a host leads."""
        while True:
            for place, (succession, _) in enumerate(self.parts):
                if place not in besides and succession.master is not None:
                    return place
            await asyncio.sleep(0.02)

    def link(
        self,
        number: int,
        said: "asyncio.Queue[LinkEvent]",
        max_restarts: int = 0,
        spec: SuccessionSpec | None = None,
        listed: Sequence[Endpoint] = (),
    ) -> GrpcLink:
        """Let a node look for its leader; it was given what the hosts were, or else."""
        first = attend(number)
        job = replace(first.job, max_restarts=max_restarts, succession=spec or self.spec)
        first = replace(first, job=job)
        return GrpcLink(
            (listed or self.endpoints)[0],
            lambda: first,
            said.put_nowait,
            silence_s=5.0,
            connect_timeout_s=TIMEOUT_S,
            master_timeout_s=TIMEOUT_S,
            listed=listed or self.endpoints,
            trust=self.trust,
        )


async def until(said: "asyncio.Queue[LinkEvent]", kind: type) -> Any:
    """Return the next event of a kind."""
    while True:
        event = await said.get()
        if isinstance(event, kind):
            return event


async def status(endpoint: Endpoint) -> pb.StatusReply:
    """Ask a host."""
    async with grpc.aio.insecure_channel(str(endpoint)) as channel:
        ask: Any = channel.unary_unary(
            f"/{SERVICE}/Status",
            request_serializer=pb.StatusRequest.SerializeToString,
            response_deserializer=pb.StatusReply.FromString,
        )
        reply: pb.StatusReply = await ask(pb.StatusRequest())
        return reply


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a test on an event loop."""
    asyncio.run(asyncio.wait_for(test(), TIMEOUT_S))


class OneListener(Hosts):
    """The names of three hosts, all or the first two of which are those of one process."""

    def __init__(self, names: int = 3) -> None:
        super().__init__()
        port = free_port()
        self.endpoints[:names] = [Endpoint(f"127.0.0.{n + 1}", port) for n in range(names)]
        spec = Timeouts(lease_s=1.0, fence_s=1.0).succession_spec(self.endpoints)
        assert spec is not None
        self.spec = spec

    async def __aenter__(self) -> "Hosts":
        self.parts.append(await self.start(0))
        return self

    def listens_at(self, place: int) -> Endpoint:
        """At all addresses."""
        return Endpoint("0.0.0.0", self.endpoints[place].port)


def test_nodes_find_the_leader_and_its_successor() -> None:
    async def test() -> None:
        async with Hosts() as hosts:
            leader = await hosts.leader()
            said: asyncio.Queue[LinkEvent] = asyncio.Queue()
            link = hosts.link(0, said)
            await until(said, LinkUp)
            await until(said, Waiting)
            await hosts.stop(leader)
            assert await hosts.leader(leader) != leader
            assert (await until(said, LinkUp)).again
            await until(said, Waiting)
            await link.close()

    run(test)


def test_a_host_without_the_others_has_no_channel_to_them() -> None:
    """A channel to a host that is not there goes on connecting, closed or not."""

    async def test() -> None:
        before = ends_of_channels()
        async with Hosts() as hosts:
            leader = await hosts.leader()
            alone, _ = hosts.parts[leader]
            channels = alone._hosts._channels  # type: ignore[attr-defined]  # they are LeaseCalls
            while len(channels) < 2:  # noqa: ASYNC110 - nothing tells it
                await asyncio.sleep(0.02)
            for place in {0, 1, 2} - {leader}:
                await hosts.stop(place)
            while channels or alone._calls:  # noqa: ASYNC110 - nothing tells it
                await asyncio.sleep(0.02)
            assert ends_of_channels() == before
            hosts.parts = [hosts.parts[leader]]  # the others have ended

    gc.collect()
    gc.disable()
    try:
        run(test)
    finally:
        gc.enable()


def test_the_host_that_leads_tells_the_others_that_the_job_is_over() -> None:
    async def test() -> None:
        async with Hosts() as hosts:
            leader = await hosts.leader()
            others = [one for place, (one, _) in enumerate(hosts.parts) if place != leader]
            while any(one.leader() is None for one in others):  # noqa: ASYNC110 - nothing tells it
                await asyncio.sleep(0.02)
            verdict = Verdict(Outcome.WORKERS_FAILED, 7, "s", 0, 1, None, (), 0)
            await hosts.parts[leader][0].stop(verdict)
            assert [await one.over for one in others] == [7, 7]

    run(test)


def test_what_another_process_says_of_the_end_of_the_job_does_not_count() -> None:
    async def test() -> None:
        async with Hosts() as hosts:
            leader = await hosts.leader()
            voter = hosts.parts[(leader + 1) % 3][0]
            while voter.leader() is None:  # noqa: ASYNC110 - nothing tells it
                await asyncio.sleep(0.02)
            leads = hosts.parts[leader][0]._elector

            def say(step: LeaseStep, process: str, exit_code: int = 0) -> None:
                term = leads.term
                number = term + 300  # later than any renewal meanwhile
                ask = LeaseAsk(step, leader, process, number, term, 1000, exit_code=exit_code)
                voter.answer(ask, hosts.spec)

            say(LeaseStep.END, "another")
            say(LeaseStep.RELEASE, leads._process)  # the lease is given back, and the job goes on
            assert not voter.over.done()
            for exit_code in (3, 4):
                say(LeaseStep.END, leads._process, exit_code)
            assert voter.over.result() == 3

    run(test)


@pytest.mark.parametrize("stranger", [None, TokenTrust(new_token())], ids=["none", "another"])
def test_with_a_token_hosts_elect_a_leader_and_a_stranger_gets_nothing(
    stranger: Trust | None,
) -> None:
    async def test() -> None:
        async with Hosts(TokenTrust(new_token())) as hosts:
            leader = await hosts.leader()
            said: asyncio.Queue[LinkEvent] = asyncio.Queue()
            link = hosts.link(0, said)
            await until(said, Waiting)
            voter, _ = hosts.parts[(leader + 1) % 3]
            asked: list[LeaseAsk] = []
            voter.answer = lambda *call: asked.append(call[0])  # type: ignore[assignment,method-assign]  # what got through
            ask = LeaseAsk(LeaseStep.PREPARE, leader, "p", 9999, 9999, 1000)
            data, given = encode(ask), encode(hosts.spec)
            async with open_channel(hosts.endpoints[voter.own], (), stranger) as channel:
                call: Any = channel.unary_unary(f"/{SERVICE}/Lease")
                with pytest.raises(grpc.aio.AioRpcError) as error:
                    await call(data, metadata=((SUCCESSION_KEY, given),))
            assert error.value.code() is grpc.StatusCode.UNAVAILABLE
            assert ask not in asked
            await link.close()

    run(test)


def test_a_round_is_told_to_the_nodes_when_the_hosts_know_of_it() -> None:
    async def test() -> None:
        async with Hosts() as hosts:
            leader = await hosts.leader()
            succession = hosts.parts[leader][0]
            queues = [asyncio.Queue[LinkEvent]() for _ in range(2)]
            links = [hosts.link(number, said) for number, said in enumerate(queues)]
            for said in queues:
                assignment = (await until(said, Start)).assignment
                assert assignment.term == succession.leader()[1]  # type: ignore[index]  # it leads
                assert succession.is_announced((assignment.term, assignment.round))
            for link in links:
                await link.close()

    run(test)


def test_the_hosts_hear_of_the_next_round_while_one_is_stopped() -> None:
    async def test() -> None:
        async with Hosts() as hosts:
            leader = await hosts.leader()
            succession = hosts.parts[leader][0]
            queues = [asyncio.Queue[LinkEvent]() for _ in range(2)]
            links = [hosts.link(number, said, 1) for number, said in enumerate(queues)]
            for said in queues:
                term = (await until(said, Start)).assignment.term
            links[0].send(Failed(0, worker_failure(0)))
            for said in queues:
                await until(said, Stop)
            while not succession.is_announced((term, 1)):  # noqa: ASYNC110 - nothing tells it
                await asyncio.sleep(0.02)
            assert succession.master is not None
            assert succession.master.group.phase is GroupPhase.STOPPING
            for link in links:
                link.send(Stopped(0, Offer("127.0.0.1", 1000)))
            for link, said in zip(links, queues, strict=True):
                assert (await until(said, Start)).assignment.round == 1
                await link.close()

    run(test)


def test_a_node_hears_from_its_leader_at_once_that_it_was_heard() -> None:
    async def test() -> None:
        async with Hosts() as hosts:
            said: asyncio.Queue[LinkEvent] = asyncio.Queue()
            link = hosts.link(0, said)
            await until(said, LinkUp)
            assert await said.get() == Challenge()
            await link.close()

    run(test)


def test_a_host_that_does_not_lead_leaves_it_to_the_node_to_end_the_stream() -> None:
    """What ends just after its first word may end without it."""

    async def test() -> None:
        async with Hosts() as hosts:
            endpoint = hosts.endpoints[(await hosts.leader() + 1) % 3]
            async with grpc.aio.insecure_channel(str(endpoint)) as channel:
                call: Any = channel.stream_stream(f"/{SERVICE}/Attend")()
                assert LED_BY_KEY in await call.initial_metadata()
                await status(endpoint)
                assert not call.done()

    run(test)


def test_every_host_says_which_one_leads() -> None:
    async def test() -> None:
        async with Hosts() as hosts:
            leader = await hosts.leader()
            said: asyncio.Queue[LinkEvent] = asyncio.Queue()
            link = hosts.link(0, said)
            await until(said, LinkUp)
            for place, endpoint in enumerate(hosts.endpoints):
                reply = await status(endpoint)
                while not reply.leader:  # it has not heard of the lease yet
                    reply = await status(endpoint)
                assert reply.leader == str(hosts.endpoints[leader])
                assert (reply.lease_s > 0) == (place == leader)
                assert list(reply.hosts) == list(map(str, hosts.endpoints))
            await link.close()

    run(test)


def test_a_strangers_numbers_stop_no_election() -> None:
    async def test() -> None:
        async with Hosts() as hosts:
            leader = await hosts.leader()
            given = encode(hosts.spec)
            forged = encode(LeaseAsk(LeaseStep.PREPARE, 0, "p", COUNT_MAX, COUNT_MAX, 1000))
            for endpoint in hosts.endpoints:
                async with grpc.aio.insecure_channel(str(endpoint)) as channel:
                    ask: Any = channel.unary_unary(f"/{SERVICE}/Lease")
                    answer = decode(
                        LeaseAnswer, await ask(forged, metadata=((SUCCESSION_KEY, given),))
                    )
                    assert not answer.accepted
                    node: Any = channel.stream_stream(f"/{SERVICE}/Attend")
                    call = node(metadata=((TERM_KEY, str(COUNT_MAX)),))
                    await call.initial_metadata()
                    call.cancel()
            assert await hosts.leader() == leader
            await hosts.stop(leader)
            assert await hosts.leader(leader) != leader

    run(test)


@pytest.mark.parametrize(
    ("hosts_text", "ask"),
    [
        ("a,b,c", LeaseAsk(LeaseStep.PREPARE, 0, "p", 5, 5, 1000)),
        (None, LeaseAsk(LeaseStep.PREPARE, 7, "p", 5, 5, 1000)),
        (None, LeaseAsk(LeaseStep.PREPARE, 0, "p", 2**63, 5, 1000)),
    ],
    ids=["another list", "a host that is not listed", "a number that no host says"],
)
def test_what_no_listed_host_says_is_refused(hosts_text: str | None, ask: LeaseAsk) -> None:
    async def test() -> None:
        async with Hosts() as hosts:
            spec = replace(hosts.spec, endpoints=hosts_text) if hosts_text else hosts.spec
            given = encode(spec)
            async with grpc.aio.insecure_channel(str(hosts.endpoints[0])) as channel:
                call: Any = channel.unary_unary(f"/{SERVICE}/Lease")
                with pytest.raises(grpc.aio.AioRpcError) as error:
                    await call(encode(ask), metadata=((SUCCESSION_KEY, given),))
            assert error.value.code() is grpc.StatusCode.FAILED_PRECONDITION

    run(test)


def test_the_host_whose_options_differ_is_refused_and_the_others_lead() -> None:
    def given(place: int, spec: SuccessionSpec) -> SuccessionSpec:
        return replace(spec, fence_s=20.0) if place == 2 else spec

    async def test() -> None:
        async with Hosts(given=given) as hosts:
            assert await hosts.leader() != 2
            said: asyncio.Queue[LinkEvent] = asyncio.Queue()
            link = hosts.link(2, said, spec=given(2, hosts.spec))  # the node of that host
            refused = await until(said, Refused)
            assert "--rdzv-conf fence in seconds is 20 (" in refused.sentence
            await link.close()

    run(test)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            lambda place, spec: replace(spec, endpoints=spec.endpoints + f":{place % 2}"),
            "--rdzv-endpoint is ",
        ),
        (
            lambda place, spec: replace(spec, fence_s=4.0 + place),
            "--rdzv-conf fence in seconds is ",
        ),
        (
            lambda place, spec: replace(spec, lease_s=1.0 + place / 4),
            "--rdzv-conf lease in seconds is ",
        ),
    ],
    ids=["one list is another", "each fence is another", "each lease is another"],
)
def test_hosts_that_cannot_agree_say_how_they_differ(
    monkeypatch: pytest.MonkeyPatch,
    given: Callable[[int, SuccessionSpec], SuccessionSpec],
    words: str,
) -> None:
    monkeypatch.setattr(succession_module, "_DIFFERS_S", 1.0)

    async def test() -> None:
        async with Hosts(given=given) as hosts:
            for sentence in await asyncio.gather(*(one.refused for one, _ in hosts.parts)):
                assert words in sentence
                assert "(127.0.0.1:" in sentence  # the value of another host
            assert all(one.master is None for one, _ in hosts.parts)

    run(test)


def test_a_host_of_another_list_ends_no_job_that_has_begun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(succession_module, "_DIFFERS_S", 0.0)

    async def test() -> None:
        async with Hosts() as hosts:
            leader = await hosts.leader()
            queues = [asyncio.Queue[LinkEvent]() for _ in range(2)]
            links = [hosts.link(number, said) for number, said in enumerate(queues)]
            for said in queues:
                await until(said, Start)
            late = (leader + 1) % 3
            await hosts.stop(late)
            hosts.given = lambda _, spec: replace(spec, endpoints=f"{spec.endpoints},more")
            succession, _ = hosts.parts[late] = await hosts.start(late)
            assert "--rdzv-endpoint is " in await succession.refused
            assert hosts.parts[leader][0].master is not None
            assert not hosts.parts[leader][0].refused.done()
            for link in links:
                await link.close()

    run(test)


def test_a_node_of_another_list_is_refused_also_by_a_host_that_does_not_lead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client_module, "_DISTRUST_S", 0.0)

    async def test() -> None:
        async with Hosts() as hosts:
            leader = await hosts.leader()
            others = [host for place, host in enumerate(hosts.endpoints) if place != leader]
            spec = Timeouts(fence_s=1.0).succession_spec(others)
            assert spec is not None
            said: asyncio.Queue[LinkEvent] = asyncio.Queue()
            link = hosts.link(0, said, spec=spec, listed=others)
            refused = await until(said, Refused)
            here, there = spec.endpoints, hosts.spec.endpoints
            assert f"--rdzv-endpoint is {here} (" in refused.sentence
            assert f": {there})" in refused.sentence
            await link.close()

    run(test)


def test_a_process_with_all_the_names_leads_and_says_so() -> None:
    async def test() -> None:
        async with OneListener() as hosts:
            said: asyncio.Queue[LinkEvent] = asyncio.Queue()
            link = hosts.link(0, said)
            await until(said, LinkUp)
            while hosts.same[-1:] != [hosts.endpoints]:  # noqa: ASYNC110 - nothing tells it
                await asyncio.sleep(0.02)
            await link.close()

    run(test)


def test_a_process_with_two_of_three_names_leads_and_another_does_not() -> None:
    async def test() -> None:
        async with OneListener(names=2) as hosts:
            other, _ = await hosts.start(2)
            assert await hosts.leader() == 0
            while not hosts.same:  # noqa: ASYNC110 - nothing tells it
                await asyncio.sleep(0.02)
            assert hosts.same == [hosts.endpoints[:2]]
            await hosts.stop(0)
            hosts.parts.clear()
            while other.leader() is not None:  # noqa: ASYNC110 - nothing tells it
                await asyncio.sleep(0.02)
            assert other.master is None
            hosts.parts.append((other, _))

    run(test)


def test_a_process_at_which_others_are_found_wrongly_and_the_others_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For the one, names lead to itself; the others have a majority: two would lead."""
    monkeypatch.setattr(succession_module, "_DIFFERS_S", 1.0)

    async def test() -> None:
        async with OneListener() as hosts:
            await hosts.leader()
            spec = hosts.spec
            second = Succession(
                hosts.endpoints, 1, TIMES, GroupSettings(succession=spec), hosts._lead,
                lambda _: None, lambda _: None, LeaseCalls(hosts.endpoints, spec, TIMES),
            )  # fmt: skip
            second.start()
            seen = ",".join([str(hosts.endpoints[0])] * 3)
            here, there = f"--rdzv-endpoint is {spec.endpoints}", f"--rdzv-endpoint is {seen}"
            first = await hosts.parts[0][0].refused
            assert f"{there} (" in first
            assert f": {spec.endpoints})" in first
            assert f"{here} (" in (other := await second.refused)
            assert f": {seen})" in other
            assert hosts.parts[0][0].master is None
            await second.stop()

    run(test)
