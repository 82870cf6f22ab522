"""Tests of the master's clock and streams; the rules have their own (``test_group``)."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from ft_run.events.master import MasterEvent, NodeLost
from ft_run.rendezvous.group.events import Detached, GroupSettings
from ft_run.rendezvous.master.link import LinkEvent, LocalLink
from ft_run.rendezvous.master.master import Master
from ft_run.rendezvous.protocol.messages import (
    PROTOCOL_VERSION,
    Attend,
    Done,
    HangSpec,
    Heard,
    JobSpec,
    MasterMessage,
    NodeSpec,
    Outcome,
    Refused,
    Start,
    Verdict,
    Waiting,
)
from ft_run.rendezvous.protocol.offer import Offer
from ft_run.rendezvous.protocol.stacks import (
    RankStack,
    RankState,
    StackOrder,
    StackReport,
    Suspicion,
)
from ft_run.rendezvous.protocol.steps import RankSteps, StepsOrder, StepsReport
from ft_run.rendezvous.work.messages import WorkClaim, WorkReport
from msgspec.structs import replace

PATIENT = GroupSettings(join_timeout_s=3600.0, node_grace_s=3600.0)
TIMEOUT_S = 60.0


def attend(number: int, nodes: int = 2, job: str = "j") -> Attend:
    return Attend(
        protocol=PROTOCOL_VERSION,
        version="1",
        job=JobSpec(job, nodes, nodes, 1, 0),
        node=NodeSpec(f"h/{number}", f"i{number}", "h", "127.0.0.1", "r", 1, number),
        offer=Offer("127.0.0.1", 1000 + number),
        claim=None,
    )


def test_own_offer_is_renewed_before_a_new_node_completes_the_world() -> None:
    async def test() -> None:
        master = Master(PATIENT, lambda _: None)
        address = ["10.0.2.15"]
        met: list[str] = []

        def meet(other: str) -> bool:
            met.append(other)
            address[:] = ["10.0.0.1"]
            return True

        def own() -> Attend:
            return replace(attend(0), offer=Offer(address[0], 1000))

        events: asyncio.Queue[LinkEvent] = asyncio.Queue()
        LocalLink(master, own, events.put_nowait, meet)
        await asyncio.sleep(0)  # its first message is handled
        deliver: asyncio.Queue[MasterMessage | None] = asyncio.Queue()
        link = master.attach(deliver.put_nowait)
        master.receive(link, attend(1))
        while not isinstance(message := await deliver.get(), Start):
            pass
        assignment = message.assignment
        assert (assignment.master_addr, assignment.master_port) == ("10.0.0.1", 1000)
        assert met == ["127.0.0.1"]
        master.close()

    run(test)


class Node:
    """An agent's end of a local link."""

    def __init__(self, master: Master, first: Attend) -> None:
        self.events: asyncio.Queue[LinkEvent] = asyncio.Queue()
        self.link = LocalLink(master, lambda: first, self.events.put_nowait)

    async def next(self, kind: type) -> Any:
        """Return the next message of a kind; others are passed over."""
        while True:
            event = await self.events.get()
            if isinstance(event, kind):
                return event


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), TIMEOUT_S))


