"""The checks on a node: what its agent makes of orders, verdicts and the end of the job."""

import asyncio
import errno
import os
import re
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast

import pytest
from ft_run import exit_codes
from ft_run.checks.records import Fact, Phase, Record, record_from_json
from ft_run.errors import NodeUnfitError
from ft_run.launcher.agent.agent import Agent
from ft_run.launcher.agent.identity import NodeIdentity
from ft_run.launcher.logs.log_dir import LogDir
from ft_run.launcher.machine.network import PortReservation
from ft_run.launcher.options import CheckOptions, LaunchOptions, RendezvousOptions
from ft_run.launcher.preflight.crew import CheckCrew
from ft_run.launcher.preflight.session import CheckSession
from ft_run.launcher.reporting.display import Display
from ft_run.launcher.spawner.client import SpawnerClient
from ft_run.launcher.tuning.job_values import Tuning
from ft_run.launcher.workers.worker_command import WorkerCommands
from ft_run.launcher.workers.worker_starter import WorkerStarter
from ft_run.rendezvous.master.link import LinkDown, LinkUp, MasterLink
from ft_run.rendezvous.protocol.check_messages import (
    CheckOrder,
    CheckResult,
    CheckSpec,
    CheckVerdict,
)
from ft_run.rendezvous.protocol.messages import (
    Heard,
    MasterMessage,
    NodeMessage,
    Outcome,
    Verdict,
    Waiting,
)
from msgspec.structs import replace

PASSED = CheckVerdict(0, "", "2 of 2 nodes pass", "")
OVER = Verdict(Outcome.SUCCEEDED, 0, "checks finished: 2 of 2 nodes pass", 0, 0, None, (), 0)


def order(number: int) -> CheckOrder:
    return CheckOrder(number, "facts", "light", 0, 1, "127.0.0.1", 1, 60.0, "facts")


class FakeCrew:
    """Notes what it is asked; an order takes until ``answer`` is set."""

    def __init__(self) -> None:
        self.did: list[str] = []
        self.answer = asyncio.Event()
        self.facts: dict[str, Fact] = {}

    def start(self) -> None:
        self.did.append("start")

    async def run(self, order: CheckOrder) -> Record:
        self.did.append(f"order {order.number}")
        await self.answer.wait()
        return Record("n", Phase(order.phase), facts=self.facts)

    async def rest(self) -> None:
        self.did.append("rest")


class FakeLink:
    """Notes what is said to the master."""

    def __init__(self) -> None:
        self.said: list[NodeMessage] = []

    def send(self, message: NodeMessage) -> None:
        self.said.append(message)

    async def close(self) -> None:
        pass


class Node:
    """An agent whose master is a test."""

    def __init__(self, *, only: bool = True) -> None:
        spec = CheckSpec(level="light", timeout_s=60.0, only=only)
        rendezvous = RendezvousOptions(job_id="job", min_nodes=2, max_nodes=2)
        options = LaunchOptions("", rendezvous, checks=CheckOptions(spec))
        self.crew, self.link = FakeCrew(), FakeLink()
        self.port = PortReservation(lambda: "127.0.0.1", None)
        self.identity = NodeIdentity("job")
        spawner = cast(SpawnerClient, SimpleNamespace(preloading=False, fence=None))
        commands, log_dir = WorkerCommands(options, 1, {}), LogDir(options.logs, None, None)
        self.agent = Agent(
            options,
            Display(live=False),
            WorkerStarter(commands, None, log_dir, spawner, None),
            identity=self.identity,
            port=self.port,
            crew=cast(CheckCrew, self.crew),
            tuning=Tuning(),
        )
        self.agent._link = cast(MasterLink, self.link)

    async def hear(self, *messages: MasterMessage | LinkDown | LinkUp) -> None:
        """Take what the master says, or the link to it."""
        for message in messages:
            await self.agent._handle(message)
            await asyncio.sleep(0)

    def status(self) -> int:
        """Return the exit code; raise what the agent ends by."""
        return self.agent._life.status()

    def close(self) -> None:
        self.port.close()
        self.identity.close()


@pytest.fixture
def node(capfd: pytest.CaptureFixture[str]) -> Callable[..., None]:
    """Run a test of a node on an event loop."""

    def run(test: Callable[[Node], Coroutine[Any, Any, None]], *, only: bool = True) -> None:
        async def live() -> None:
            here = Node(only=only)
            try:
                await asyncio.wait_for(test(here), 60.0)
            finally:
                here.close()

        asyncio.run(live())

    return run


def test_a_node_that_was_never_checked_ends_with_20_and_one_sentence(node):
    async def test(node: Node) -> None:
        await node.hear(OVER)
        with pytest.raises(NodeUnfitError) as caught:
            node.status()
        assert caught.value.exit_code == exit_codes.CHECKS_FAILED
        assert caught.value.sentence == (
            "this node was not checked: it joined, or reconnected, while the others were being "
            "checked (checks finished: 2 of 2 nodes pass); run the check again."
        )
        assert node.link.said == [Heard()]

    node(test)


def test_a_node_that_was_lost_in_the_middle_of_its_checks_was_not_checked(node):
    async def test(node: Node) -> None:
        await node.hear(order(1), OVER)
        with pytest.raises(NodeUnfitError):
            node.status()

    node(test)


def test_a_node_that_has_passed_ends_with_0(node):
    async def test(node: Node) -> None:
        await node.hear(order(1), PASSED, OVER)
        assert node.status() == 0

    node(test)


