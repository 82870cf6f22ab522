"""The agent's side of the saver, with real processes and storages that hang, fail or come back."""

import asyncio
import json
import os
import signal
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from ft_run.events.checkpoints import CheckpointFailed, CheckpointWritten, SnapshotUnsaved
from ft_run.events.event import Event
from ft_run.launcher.processes.tree import descendants, is_zombie
from ft_run.launcher.saver.saves import HeldShard, NodeShards, Saves
from ft_run.tests.harness.descriptors import own_descriptors
from ft_run.training.checkpoints.layout import Description, digest, packed, tag_of
from ft_run.training.checkpoints.storage_backends import LocalStorage
from ft_run.training.worker import snapshot_page as page

ODD = Path(__file__).resolve().parents[2] / "harness" / "odd_storage"
LAYOUT = b'{"items":[],"metadata":"bWV0YQ=="}'


async def until(condition: Callable[[], object]) -> None:
    """Wait for what another process does."""
    while not condition():  # noqa: ASYNC110 - nothing tells this process of it
        await asyncio.sleep(0.01)


def stat(pid: int) -> list[str]:
    """Return what proc_pid_stat(5) lists, from its third field."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def maps(pid: int) -> str:
    """Return what a process has loaded."""
    return Path(f"/proc/{pid}/maps").read_text()


class Node:
    """What a node has written, and has to say about it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.told: list[Event] = []
        self.ended: list[bool] = []
        self.saves = Saves(self.told.append, "job")
        self._fd = os.memfd_create("test")

    def snapshot(self, step: int, folder: str = "", *, at_breakpoint: bool = True) -> NodeShards:
        os.pwrite(self._fd, b"data" + LAYOUT, 0)
        entry = page.Entry(step, 5, step, 1, 0, 4, len(LAYOUT), True)
        destination = page.Destination(folder or str(self.root / "kept"), 3, at_breakpoint)
        return NodeShards((HeldShard(0, 0, self._fd, entry),), destination)

    def part(self, step: int, rank: int) -> NodeShards:
        """Return what this node has of a step: the shard of one of two ranks."""
        layout = packed([], Description(b"meta", (digest([]),) * 2))
        os.pwrite(self._fd, b"data" + layout, 0)
        entry = page.Entry(step, 5, step, 2, rank, 4, len(layout), False)
        destination = page.Destination(str(self.root / "kept"), 3, True)
        return NodeShards((HeldShard(0, 0, self._fd, entry),), destination, "a")

    def begin(self, step: int, folder: str = "") -> bool:
        return self.saves.begin(self.snapshot(step, folder), self.note)

    def note(self, words: str) -> None:
        self.ended.append(not words)

    async def until_ended(self, count: int = 1) -> None:
        await until(lambda: len(self.ended) >= count)

    async def until_writing(self) -> int:
        """Return the saver's process id, once it waits for a storage that hangs."""
        await until(lambda: list(self.root.glob("odd/kept/step-*")))
        assert self.saves.pid is not None
        return self.saves.pid

    def control(self, word: str) -> None:
        (self.root / "odd/kept/control").write_text(word)

    @property
    def url(self) -> str:
        return f"odd://{self.root}/odd/kept"

    def complete(self) -> list[str]:
        """Return the names of checkpoints that are whole."""
        found = [path.parent for path in self.root.glob("**/step-*/.metadata")]
        for path in found:
            assert (path / "__0_0.distcp").read_bytes() == b"data"
            assert (path / ".metadata").read_bytes() == b"meta"
        return sorted(path.name for path in found)

    def close(self) -> None:
        self.saves.close()
        os.close(self._fd)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    monkeypatch.setenv("PYTHONPATH", str(ODD))
    (tmp_path / "odd/kept").mkdir(parents=True)
    (tmp_path / "odd/kept/.odd").touch()
    before = own_descriptors()
    made = Node(tmp_path)
    yield made
    made.close()
    assert own_descriptors() <= before


Test = Callable[[], Coroutine[Any, Any, None]]


def run(test: Test) -> None:
    asyncio.run(test())


def test_one_after_the_other(node: Node) -> None:
    async def test() -> None:
        assert node.begin(1)
        assert not node.begin(2)  # one at a time
        await node.until_ended()
        pid = node.saves.pid
        assert node.begin(3)
        await node.until_ended(2)
        assert node.saves.pid == pid
        assert node.ended == [True, True]
        assert node.complete() == ["step-00000001", "step-00000003"]
        assert [type(event) for event in node.told] == [CheckpointWritten] * 2
        assert pid is not None
        assert int(stat(pid)[16]) == min(19, os.nice(0) + 10)  # no process has more
        assert "libtorch" not in maps(pid)
        node.saves.close()

    run(test)