def test_claims_follow_the_first_message_of_a_local_link(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        claims = [WorkReport(0, n, WorkClaim(f"w{n}", 9, 1), 0.0, 0) for n in (1, 2)]
        master = Master(PATIENT, lambda _: None)
        received: list[Any] = []
        monkeypatch.setattr(master, "receive", lambda _, message: received.append(message))
        link = LocalLink(master, lambda: attend(0), lambda _: None, claims=lambda: claims)
        link.send(Done(0))
        await link.close()
        assert received == [replace(attend(0), claims=2), *claims, Done(0)]
        master.close()

    run(test)


def test_nodes_form_a_world_and_the_master_ends_when_all_have_heard() -> None:
    async def test() -> None:
        master = Master(PATIENT, lambda _: None)
        nodes = [Node(master, attend(0)), Node(master, attend(1))]
        places = [(await node.next(Start)).assignment for node in nodes]
        assert [(p.round, p.node_rank, p.nodes, p.master_port) for p in places] == [
            (0, 0, 2, 1000),
            (0, 1, 2, 1000),
        ]
        for node in nodes:
            node.link.send(Done(0))
        verdicts = [await node.next(Verdict) for node in nodes]
        assert verdicts[0] == verdicts[1]
        assert verdicts[0].outcome is Outcome.SUCCEEDED
        finished = asyncio.create_task(master.finished())
        nodes[0].link.send(Heard())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not finished.done()
        nodes[1].link.send(Heard())
        assert await finished == verdicts[0]
        assert await master.finished() == verdicts[0]  # one that asks later hears it too
        master.close()

    run(test)


def test_a_local_link_never_answers_before_its_caller_has_finished() -> None:
    async def test() -> None:
        master = Master(PATIENT, lambda _: None)
        node = Node(master, attend(0, nodes=1))
        assert node.events.empty()
        assert len(master.group.roster) == 0
        await node.next(Start)
        master.close()

    run(test)


def test_time_passes_without_messages() -> None:
    async def test() -> None:
        settings = GroupSettings(join_timeout_s=0.01)
        master = Master(settings, lambda _: None)
        node = Node(master, attend(0))
        assert (await node.next(Waiting)).joined == 1
        verdict = await node.next(Verdict)
        assert verdict.outcome is Outcome.RENDEZVOUS_FAILED
        await node.link.close()
        assert await master.finished() == verdict
        master.close()

    run(test)


def test_a_closed_link_is_a_lost_node_when_its_grace_is_over() -> None:
    async def test() -> None:
        notes: asyncio.Queue[MasterEvent] = asyncio.Queue()
        master = Master(GroupSettings(node_grace_s=0.01), notes.put_nowait)
        nodes = [Node(master, attend(0)), Node(master, attend(1))]
        for node in nodes:
            await node.next(Start)
        await nodes[0].link.close()
        while not isinstance(note := await notes.get(), NodeLost):
            pass
        assert note.node_id == "h/0"
        assert [n.spec.node_id for n in master.group.roster] == ["h/1"]
        master.close()

    run(test)


def test_a_node_tells_of_its_own_workers_only() -> None:
    """Also of each once: what it says of another's is passed over, and it names no other host."""

    def stack(rank: int, remark: str) -> RankStack:
        return RankStack(rank, 7, "elsewhere", RankState.SILENT, remark=remark)

    async def test() -> None:
        master = Master(PATIENT, lambda _: None)
        nodes = [Node(master, attend(number)) for number in range(2)]
        for node in nodes:
            await node.next(Start)
        asking = asyncio.create_task(master.whereabouts())
        number = (await nodes[1].next(StackOrder)).number
        stacks = (stack(0, "a lie"), stack(1, "first"), stack(1, "last"), stack(2, "none"))
        nodes[1].link.send(StackReport(number, stacks))
        nodes[0].link.send(StackReport(number, (stack(0, "its own"),)))
        found = sorted((await asking).stacks, key=lambda found: found.rank)
        told = [(each.rank, each.node_rank, each.host, each.remark) for each in found]
        assert told == [(0, 0, "h", "its own"), (1, 1, "h", "last")]
        master.close()

    run(test)


def test_a_node_counts_the_steps_of_its_own_workers_only() -> None:
    async def test() -> None:
        master = Master(PATIENT, lambda _: None)
        nodes = [Node(master, attend(number)) for number in range(2)]
        for node in nodes:
            await node.next(Start)
        asking = asyncio.create_task(master.steps())
        number = (await nodes[0].next(StepsOrder)).number
        nodes[1].link.send(StepsReport(number, (RankSteps(0, 99, 1.0, 0.0),)))
        nodes[0].link.send(StepsReport(number, (RankSteps(0, 5, 1.0, 0.0),)))
        found = await asking
        assert [(each.rank, each.steps) for each in found.steps] == [(0, 5)]
        master.close()

    run(test)


def test_a_refused_stream_is_ended_after_the_reason() -> None:
    async def test() -> None:
        master = Master(PATIENT, lambda _: None)
        first = Node(master, attend(0))
        await first.next(Waiting)
        said: list[MasterMessage | None] = []
        link = master.attach(said.append)
        master.receive(link, attend(1, job="other"))
        assert [type(message) for message in said] == [Refused, type(None)]
        # What still comes from it belongs to no node.
        master.receive(link, Done(0))
        master.detach(link)
        assert len(master.group.roster) == 1
        master.close()

    run(test)


def test_closing_ends_all_streams() -> None:
    async def test() -> None:
        master = Master(PATIENT, lambda _: None)
        said: list[MasterMessage | None] = []
        links = [master.attach(said.append) for _ in range(3)]
        master.close()
        assert said == [None] * 3
        master.receive(links[0], attend(0))
        assert len(master.group.roster) == 0
        assert len(asyncio.all_tasks()) == 2  # this one and its time limit

    run(test)


def test_the_uptimes_are_those_of_the_clock() -> None:
    async def test() -> None:
        now = 100.0
        master = Master(PATIENT, lambda _: None, lambda: now)
        assert master.uptime_s() == (0.0, 0.0)
        now = 107.0
        node = Node(master, attend(0, nodes=1))
        await node.next(Start)
        now = 110.0
        assert master.uptime_s() == (10.0, 3.0)
        master.close()

    run(test)


@pytest.mark.parametrize("count", [0, 1])
def test_streams_have_numbers_of_their_own(count: int) -> None:
    async def test() -> None:
        master = Master(PATIENT, lambda _: None)
        first = [master.attach(lambda _: None) for _ in range(count)]
        for link in first:
            master.detach(link)
        assert master.attach(lambda _: None) not in first
        master.close()

    run(test)


def test_a_master_that_is_closed_begins_nothing() -> None:
    """A reader may have one more message of a stream that has been ended with it."""

    async def test() -> None:
        notes: list[MasterEvent] = []
        master = Master(PATIENT, notes.append)
        first = attend(0, nodes=1)
        first = replace(first, job=replace(first.job, hang=HangSpec(60.0, 60.0)))
        node = Node(master, first)
        await node.next(Start)
        (link,) = master._streams
        before = len(notes)
        master.close()
        master.receive(link, Suspicion(0, (0,), 60.0))
        assert master._hangs._task is None
        master._handle(Detached(link))  # as it is queued where the master ends a stream
        assert len(notes) == before

    run(test)
