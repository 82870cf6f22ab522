"""A node whose workers are gone, and which waits until their GPUs' memory is free.

In the driver's place: one that answers when the test lets it.
"""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
from ft_run.launcher.agent.lifecycle import Signalled
from ft_run.launcher.machine.gpu_memory import GpuMemory
from ft_run.launcher.machine.gpu_watch import Used
from ft_run.launcher.processes.worker_watch import WorkerWatch
from ft_run.launcher.spawner.client import SpawnerClient
from ft_run.launcher.spawner.messages import Empty, Exited, Spawned
from ft_run.rendezvous.protocol.claim import ClaimState, Progress
from ft_run.rendezvous.protocol.messages import (
    Assignment,
    Leave,
    Outcome,
    Start,
    Stop,
    Stopped,
    Verdict,
    Waiting,
)
from ft_run.tests.launcher.preflight import test_session
from ft_run.tests.launcher.preflight.test_session import Node
from ft_run.training.worker import page_layout as layout
from msgspec.structs import replace

FAILED = Verdict(Outcome.WORKERS_FAILED, 1, "too bad", 0, 1, None, (), 0)
SPARE = Waiting(2, 2, 2, (), 0.0, spare=True)
RunNode = Callable[..., None]
node = test_session.node
"""The fixture."""


def start(number: int) -> Any:
    return Start(Assignment(number, "m", 0, 0, 2, 0, 2, 0, 1, "n", "127.0.0.1", 1, "", None))


async def hear(here: Node, *events: Any) -> None:
    """Have the agent take what does not come from the master."""
    await here.hear(*events)


class Gpu:
    """Its memory is free when the test says so."""

    def __init__(self, here: Node, error: Exception | None = None) -> None:
        self.is_free, self._error, self._asked = asyncio.Event(), error, 0
        self.here = here
        self.asked: list[str] = []
        workers, spawner = here.agent._workers, cast(SpawnerClient, self)
        workers._spawner, workers._starter = spawner, replace(workers._starter, spawner=spawner)
        here.agent._workers._gpu_memory = GpuMemory(
            print, has_driver=lambda: True, ask=self._in_use
        )
        here.agent._workers._gpu_memory.remember()  # as when the agent begins to listen

    async def _in_use(self) -> Used:
        self._asked += 1
        if self._asked > 1:
            await self.is_free.wait()
            if self._error is not None:
                raise self._error
        return {"GPU-a": 0}

    preloading = False

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def note(*_: object) -> list[int]:
            self.asked.append(name)
            return []

        return note

    async def end(self, exit_code: int = 1) -> None:
        """The worker of round 0 comes as far as step 7, exits, and nothing is left of it."""
        await self.here.hear(start(0))
        group = self.here.agent._workers.group
        assert group is not None
        group._workers[0].watch = watch = WorkerWatch()
        watch._page[layout.PID], watch._page[layout.TICKS], watch._page[layout.FURTHEST] = 1, 7, 8
        for event in (Spawned(0, (101,)), Exited(0, 0, exit_code), Empty()):
            await hear(self.here, event)

    async def answers(self) -> None:
        self.is_free.set()
        for _ in range(5):
            await asyncio.sleep(0)
        while not self.here.agent._events.empty():
            await hear(self.here, self.here.agent._events.get_nowait())

    @property
    def stopped(self) -> list[Stopped]:
        return [said for said in self.here.link.said if isinstance(said, Stopped)]


def run(
    node: RunNode,
    test: Callable[[Node, Gpu], Awaitable[None]],
    error: Exception | None = None,
) -> None:
    async def live(here: Node) -> None:
        try:
            await test(here, Gpu(here, error))
        finally:
            here.agent._workers.close()

    node(live, only=False)


def test_a_stop_is_confirmed_when_the_memory_is_free(node: RunNode) -> None:
    async def test(here: Node, gpu: Gpu) -> None:
        await gpu.end()
        before = here.port.offer
        await here.hear(Stop(0, "a worker failed"), SPARE)
        assert gpu.stopped == []
        assert here.agent._claim.state is ClaimState.RUNNING
        await gpu.answers()
        assert gpu.stopped == [Stopped(0, here.port.offer, Progress(7, has_stepped=True))]
        assert here.port.offer != before
        before = here.port.offer
        await here.hear(start(1))
        await gpu.answers()
        assert (here.port.offer, len(gpu.stopped)) == (before, 1), "the reservation is in use"

    run(node, test)


@pytest.mark.parametrize("order", [Stop(0, "a round of the past", is_stale=True), None])
def test_nothing_is_killed_that_is_gone(
    node: RunNode,
    order: Stop | None,
    capfd: pytest.CaptureFixture[str],
) -> None:
    async def test(here: Node, gpu: Gpu) -> None:
        await gpu.end()
        gpu.asked.clear()
        capfd.readouterr()
        if order is not None:
            await here.hear(order)
        else:
            here.agent._fence()
        assert (gpu.asked, gpu.stopped, capfd.readouterr().err) == ([], [], "")
        await gpu.answers()
        assert len(gpu.stopped) == 1

    run(node, test)


def test_a_node_that_leaves_does_not_wait(node: RunNode) -> None:
    """Nothing will be started on it, and it may have to save what its workers have left."""

    async def test(here: Node, gpu: Gpu) -> None:
        await gpu.end()
        await hear(here, Signalled(signal.SIGTERM))
        assert here.link.said[-2:] == [
            Leave("SIGTERM"),
            Stopped(0, here.port.offer, Progress(7, has_stepped=True)),
        ]
        assert here.agent._life.is_decided
        await gpu.answers()
        assert len(gpu.stopped) == 1

    run(node, test)


def test_a_node_that_was_asked_to_leave_before_does_not_wait_either(
    node: RunNode,
) -> None:
    async def test(here: Node, gpu: Gpu) -> None:
        await hear(here, start(0), Spawned(0, (101,)))
        await hear(here, Signalled(signal.SIGTERM))
        assert gpu.stopped == []
        await hear(here, Exited(0, 0, -15), Empty())
        assert len(gpu.stopped) == 1
        assert here.agent._life.is_decided

    run(node, test)


def test_workers_that_succeeded_hold_nothing_up(node: RunNode) -> None:
    async def test(here: Node, gpu: Gpu) -> None:
        await gpu.end(0)
        assert len(gpu.stopped) == 1

    run(node, test)


def test_the_end_of_the_job_is_not_waited_for(node: RunNode) -> None:
    async def test(here: Node, gpu: Gpu) -> None:
        await gpu.end()
        await here.hear(FAILED)
        assert here.agent._workers.group is None
        assert here.status() == 1

    run(node, test)


def test_a_bug_in_asking_the_driver_is_shown_and_holds_nothing_up(
    node: RunNode,
) -> None:
    shown: list[object] = []

    async def test(here: Node, gpu: Gpu) -> None:
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: shown.append(context["exception"])
        )
        await gpu.end()
        await gpu.answers()
        assert len(gpu.stopped) == 1

    bug = TypeError("no such answer")
    run(node, test, bug)
    assert shown == [bug]