def test_a_verdict_on_nodes_without_this_one_is_told_as_it_is(node):
    async def test(node: Node) -> None:
        failed = Verdict(Outcome.RENDEZVOUS_FAILED, 40, "too few", 0, 0, None, (), 0)
        await node.hear(failed)
        assert node.status() == 40

    node(test)


def test_a_job_that_goes_on_after_its_checks_ends_as_it_ends(node):
    async def test(node: Node) -> None:
        await node.hear(OVER)
        assert node.status() == 0

    node(test, only=False)


def test_how_far_the_checks_are_is_shown_until_they_are_over(node):
    async def test(node: Node) -> None:
        status = node.agent.status
        await node.hear(replace(order(1), progress="pair: 2 pairs; slowest so far h2: 0.4 GB/s"))
        assert " · checks pair: 2 pairs; slowest so far h2: 0.4 GB/s · " in status.text()
        await node.hear(PASSED)
        assert "pair" not in status.text()

    node(test)


def test_what_is_told_twice_is_shown_once_and_again_after_another_check(node, capfd):
    async def test(node: Node) -> None:
        await node.hear(order(1), PASSED, PASSED)
        assert capfd.readouterr().err.count("2 of 2 nodes pass") == 1
        await node.hear(order(2), PASSED)
        assert capfd.readouterr().err.count("2 of 2 nodes pass") == 1

    node(test)


@pytest.mark.parametrize(("phase", "is_given_up"), [("pair", True), ("solo", False)])
def test_a_meeting_that_an_earlier_master_ordered_is_given_up(node, phase, is_given_up):
    async def test(node: Node) -> None:
        await node.hear(LinkUp(again=False), replace(order(3), phase=phase), LinkUp(again=True))
        await node.hear(order(1))
        for _ in range(9):
            await asyncio.sleep(0)
        expected = ["order 3", "rest", "order 1"] if is_given_up else ["order 3"]
        assert node.crew.did == expected
        node.crew.answer.set()
        for _ in range(9):
            await asyncio.sleep(0)
        (answer,) = [said for said in node.link.said if isinstance(said, CheckResult)]
        assert answer.number == 1
        assert node.crew.did[-1] == "order 1"

    node(test)


def test_clock_of_an_earlier_master_s_order_is_left_out(node):
    """The others read theirs when the next master orders the same, perhaps a minute later."""

    async def test(node: Node) -> None:
        node.crew.facts = {"unix_time_s": 5.0, "gpus": 2}
        node.crew.answer.set()
        facts = replace(order(1), phase="facts")
        await node.hear(LinkUp(again=False), facts)
        for _ in range(9):
            await asyncio.sleep(0)
        await node.hear(facts, LinkUp(again=True), facts)
        first, again, next_master = [
            record_from_json(said.report).facts
            for said in node.link.said
            if isinstance(said, CheckResult)
        ]
        assert first == again == {"unix_time_s": 5.0, "gpus": 2}
        assert next_master == {"gpus": 2}

    node(test)


def test_a_meeting_goes_on_when_it_is_ordered_again(node):
    async def test(node: Node) -> None:
        pair = replace(order(3), phase="pair")
        await node.hear(LinkUp(again=False), pair, LinkUp(again=True), pair)
        assert node.crew.did == ["order 3"]

    node(test)


def test_a_spare_holds_no_device(node):
    async def test(node: Node) -> None:
        await node.hear(order(1), Waiting(2, 2, 2, (), 60.0, spare=False))
        assert node.crew.did == ["order 1"]
        await node.hear(Waiting(3, 2, 2, (), 60.0, spare=True))
        assert node.crew.did == ["order 1", "rest"]
        assert node.link.said == []

    node(test, only=False)


def test_workers_that_cannot_be_started_yet_are_left_to_the_first_order() -> None:
    class FullCrew(FakeCrew):
        def start(self) -> None:
            super().start()
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    crew, reserve = FullCrew(), PortReservation(lambda: "127.0.0.1", None)
    CheckSession(cast(CheckCrew, crew), reserve.renew, lambda _: None).prepare()
    assert crew.did == ["start"]
    reserve.close()


def test_an_order_that_was_dropped_is_carried_out_for_the_next_master() -> None:
    async def test() -> None:
        crew, said = FakeCrew(), asyncio.Queue[CheckResult]()
        reserve = PortReservation(lambda: "127.0.0.1", None)
        session = CheckSession(cast(CheckCrew, crew), reserve.renew, said.put_nowait)
        session.take(order(1))
        await asyncio.sleep(0)
        await session.rest()
        session.connected()
        crew.answer.set()
        assert session.take(order(1))  # another master counts anew, and asks for the same
        assert (await said.get()).number == 1
        assert crew.did == ["order 1", "rest", "order 1"]
        reserve.close()

    asyncio.run(asyncio.wait_for(test(), 60.0))


def test_why_the_master_is_away_is_told_once_each_time_it_is_away(node, capfd):
    """While a link is cut, a connection fails in one way and then in another, for minutes."""

    async def test(node: Node) -> None:
        refused, unreachable = LinkDown("connection refused"), LinkDown("no route to the host")
        await node.hear(refused, unreachable, refused, unreachable, LinkUp(again=True), refused)

    node(test)
    told = re.findall(r"connection refused|no route|connected", capfd.readouterr().err)
    assert told == ["connection refused", "connected", "connection refused"]
