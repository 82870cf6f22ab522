"""The metrics of a job from its master's group, with a clock that only the tests move."""

import asyncio
import time
from typing import Any

from ft_run.launcher.metrics import catalogue as c
from ft_run.launcher.metrics.job_metrics import JobMetrics
from ft_run.launcher.metrics.master_metrics import master_samples
from ft_run.launcher.version import VERSION
from ft_run.rendezvous.group.events import Command, Event, GroupSettings
from ft_run.rendezvous.master.link import LocalLink
from ft_run.rendezvous.master.master import Master
from ft_run.rendezvous.protocol.messages import (
    PROTOCOL_VERSION,
    Attend,
    JobSpec,
    NodeSpec,
    PolicySpec,
    Start,
)
from ft_run.rendezvous.protocol.offer import Offer
from ft_run.rendezvous.protocol.status import WorkProgress
from ft_run.rendezvous.protocol.steps import RankSteps, StepsOrder, StepsReport
from ft_run.rendezvous.work.messages import WorkClaim, WorkReport
from ft_run.tests.harness.scene import Scene, worker_failure


class Watched(Scene):
    """A group whose metrics follow it as those of a master do."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.is_closed = False
        self.metrics = JobMetrics(lambda: self.now)
        self.metrics.changed(self)  # type: ignore[arg-type]  # it has what is read of a master

    def handle(self, event: Event) -> list[Command]:
        commands = super().handle(event)
        self.metrics.changed(self)  # type: ignore[arg-type]  # as above
        return commands

    def progress(self) -> tuple[WorkProgress, ...]:
        return self.rules.work.progress(self.now)

    def value(self, metric: c.Metric, *labels: str) -> float:
        return self.metrics.now()[metric][labels]

    def nodes(self) -> dict[str, float]:
        """Return the states that nodes are in."""
        found = self.metrics.now()[c.NODES]
        return {state: nodes for (state,), nodes in found.items() if nodes}

    def seconds(self) -> dict[str, float]:
        found = self.metrics.now()[c.NODE_SECONDS]
        return {state: seconds for (state,), seconds in found.items() if seconds}


def test_each_second_of_each_node_counts_for_its_state() -> None:
    scene = Watched(2, 2)
    scene.attend("a")
    scene.wait(10)
    assert scene.nodes() == {"waiting": 1, "missing": 1}
    scene.attend("b")
    scene.attend("c")
    scene.wait(100)
    assert scene.nodes() == {"training": 2, "spare": 1}
    assert scene.seconds() == {"waiting": 10, "missing": 10, "training": 200, "spare": 100}
    scene.fail("a")
    scene.wait(3)
    assert scene.nodes() == {"waiting": 3}
    assert scene.seconds()["waiting"] == 10 + 9
    scene.stopped("a", "b")
    scene.wait(7)
    assert scene.nodes() == {"training": 2, "spare": 1}
    assert scene.seconds()["training"] == 200 + 14


def test_a_node_that_a_growing_job_can_use_is_no_spare() -> None:
    scene = Watched(1, 2, last_call_timeout_s=1.0, rescale_delay_s=60.0)
    scene.attend("a")
    scene.wait(10)
    scene.attend("b")
    scene.wait(10)
    assert scene.nodes() == {"training": 1, "waiting": 1}
    scene.attend("c")
    scene.wait(100)
    scene.stopped("a")
    scene.wait(1)
    assert scene.nodes() == {"training": 2, "spare": 1}


def test_restarts_count_by_their_cause() -> None:
    scene = Watched(2, 2, node_grace_s=5.0)
    for name in "abc":
        scene.attend(name)
    scene.wait(1)
    assert scene.value(c.RESTARTS, "worker") == scene.value(c.RESTARTS, "node_lost") == 0
    scene.fail("a")
    scene.stopped("a", "b")
    scene.wait(1)
    scene.detach("b")
    scene.wait(6)
    scene.stopped("a")
    scene.wait(1)
    assert scene.value(c.RESTARTS, "worker") == 1
    assert scene.value(c.RESTARTS, "node_lost") == 1
    assert scene.value(c.ROUND) == 2
    assert scene.nodes() == {"training": 2}  # the spare has taken over


def test_an_excluded_node_is_missing_too() -> None:
    scene = Watched(2, 2, policy=PolicySpec(("oom=replace-node",)))
    for name in "ab":
        scene.attend(name)
    scene.wait(1)
    scene.fail("b", worker_failure(1, code=-9, out_of_memory=True))
    scene.stopped("a", "b")
    scene.wait(1)
    assert scene.nodes() == {"waiting": 1, "missing": 1, "excluded": 1}


def test_who_does_not_lead_has_no_samples() -> None:
    scene = Watched()
    assert scene.metrics.now()
    scene.is_closed = True
    assert not scene.metrics.now()
    assert not JobMetrics().now()


def test_ten_thousand_nodes_have_no_more_series_than_two() -> None:
    def series(nodes: int) -> int:
        scene = Watched(nodes)
        for number in range(nodes):
            scene.attend(f"node-{number}")
        scene.wait(1)
        assert scene.value(c.NODES, "training") == nodes
        return sum(map(len, scene.metrics.now().values()))

    assert series(10_000) == series(2) < 30


def test_the_newest_shared_work() -> None:
    scene = Watched(1, 1)
    scene.attend("a")
    for number in range(25):
        claim = WorkClaim(f"w{number}", 9, 1, confirmed=(0, number % 9))
        scene.say("a", WorkReport(0, number, claim, 0.0, 0))
    found = scene.metrics.now()
    assert len(found[c.WORK_ITEMS]) == 20
    assert (found[c.WORK_ITEMS]["w24",], found[c.WORK_DONE]["w24",]) == (9, 6)


# --- ft-run master -----------------------------------------------------------------------------


def test_the_master_asks_the_node_with_rank_0_only() -> None:
    asked = []

    class Agent:
        def __init__(self, master: Master, number: int) -> None:
            self.started = asyncio.Event()
            spec = NodeSpec(f"h/{number}", f"i{number}", "h", "127.0.0.1", "r", 1, number)
            first = Attend(
                protocol=PROTOCOL_VERSION,
                version="1",
                job=JobSpec("run1", 3, 3, 1, 0),
                node=spec,
                offer=Offer("127.0.0.1", 1000 + number),
                claim=None,
            )
            self.number = number
            self.link = LocalLink(master, lambda: first, self.receive)

        def receive(self, message: object) -> None:
            if isinstance(message, Start):
                self.started.set()
            if isinstance(message, StepsOrder):
                asked.append(self.number)
                steps = (RankSteps(self.number, 41, 2.0, 30.0, 0.25),)
                self.link.send(StepsReport(message.number, steps, 40, 60.0))

    async def test() -> None:
        job = JobMetrics()
        master = Master(GroupSettings(), lambda _: None, changed=job.changed)
        before = await master_samples(job, 2)
        assert c.LAST_STEP not in before
        for agent in [Agent(master, number) for number in range(3)]:
            await agent.started.wait()
        found = await master_samples(job, 2)
        now = time.time()
        assert asked == [0]
        assert found[c.JOB_INFO].keys() == {("run1", "2", "", VERSION)}
        assert found[c.STEP][()] == 41
        assert found[c.DATA_WAIT][()] == 0.25
        assert 29.9 <= now - found[c.LAST_STEP][()] < 90
        assert 59.9 <= now - found[c.LAST_CHECKPOINT][()] < 120
        asking = asyncio.create_task(master.steps())
        steps = (await asking).steps
        assert sorted(asked) == [0, 0, 1, 2]
        assert len(steps) == 3
        master.close()

    asyncio.run(asyncio.wait_for(test(), 60))
