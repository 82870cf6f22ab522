"""What a node tells its master of workers that are late, and does when it is answered."""

import asyncio
import os
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from ft_run.events.event import Event
from ft_run.events.workers import HangDismissed, HangSuspected, StacksKept
from ft_run.launcher.processes.worker_watch import WorkerWatch
from ft_run.launcher.stacks.collect import AskedWorker
from ft_run.launcher.workers import hangs as module
from ft_run.launcher.workers.hangs import Hangs
from ft_run.launcher.workers.worker_group import WorkerGroup, WorkerGroupState
from ft_run.rendezvous.protocol.messages import HangSpec, Stop
from ft_run.rendezvous.protocol.stacks import NoHang, StackReport, Suspicion
from ft_run.tests.launcher.stacks.test_control_plane import Server
from ft_run.training.worker import page_layout as layout
from ft_run.training.worker.recorders import write_backends

RECORDED = Path(__file__).parents[2] / "rendezvous/diagnosis/dumps/gpu/recorded.0"
SPEC = HangSpec(timeout_s=60.0, start_s=1800.0)


class Node:
    """A node with two workers, and what it says."""

    def __init__(self, folder: Path) -> None:
        self.watches = (WorkerWatch(), WorkerWatch())
        self.sent: list[Any] = []
        self.told: list[Event] = []
        self.hangs = Hangs(SPEC, "h", self.sent.append, self.told.append)
        self.running = [AskedWorker(4 + i, 1, watch) for i, watch in enumerate(self.watches)]
        self.state = WorkerGroupState.RUNNING
        group = SimpleNamespace(
            assignment=SimpleNamespace(round=2, node_rank=1),
            logs=SimpleNamespace(directory=str(folder)),
            running=self.running,
            state=self.state,
        )
        self.group = cast(WorkerGroup, group)

    def got_on(self, index: int, seconds_ago: float) -> None:
        """A worker did its fifth step so long ago."""
        page = self.watches[index]._page
        page[layout.PID], page[layout.TICKS] = 1, 5
        page[layout.LAST_NS] = time.monotonic_ns() - int(seconds_ago * 1e9)

    def suspected(self) -> list[tuple[int, tuple[int, ...], int]]:
        assert all(isinstance(message, Suspicion) for message in self.sent)
        return [(message.round, message.ranks, round(message.idle_s)) for message in self.sent]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    for watch in node.watches:
        watch.close()


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 60.0))


def begun_long_ago(node: Node) -> None:
    """The round began before any step: what is late is told at the next look."""
    node.hangs.begin(node.group)
    assert node.hangs._lateness is not None
    node.hangs._lateness.begin(0.0)
    node.sent.clear()


def test_stacks_have_the_note_of_their_rank(node: Node) -> None:
    async def test() -> None:
        answered = asyncio.Event()

        def sent(message: object) -> None:
            node.sent.append(message)
            answered.set()

        hangs = Hangs(None, "h", sent, node.told.append, note_of="doing {}".format)
        node.running[:] = [AskedWorker(rank, os.getpid(), None) for rank in (4, 5)]
        hangs.report(1, node.group)
        await answered.wait()
        assert [stack.note for stack in node.sent[0].stacks] == ["doing 4", "doing 5"]

    run(test)


def test_an_error_is_shown_when_it_comes() -> None:
    """The master only sees a node that does not answer."""
    shown: list[object] = []

    def broken(_: object) -> None:
        raise ZeroDivisionError

    async def test() -> None:
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: shown.append((context["message"], type(context["exception"])))
        )
        hangs = Hangs(None, "h", broken, print)
        hangs.report(1, None)
        assert hangs._reporting is not None
        await asyncio.wait([hangs._reporting])
        await asyncio.sleep(0)
        told = "a report of stacks failed, which is a bug of ft-run"
        assert shown == [(told, ZeroDivisionError)]

    asyncio.run(test())