def test_newest_step_is_kept_per_directory(node: Node) -> None:
    """A failed job saves the second phase, although the first one has more steps."""

    async def test() -> None:
        first, second = (str(node.root / name) for name in ("first", "second"))
        assert node.begin(9, first)
        await node.until_ended()
        assert node.saves.newest[0] == 9
        await node.saves.conclude(30, node.snapshot(8, first))
        await node.saves.conclude(30, node.snapshot(2, second))
        assert node.complete() == ["step-00000002", "step-00000009"]
        node.saves.note(3, second)  # a worker has written it itself
        await node.saves.conclude(30, node.snapshot(3, second))
        assert node.complete() == ["step-00000002", "step-00000009"]
        node.saves.close()

    run(test)


def test_a_saver_that_is_killed_is_replaced(node: Node) -> None:
    async def test() -> None:
        node.control("hang")
        assert node.begin(1, node.url)
        pid = await node.until_writing()
        os.kill(pid, signal.SIGKILL)
        await until(lambda: node.saves.pid != pid)
        node.control("fail 0")
        await node.until_ended()
        assert node.ended == [True]
        assert node.complete() == ["step-00000001"]
        node.saves.close()

    run(test)


def test_a_saver_that_is_killed_again_is_given_up(node: Node) -> None:
    async def test() -> None:
        node.control("hang")
        assert node.begin(1, node.url)
        first = await node.until_writing()
        os.kill(first, signal.SIGKILL)
        await until(lambda: node.saves.pid not in (None, first))
        assert node.saves.pid is not None
        os.kill(node.saves.pid, signal.SIGKILL)
        await node.until_ended()
        assert node.ended == [False]
        assert node.told == [CheckpointFailed(1, "the saver process was killed")]
        assert node.complete() == []
        node.control("fail 0")
        assert node.begin(2, node.url)  # the next one has another
        await node.until_ended(2)
        assert node.complete() == ["step-00000002"]
        node.saves.close()

    run(test)


def test_the_other_nodes_know_of_a_saver_that_is_killed(node: Node) -> None:
    async def test() -> None:
        other = Node(node.root)
        assert other.saves.begin(other.part(1, 1), other.note)  # it waits for rank 0's
        await until(lambda: other.saves.pid is not None)
        assert other.saves.pid is not None
        os.kill(other.saves.pid, signal.SIGKILL)
        await other.until_ended()
        assert node.saves.begin(node.part(1, 0), node.note)
        await node.until_ended()
        words = "the saver process was killed"
        assert node.told == other.told == [CheckpointFailed(1, words)]
        assert other.saves.begin(other.part(2, 1), other.note)
        assert node.saves.begin(node.part(2, 0), node.note)
        await node.until_ended(2)
        assert node.complete() == ["step-00000002"]
        assert sorted(os.listdir(node.root / "kept")) == ["latest", "step-00000002"]
        node.saves.close()
        other.close()

    run(test)


def test_the_node_of_rank_0_tells_of_what_several_have_written(node: Node) -> None:
    async def test() -> None:
        other = Node(node.root)
        both = (node, other)
        assert other.saves.begin(other.part(1, 1), other.note)
        assert node.saves.begin(node.part(1, 0), node.note)
        await node.until_ended()
        await other.until_ended()
        assert (node.ended, other.ended) == ([True], [True])
        assert node.complete() == ["step-00000001"]
        assert [type(event) for event in node.told] == [CheckpointWritten]
        assert other.told == []
        ends = [
            node.saves.conclude(60, node.part(1, 0)),
            other.saves.conclude(60, other.part(1, 1)),
        ]
        await asyncio.gather(*ends)
        assert sorted(os.listdir(node.root / "kept")) == ["latest", "step-00000001"]
        ends = [
            node.saves.conclude(60, node.part(2, 0)),
            other.saves.conclude(60, other.part(2, 1)),
        ]
        await asyncio.gather(*ends)
        assert node.complete() == ["step-00000001", "step-00000002"]
        last = node.told[-1]
        assert isinstance(last, CheckpointWritten)
        assert last.is_last
        assert other.told == []
        for one in both:
            one.saves.close()
        other.close()

    run(test)


def test_the_end_waits_half_its_time_for_a_node_that_may_be_lost(node: Node) -> None:
    async def test() -> None:
        assert node.saves.begin(node.part(1, 0), node.note)
        kept = node.root / "kept"
        await until(lambda: list(kept.glob(".step-00000001.*-a.writing/__0_0.distcp")))
        words = json.dumps({"digests": {"1": digest([])}}).encode()
        LocalStorage(kept, tag_of("job")).mark(2, "a", "1", words)
        await node.saves.conclude(8, node.part(2, 0))  # a half is for what it saves itself
        unfinished = "not finished within --shutdown-timeout"
        assert node.told[0] == CheckpointFailed(1, unfinished)
        assert [type(event) for event in node.told[1:]] == [CheckpointWritten]
        assert node.complete() == ["step-00000002"]
        assert node.ended == [False]
        node.saves.close()

    run(test)


