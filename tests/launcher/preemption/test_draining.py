"""Nodes that will be gone: what workers are told, and what the master hears."""

import asyncio
import sys
from collections.abc import Callable
from typing import Any

import pytest
from ft_run.launcher.preemption.draining import Draining
from ft_run.rendezvous.protocol.drain_messages import CancelDrain, Drain, Drained
from ft_run.tests.harness.descriptors import own_descriptors
from msgspec.structs import replace

ORDER = Drain(3, "node b is being preempted (SIGTERM)", 30.0, is_whole=False)
GROWTH = Drain(3, "scaling up", 3600.0, is_whole=False, resizes=True, grows=True)
WORKER = """
import sys
from ft_run.training.worker.preemption import find_notice
rank = int(sys.argv[1])
kind = sys.argv[2]
notice = find_notice(rank, will_save=kind in ("keep", "fixed"), is_fixed=kind == "fixed")
print(notice.code if notice is not None else "none", flush=True)
for line in sys.stdin:
    word, _, number = line.strip().partition(" ")
    if word == "code":
        print(notice.code, flush=True)
    elif word == "given":
        print(notice.is_given, flush=True)
    elif word == "saves":
        print(notice.saves, flush=True)
    elif word == "left":
        notice.report_saved(int(number))
        print(notice.code, flush=True)
    elif word == "wait":
        print(notice.wait(int(number)), flush=True)
"""