def test_what_nccl_has_recorded_is_in_the_reports_of_one_inquiry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test is the thread of torch that writes a dump when its pipe says so."""
    environ = {
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": f"{tmp_path}/pipe_",
        "TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/dump_",
    }
    os.mkfifo(tmp_path / "pipe_3.pipe")
    pipe = os.open(tmp_path / "pipe_3.pipe", os.O_RDONLY | os.O_NONBLOCK)
    sent: list[StackReport] = []
    running = (AskedWorker(3, os.getpid(), None), AskedWorker(4, os.getpid(), None))
    group: Any = SimpleNamespace(running=running, assignment=SimpleNamespace(node_rank=0))

    async def ask(hangs: Hangs, inquiry: int) -> list[int]:
        """Return how many groups are reported of each rank; -1: nothing is known of it."""
        hangs.report(len(sent) + 1, group, inquiry)
        assert hangs._reporting is not None
        await hangs._reporting
        found = (stack.collectives for stack in sent[-1].stacks)
        return [len(one.groups) if one is not None else -1 for one in found]

    async def test() -> None:
        hangs = Hangs(None, "h", cast(Any, sent.append), print, environ)
        assert await ask(hangs, 0) == [-1, -1]
        assert not os.read(pipe, 128), "nobody was asked"
        assert await ask(hangs, 7) == [-1, -1]
        assert os.read(pipe, 128)
        (tmp_path / "dump_3").write_bytes(RECORDED.read_bytes())
        assert await ask(hangs, 7) == [-1, -1], "it may still grow"
        assert await ask(hangs, 7) == [2, -1]
        (tmp_path / "dump_3").write_bytes(RECORDED.with_name("recorded.2").read_bytes())
        for _ in range(2):
            assert await ask(hangs, 7) == [2, -1], "a file is read once"
        assert not os.read(pipe, 128)
        assert await ask(hangs, 8) == [-1, -1], "as of the hang before"
        assert os.read(pipe, 128)
        (tmp_path / "dump_3").write_bytes(b"cos\nsystem\n(S'false'\ntR.")
        await ask(hangs, 8)
        assert await ask(hangs, 8) == [-1, -1]
        monkeypatch.setattr(module, "GROUPS_OF_NODE_MAX", 2)
        await ask(hangs, 9)
        (tmp_path / "dump_3").write_bytes(RECORDED.read_bytes())
        await ask(hangs, 9)
        assert await ask(hangs, 9) == [1, -1], "each worker has its share of the report"

    try:
        asyncio.run(test())
    finally:
        os.close(pipe)


def test_server_of_a_worker_is_asked_instead_of_its_pipe(tmp_path: Path) -> None:
    environ = {
        "FT_RUN_RECORDER_SOCKETS": f"{tmp_path}/c",
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": f"{tmp_path}/pipe_",
        "TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/dump_",
    }
    os.mkfifo(tmp_path / "pipe_3.pipe")
    pipe = os.open(tmp_path / "pipe_3.pipe", os.O_RDONLY | os.O_NONBLOCK)
    watch = WorkerWatch()
    watch._page[layout.PID] = os.getpid()
    write_backends(watch._page, {"nccl2", "nccl-lazy"})
    sent: list[StackReport] = []
    running = (AskedWorker(3, os.getpid(), watch),)
    group: Any = SimpleNamespace(running=running, assignment=SimpleNamespace(node_rank=0))

    async def test() -> None:
        hangs = Hangs(None, "h", cast(Any, sent.append), print, environ)
        async with Server(tmp_path, os.getpid()) as server:
            server.refused = {"nccl-lazy"}
            for number in (1, 2):
                hangs.report(number, group, 7)
                assert hangs._reporting is not None
                await hangs._reporting
                if number == 1:
                    await asyncio.wait(hangs._servers._asked.values())
        assert server.requests == [
            f"fr_dump_file?backend={name}" for name in ("nccl-lazy", "nccl2")
        ]
        recorded = sent[-1].stacks[0].collectives
        assert recorded is not None
        assert [one.group for one in recorded.groups] == ["0:dp"]
        assert recorded.unseen == "the process groups of nccl-lazy are not recorded"
        assert not os.read(pipe, 128), "the pipe was not asked"

    try:
        run(test)
    finally:
        os.close(pipe)
        watch.close()


def test_a_suspicion_names_what_is_on_trial(node: Node) -> None:
    async def test() -> None:
        begun_long_ago(node)
        trial = b"num_workers=4 prefetch_factor=2"
        layout.write_text(node.watches[1]._page, layout.TRIAL_AT, layout.TRIAL_BYTES, trial)
        node.got_on(0, 100.0)
        node.got_on(1, 70.0)
        node.hangs._look()
        (suspicion,) = node.sent
        assert isinstance(suspicion, Suspicion)
        assert suspicion.trial == "num_workers=4 prefetch_factor=2"

    run(test)


def test_late_workers_are_told_once_and_again_to_another_master(node: Node) -> None:
    async def test() -> None:
        begun_long_ago(node)
        node.got_on(0, 100.0)
        node.got_on(1, 70.0)
        node.hangs._look()
        node.hangs._look()
        assert node.suspected() == [(2, (4, 5), 70)]
        node.hangs.repeat()
        assert node.suspected() == [(2, (4, 5), 70)] * 2
        node.hangs.close()

    run(test)


def test_it_looks_by_itself_when_a_worker_could_be_late(tmp_path: Path) -> None:
    async def test() -> None:
        node, is_told = Node(tmp_path), asyncio.Event()
        spec = HangSpec(timeout_s=0.01, start_s=1800.0)
        node.hangs = Hangs(spec, "h", lambda message: is_told.set(), node.told.append)
        node.hangs.begin(node.group)  # no worker has begun
        node.got_on(0, 0.0)
        await is_told.wait()
        node.hangs.close()
        for watch in node.watches:
            watch.close()

    run(test)


def test_what_the_master_answers_is_told_and_the_time_starts_again(node: Node) -> None:
    async def test() -> None:
        begun_long_ago(node)
        node.got_on(0, 70.0)
        node.hangs._look()
        node.hangs.answered(NoHang(1, "of the round before"))
        node.hangs.answered(NoHang(2, ""))
        node.hangs.answered(NoHang(2, "it moves"))
        node.hangs._look()
        assert len(node.sent) == 1
        suspected, again, dismissed = node.told
        assert isinstance(suspected, HangSuspected)
        assert (suspected.ranks, round(suspected.idle_s)) == ((4,), 70)
        assert again == HangDismissed(2, 1, "")  # as reported before: not shown
        assert again.severity < dismissed.severity
        assert dismissed == HangDismissed(2, 1, "it moves")
        node.hangs.repeat()  # nothing is late any more
        assert len(node.sent) == 1
        node.hangs.close()

    run(test)


def test_nothing_is_said_of_workers_that_are_being_stopped(node: Node) -> None:
    async def test() -> None:
        begun_long_ago(node)
        node.got_on(0, 70.0)
        node.group.state = WorkerGroupState.STOPPING
        node.hangs._look()
        node.hangs.answered(NoHang(2, "it moves"))
        assert not node.sent
        assert not node.told
        node.hangs.close()

    run(test)


def test_the_stacks_of_a_hang_are_kept(node: Node, tmp_path: Path) -> None:
    node.hangs.keep(Stop(2, "rank 4 failed"), node.group)
    assert not node.told
    node.hangs.keep(Stop(2, "rank 4 hangs", is_hung=True, stacks="rank 4\n  a.py:1"), node.group)
    path = tmp_path / "hang.txt"
    assert path.read_text() == "rank 4 hangs\n\nrank 4\n  a.py:1\n"
    assert node.told == [StacksKept(2, 1, str(path))]


def test_a_full_disk_does_not_matter(node: Node) -> None:
    node.group.logs = SimpleNamespace(directory="/proc")  # type: ignore[assignment]  # likewise
    node.hangs.keep(Stop(2, "rank 4 hangs", is_hung=True, stacks="rank 4"), node.group)
    assert not node.told
