"""How long a stop may take, on a clock that the test moves."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast
from unittest import mock

from ft_run.launcher.agent.lifecycle import StopWorkers
from ft_run.launcher.agent.reports import NodeReports
from ft_run.launcher.agent.stopping import HUNG_S, LEFTOVERS_S, SETTLE_S, TimeOver
from ft_run.launcher.agent.supervisor import Supervisor
from ft_run.launcher.logs.log_dir import LogDir
from ft_run.launcher.machine.gpu_memory import GpuMemory
from ft_run.launcher.options import LaunchOptions, RendezvousOptions
from ft_run.launcher.reporting.display import Display
from ft_run.launcher.spawner.client import SpawnerClient, WorkerCommand
from ft_run.launcher.spawner.messages import Exited, Spawned
from ft_run.launcher.workers.worker_command import WorkerCommands
from ft_run.launcher.workers.worker_group import WorkerGroupState
from ft_run.launcher.workers.worker_starter import WorkerStarter
from ft_run.rendezvous.protocol.messages import Assignment, NodeSpec
from ft_run.tests.harness.hand_clock import HandClock

SHUTDOWN_S = 30.0


class FakeSpawner:
    """Notes what it is asked; its workers ignore SIGTERM."""

    preloading = False

    def __init__(self) -> None:
        self.asked: list[str] = []

    def spawn(self, round_number: int, workers: Sequence[WorkerCommand]) -> None:
        self.asked.append(f"spawn {len(workers)}")

    def terminate_all(self) -> None:
        self.asked.append("terminate all")

    def stop(self, number: int) -> None:
        self.asked.append(f"stop {int(number)}")

    def kill(self) -> None:
        self.asked.append("kill")

    def left(self) -> list[int]:
        return [101, 102]


class Node:
    """A supervisor whose workers run, with its clock."""

    def __init__(self, clock: HandClock) -> None:
        options = LaunchOptions(
            "train.py", RendezvousOptions(job_id="job"), shutdown_timeout_s=SHUTDOWN_S
        )
        self.clock, self.spawner = clock, FakeSpawner()
        self.over: list[TimeOver] = []
        self.reports = mock.Mock()
        spawner = cast(SpawnerClient, self.spawner)
        commands, log_dir = WorkerCommands(options, 2, {}), LogDir(options.logs, None, None)
        self.supervisor = Supervisor(
            NodeSpec("n", "i", "h", "127.0.0.1", "default", 2, None),
            WorkerStarter(commands, None, log_dir, spawner, None),
            SHUTDOWN_S,
            post=self.over.append,
            note=Display(live=False).event,
            reports=cast(NodeReports, self.reports),
        )

    def start(self) -> None:
        assignment = Assignment(0, "m", 0, 0, 1, 0, 2, 0, 2, "n", "127.0.0.1", 1, "", None)
        self.call(self.supervisor.start, assignment)
        self.supervisor.spawned(Spawned(0, (101, 102)))

    def take_what_is_over(self) -> None:
        while self.over:
            self.call(self.supervisor.time_over, self.over.pop(0))

    def stop(self, **options: Any) -> None:
        self.call(self.supervisor.stop, StopWorkers(**options))

    def kill(self) -> None:
        self.call(self.supervisor.kill)

    def call(self, function: Callable[..., object], *args: Any, **options: Any) -> None:
        """Call a function on the loop."""

        async def call() -> None:
            function(*args, **options)

        self.do(call())

    def end(self, *exit_codes: int) -> None:
        """Let the workers exit, and nothing be left of them."""

        async def end() -> None:
            for local_rank, code in enumerate(exit_codes):
                await self.supervisor.exited(Exited(0, local_rank, code))
            self.supervisor.empty()

        self.do(end())

    def do(self, what: Any) -> None:
        self.clock.run_until_complete(what)


def with_node(test: Callable[[Node], None]) -> None:
    clock = HandClock()
    try:
        node = Node(clock)
        node.start()
        test(node)
        node.supervisor.close()
    finally:
        clock.close()


def test_workers_that_ignore_a_stop_are_killed_when_their_time_is_over(capfd) -> None:
    def test(node: Node) -> None:
        node.stop()
        node.clock.pass_to(SHUTDOWN_S - 1)
        node.take_what_is_over()
        assert node.spawner.asked == ["spawn 2", "stop 15"]
        node.clock.pass_to(SHUTDOWN_S + 1)
        node.take_what_is_over()
        assert node.spawner.asked == ["spawn 2", "stop 15", "kill"]

    with_node(test)


def test_workers_of_a_node_that_will_be_gone_have_what_is_left_of_its_time(capfd) -> None:
    def test(node: Node) -> None:
        node.stop(patience_s=7.0)
        node.clock.pass_to(8.0)
        node.take_what_is_over()
        assert node.spawner.asked == ["spawn 2", "stop 15", "kill"]
        assert "2 worker(s) still alive after 7 s: sending SIGKILL" in capfd.readouterr().err

    with_node(test)


def test_what_workers_left_running_is_killed_and_is_no_worker(capfd) -> None:
    def test(node: Node) -> None:
        for local_rank in (0, 1):
            node.do(node.supervisor.exited(Exited(0, local_rank, 0)))
        node.call(node.supervisor.end, gently=True)
        node.clock.pass_to(LEFTOVERS_S + 1)
        node.take_what_is_over()
        assert node.spawner.asked == ["spawn 2", "terminate all", "kill"]
        assert (
            "2 process(es) that the workers left running still alive after 5 s: sending SIGKILL\n"
        ) in capfd.readouterr().err

    with_node(test)


def test_a_second_stop_gives_them_no_more_time(capfd) -> None:
    """Such as a signal to an agent that stops its workers because one has failed."""

    def test(node: Node) -> None:
        node.stop()
        node.clock.pass_to(SHUTDOWN_S - 1)
        node.stop()
        assert node.supervisor.group is not None
        assert node.supervisor.group.state is WorkerGroupState.STOPPING
        node.clock.pass_to(SHUTDOWN_S + 1)
        node.take_what_is_over()
        assert node.spawner.asked == ["spawn 2", "stop 15", "kill"]

    with_node(test)


def test_hung_workers_are_killed_soon_and_those_of_the_next_stop_are_not(capfd) -> None:
    def test(node: Node) -> None:
        node.stop(is_hung=True)
        node.clock.pass_to(HUNG_S + 0.1)
        node.take_what_is_over()
        assert node.spawner.asked == ["spawn 2", "stop 15", "kill"]
        assert "still alive after 2 s: sending SIGKILL" in capfd.readouterr().err
        node.end(-9, -9)
        node.start()
        node.stop()
        node.clock.pass_to(node.clock.now + HUNG_S + 0.1)
        node.take_what_is_over()
        assert node.spawner.asked[3:] == ["spawn 2", "stop 15"]

    with_node(test)


def test_a_worker_that_is_ending_is_waited_for_a_moment(capfd) -> None:
    def test(node: Node) -> None:
        node.stop(lets_settle=True)
        assert node.spawner.asked == ["spawn 2"]
        node.clock.pass_to(SETTLE_S + 0.1)
        node.take_what_is_over()
        assert node.spawner.asked == ["spawn 2", "stop 15"]

    with_node(test)


def test_nothing_is_waited_for_when_all_workers_have_ended_by_themselves(capfd) -> None:
    def test(node: Node) -> None:
        node.stop(lets_settle=True)
        assert node.spawner.asked == ["spawn 2"]
        node.end(0, 0)
        assert node.spawner.asked == ["spawn 2", "kill"]
        assert node.reports.workers_gone.call_count == 1

    with_node(test)


def test_stale_workers_are_killed_without_a_word(capfd) -> None:
    def test(node: Node) -> None:
        node.kill()
        node.kill()
        assert node.spawner.asked == ["spawn 2", "kill"]

    with_node(test)


def test_stale_workers_that_are_being_stopped_get_no_more_time(capfd) -> None:
    def test(node: Node) -> None:
        node.stop()
        node.kill()
        assert node.spawner.asked == ["spawn 2", "stop 15", "kill"]
        assert node.supervisor.group is not None
        assert node.supervisor.group.state is WorkerGroupState.KILLING

    with_node(test)


def test_a_worker_that_fails_before_the_memory_of_gpus_is_known_holds_nothing_up(capfd) -> None:
    """The question how much is in use takes a moment, and a worker may fail within it."""

    async def make() -> "tuple[asyncio.Event, GpuMemory]":
        is_known = asyncio.Event()

        async def answered() -> dict[str, int]:
            await is_known.wait()
            return {}

        memory = GpuMemory(mock.Mock(), has_driver=lambda: True, ask=answered)
        memory.remember()
        return is_known, memory

    clock = HandClock()
    try:
        node = Node(clock)
        is_known, memory = clock.run_until_complete(make())
        node.supervisor._gpu_memory = memory
        node.start()
        node.stop()  # limits the time that the workers have to end
        node.end(1, 1)
        assert node.reports.workers_gone.call_count == 0
        is_known.set()
        for _ in range(5):
            clock.run_until_complete(asyncio.sleep(0))
        node.take_what_is_over()
        assert node.reports.workers_gone.call_count == 1
        node.supervisor.close()
    finally:
        clock.close()