def test_where_a_node_is_lost_its_part_is_not_waited_for(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ft_run.launcher.saver.saves._COMES_S", 0.0)

    async def test() -> None:
        node.control("hang")
        assert node.begin(1, node.url)  # this is all its own
        node.saves.node_lost()
        await node.until_writing()
        node.control("fail 0")
        await node.until_ended()
        assert node.saves.begin(node.part(2, 0), node.note)
        node.saves.node_lost()
        await node.until_ended(2)
        assert node.begin(3)
        await node.until_ended(3)
        assert node.ended == [True, False, True]
        words = "a node was lost before it had written its shards"
        assert node.told[1] == CheckpointFailed(2, words, newest=-1)  # the first is at a URL
        assert node.complete() == ["step-00000001", "step-00000003"]
        node.saves.close()

    run(test)


@pytest.mark.parametrize("is_over", [True, False], ids=["before", "meanwhile"])
def test_the_last_snapshot_is_saved_also_where_one_with_a_lost_node_was_given_up(
    node: Node, monkeypatch: pytest.MonkeyPatch, is_over: bool
) -> None:
    monkeypatch.setattr("ft_run.launcher.saver.saves._COMES_S", 0.0)

    async def test() -> None:
        assert node.saves.begin(node.part(2, 0), node.note)
        node.saves.node_lost()
        if is_over:
            await node.until_ended()
        await node.saves.conclude(60.0, node.snapshot(3))
        assert node.ended == [False]
        assert node.complete() == ["step-00000003"]
        node.saves.close()

    run(test)


def test_a_storage_that_comes_and_goes(node: Node) -> None:
    async def test() -> None:
        node.control("fail 2")
        assert node.begin(1, node.url)
        await node.until_ended()
        assert node.complete() == ["step-00000001"]
        node.control("fail 100")
        assert node.begin(2, node.url)
        await node.until_ended(2)
        assert node.complete() == ["step-00000001"]
        path = f"{node.root}/odd/kept/step-00000002/__0_0.distcp"
        words = f"[Errno 5] the storage is gone: '{path}'"
        assert node.told[1:] == [CheckpointFailed(2, words, newest=1)]
        assert (node.root / "odd/kept/control").read_text() == "fail 95"  # it is tried five times
        node.control("fail 0")
        assert node.begin(3, node.url)
        await node.until_ended(3)
        assert node.ended == [True, False, True]
        assert node.complete() == ["step-00000001", "step-00000003"]
        node.saves.close()

    run(test)


def test_what_is_not_allowed_is_not_tried_again(node: Node) -> None:
    async def test() -> None:
        node.control("read-only")
        assert node.begin(1, node.url)
        await node.until_ended()
        (event,) = node.told
        assert isinstance(event, CheckpointFailed)
        assert event.reason.startswith("[Errno 13] Permission denied")
        assert (node.root / "odd/kept/control").read_text() == "read-only 1"
        node.saves.close()

    run(test)


def test_a_storage_that_fsspec_does_not_know(node: Node) -> None:
    async def test() -> None:
        assert node.begin(1, "gs4://bucket/path")
        await node.until_ended()
        words = (
            "fsspec cannot open gs4://bucket/path: Protocol not known: gs4; expected a folder "
            "path, or a URL whose file system is installed (pip "
            "install 'ft-run[storage]' and its package)"
        )
        assert node.told == [CheckpointFailed(1, words)]
        node.saves.close()

    run(test)


def test_the_end_waits_for_a_checkpoint_and_then_saves_the_newest(node: Node) -> None:
    async def test() -> None:
        assert node.begin(1)
        await node.saves.conclude(60, node.snapshot(2))
        assert node.ended == [True]
        assert node.complete() == ["step-00000001", "step-00000002"]
        last = node.told[-1]
        assert isinstance(last, CheckpointWritten)
        assert (last.step, last.is_last) == (2, True)
        count = len(node.told)
        await node.saves.conclude(60, node.snapshot(1))
        await node.saves.conclude(60, node.snapshot(3, at_breakpoint=False))
        await node.saves.conclude(60, None)
        assert node.complete() == ["step-00000001", "step-00000002"]
        assert len(node.told) == count
        node.saves.close()

    run(test)


def test_the_end_does_not_wait_for_ever(node: Node) -> None:
    async def test() -> None:
        node.control("hang")
        assert node.begin(1, node.url)
        pid = await node.until_writing()
        await node.saves.conclude(0.2, node.snapshot(2))
        words = "not finished within --shutdown-timeout"
        assert node.told == [CheckpointFailed(1, words), SnapshotUnsaved(2, words)]
        assert node.ended == [False]
        node.saves.close()
        await until(lambda: is_zombie(pid) or pid not in descendants(os.getpid()))

    run(test)


def test_signals_are_for_the_agent(node: Node) -> None:
    async def test() -> None:
        node.control("hang")
        assert node.begin(1, node.url)
        pid = await node.until_writing()
        assert int(stat(pid)[1]) == os.getpid()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(pid, number)  # they are for the agent
        node.control("fail 0")
        await node.until_ended()
        assert (node.ended, node.saves.pid) == ([True], pid)
        node.saves.close()

    run(test)