class Worker:
    """A process that asks the agent: this one."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    @classmethod
    async def start(cls, rank: int, kind: str = "keep", *, is_late: bool = False) -> "Worker":
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", WORKER, str(rank), kind),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        worker = cls(process)
        assert await worker.answer() == ("1" if is_late else "0")
        return worker

    async def answer(self) -> str:
        assert self.process.stdout is not None
        return (await self.process.stdout.readline()).decode().strip()

    async def ask(self, words: str) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{words}\n".encode())
        return await self.answer()

    async def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        await self.process.wait()


class Node:
    """A node in a round."""

    def __init__(self, *, saves: bool) -> None:
        self.sent: list[Drained] = []
        self.draining = Draining(self.sent.append, saves=saves)
        self.draining.listen(asyncio.get_running_loop())
        self.draining.begin(3)


def run(test: Callable[[Node], Any], *, saves: bool = True) -> None:
    async def prepared() -> None:
        before = own_descriptors()
        node = Node(saves=saves)
        try:
            await test(node)
        finally:
            node.draining.close()
        assert own_descriptors() <= before

    asyncio.run(asyncio.wait_for(prepared(), 60))


def test_the_master_is_told_when_all_ranks_have_left_one_state() -> None:
    async def test(node: Node) -> None:
        workers = [await Worker.start(rank) for rank in (0, 1)]
        assert node.draining.is_asked_for
        node.draining.order(ORDER)
        assert [await worker.ask("code") for worker in workers] == ["1", "1"]
        assert node.sent == []
        assert await workers[0].ask("left 7") == "0"  # it has obeyed
        assert node.sent == []
        await workers[1].ask("left 7")
        assert node.sent == [Drained(3, 7)]
        node.draining.order(ORDER)  # said again, on another stream
        assert node.sent == [Drained(3, 7)] * 2
        for worker in workers:
            await worker.end()

    run(test)


@pytest.mark.parametrize("saves", [True, False])
def test_workers_are_told_whether_to_save_what_would_be_lost(saves: bool) -> None:
    async def test(node: Node) -> None:
        worker = await Worker.start(0)
        node.draining.order(ORDER)
        assert await worker.ask("saves") == str(saves)
        await worker.end()

    run(test, saves=saves)


def test_different_steps_are_no_one_state() -> None:
    async def test(node: Node) -> None:
        workers = [await Worker.start(rank) for rank in (0, 1)]
        node.draining.order(ORDER)
        await workers[0].ask("left 7")
        await workers[1].ask("left 8")
        assert node.sent == []
        for worker in workers:
            await worker.end()

    run(test)


def test_a_worker_that_waits_hears_that_nothing_in_memory_stays() -> None:
    async def test(node: Node) -> None:
        worker = await Worker.start(0)
        node.draining.order(ORDER)
        await worker.ask("left 7")
        waiting = asyncio.create_task(worker.ask("wait 1"))
        node.draining.order(Drain(3, "all", 1.0, is_whole=True))
        assert await waiting == "True"
        await worker.end()

    run(test)


def test_a_worker_does_not_wait_beyond_its_time() -> None:
    async def test(node: Node) -> None:
        worker = await Worker.start(0)
        node.draining.order(Drain(3, "all", 0.05, is_whole=False))
        await worker.ask("left 7")
        assert await worker.ask("wait 1") == "False"
        await worker.end()

    run(test)


def test_workers_that_never_asked_are_not_waited_for() -> None:
    async def test(node: Node) -> None:
        assert not node.draining.is_asked_for
        node.draining.order(ORDER)
        assert node.sent == [Drained(3, -1)]

    run(test)


def test_a_script_that_asks_and_ends_has_made_itself_ready() -> None:
    async def test(node: Node) -> None:
        worker = await Worker.start(0, "ask")
        assert not node.draining.are_ready(3)  # its job is over
        node.draining.order(ORDER)
        assert await worker.ask("given") == "True"
        assert not node.draining.are_ready(2)
        assert node.sent == []
        assert node.draining.are_ready(3)
        assert node.sent == [Drained(3, -1)]
        await worker.end()

    run(test)


def test_one_that_does_not_ask_or_has_a_checkpointer_is_done_when_it_ends() -> None:
    async def test(node: Node) -> None:
        node.draining.order(ORDER)
        assert not node.draining.are_ready(3)
        worker = await Worker.start(0, is_late=True)
        assert not node.draining.are_ready(3)
        await worker.end()

    run(test)


def test_fixed_number_of_ranks_is_reported_once_and_in_answer_to_growth() -> None:
    async def test(node: Node) -> None:
        worker, other = await Worker.start(0, "fixed"), await Worker.start(1, "fixed")
        assert node.sent == [Drained(3, -1, 0, is_fixed=True)]
        assert not node.draining.order(replace(GROWTH, number=5))
        assert node.sent[1:] == [Drained(3, -1, 5, is_fixed=True)]
        assert await worker.ask("code") == "0"
        node.draining.begin(4)
        assert node.draining.order(ORDER)
        await worker.end()
        await other.end()

    run(test)


def test_a_round_begins_without_a_notice() -> None:
    async def test(node: Node) -> None:
        worker = await Worker.start(0)
        node.draining.order(ORDER)
        node.draining.begin(3)
        assert await worker.ask("code") == "0"
        assert not node.draining.is_asked_for
        await worker.end()

    run(test)


def test_before_the_world_grows_a_script_is_not_preempted_and_saves_for_another_size() -> None:
    async def test(node: Node) -> None:
        worker = await Worker.start(0)
        assert node.draining.order(GROWTH)  # the user is told once
        assert not node.draining.order(GROWTH)
        assert [await worker.ask("given"), await worker.ask("code")] == ["False", "2"]
        await worker.ask("left 7")
        assert node.sent == [Drained(3, 7)]
        assert node.draining.order(ORDER)  # a node is preempted meanwhile
        assert await worker.ask("given") == "True"
        assert node.sent[-1] == Drained(3, 7)  # what was saved is enough
        await worker.end()

    run(test)


@pytest.mark.parametrize("kind", ["ask", None])
def test_workers_that_save_nothing_do_not_delay_a_larger_world(kind: str | None) -> None:
    async def test(node: Node) -> None:
        worker = await Worker.start(0, kind) if kind is not None else None
        assert not node.draining.order(GROWTH)  # no word for the user
        assert node.sent == [Drained(3, -1)]
        assert not node.draining.are_ready(3)  # if they exit with 0 the job is over
        if worker is not None:
            assert await worker.ask("given") == "False"
            await worker.end()

    run(test)


def test_workers_continue_when_the_world_does_not_grow() -> None:
    async def test(node: Node) -> None:
        worker = await Worker.start(0)
        node.draining.order(GROWTH)
        await worker.ask("left 7")
        waiting = asyncio.create_task(worker.ask("wait 2"))
        assert node.draining.cancel(CancelDrain(3, 1))
        assert await waiting == "False"
        assert await worker.ask("code") == "0"
        assert not node.draining.cancel(CancelDrain(3, 1))
        await worker.ask("left 8")  # too late
        assert not node.draining.order(GROWTH)  # a message that comes late
        assert await worker.ask("code") == "0"
        again = replace(GROWTH, number=1)
        assert node.draining.order(again)
        assert node.sent == [Drained(3, 7)]
        assert await worker.ask("code") == "2"
        assert not node.draining.cancel(CancelDrain(3, 1))
        await worker.ask("left 9")
        assert node.sent[1:] == [Drained(3, 9, 1)]
        await worker.end()

    run(test)


def test_a_larger_world_of_another_master_is_another_order() -> None:
    async def test(node: Node) -> None:
        worker = await Worker.start(0)
        node.draining.order(GROWTH)
        await worker.ask("left 7")
        waiting = asyncio.create_task(worker.ask("wait 2"))
        assert node.draining.order(replace(GROWTH, number=1))
        assert await waiting == "False"  # the step goes on, and it saves once more
        assert await worker.ask("code") == "2"
        assert node.sent == [Drained(3, 7)]
        await worker.end()

    run(test)


def test_a_preemption_is_not_cancelled() -> None:
    async def test(node: Node) -> None:
        worker = await Worker.start(0)
        node.draining.order(ORDER)
        assert not node.draining.cancel(CancelDrain(3, 1))
        assert await worker.ask("code") == "1"
        await worker.end()

    run(test)


def test_an_order_that_is_over_leaves_no_deadline() -> None:
    async def test(node: Node) -> None:
        worker = await Worker.start(0)
        node.draining.order(replace(GROWTH, seconds=0.01))
        await worker.ask("left 7")
        assert await worker.ask("wait 2") == "False"
        node.draining.order(GROWTH)  # of a new master, which counts alike
        assert await worker.ask("code") == "2"
        await worker.ask("left 9")
        assert node.sent == [Drained(3, 7), Drained(3, 9)]
        await worker.end()

    run(test)
