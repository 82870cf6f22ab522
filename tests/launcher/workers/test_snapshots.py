"""The memory that an agent holds for its workers: to whom it goes, and what stays of it."""

import asyncio
import json
import mmap
import os
import socket
import struct
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from ft_run.launcher.saver.saves import Saves
from ft_run.launcher.workers.snapshots import NOT_BEGUN, HeldSnapshots
from ft_run.rendezvous.protocol.failure import FailureKind, node_lost
from ft_run.rendezvous.protocol.messages import Assignment
from ft_run.rendezvous.protocol.offer import Replica, Resumption, Saving, Snapshot, Snapshots
from ft_run.tests.harness.descriptors import own_descriptors
from ft_run.training.checkpoints.layout import Description, digest, packed
from ft_run.training.checkpoints.storage_backends import LocalStorage
from ft_run.training.worker import snapshot_memory
from ft_run.training.worker import snapshot_page as page
from ft_run.training.worker.agent_socket import address_of, connect
from msgspec.structs import replace

ROUND = Assignment(3, "m", 0, 1, 2, 2, 4, 0, 4, "n", "127.0.0.1", 1, "", None)
OWNER = 5
ASK = """
import os, struct, sys
from ft_run.training.worker.snapshot_memory import request_memory
rank, step, replica = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
memory = request_memory(rank, replica=replica)
if memory is None or not memory.buffer_fds:
    sys.exit(3)
if step >= 0:
    import mmap
    from ft_run.training.worker import snapshot_page as page
    view = memoryview(mmap.mmap(memory.page_fd, page.PAGE_BYTES))
    whose = (rank + 2) % 4 if replica else rank
    entry = page.Entry(step, 5, step, 4, whose, 10, 0, False)
    page.write(view, step % 2, entry)
    os.write(memory.buffer_fds[0], b"x")
print(memory.resume_step)
"""

HOLD = """
import sys
from ft_run.training.worker.snapshot_memory import request_memory
first = request_memory(2)
print(first is not None, 1 + len(first.buffer_fds), first.is_first_round, flush=True)
print(request_memory(2) is first, first.saver.is_connected, flush=True)
sys.stdin.read()
"""


async def ask(rank: int, step: int = -1, *, replica: int = 0) -> str | None:
    """Return the step that a worker of a rank is told; with a step, it leaves a snapshot."""
    command = (sys.executable, "-c", ASK, str(rank), str(step), str(replica))
    child = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    out, _ = await child.communicate()
    assert child.returncode in (0, 3)
    return out.decode().strip() if child.returncode == 0 else None


@asynccontextmanager
async def holding(round_: Assignment = ROUND, replicas: int = 0) -> AsyncIterator[HeldSnapshots]:
    """A node of two workers, in its round."""
    before = own_descriptors()
    held = HeldSnapshots(2, Saves(lambda _: None), replicas)
    held.listen(asyncio.get_running_loop())
    held.begin(round_)
    yield held
    held.close()
    assert own_descriptors() <= before


def run(test: Callable[[], object]) -> None:
    asyncio.run(test())  # type: ignore[arg-type]  # all are coroutine functions


def test_only_the_ranks_of_this_node_are_given_memory() -> None:
    async def test() -> None:
        async with holding() as held:
            assert [await ask(rank) for rank in (1, 2, 3, 4)] == [None, "-1", "-1", None]
            assert held.held() is None

    run(test)


def test_a_step_is_held_when_all_workers_have_left_it() -> None:
    async def test() -> None:
        async with holding() as held:
            await ask(2, 7)
            await ask(2, 8)
            assert held.held() is None
            await ask(3, 7)
            assert held.held() == Snapshots(3, "m", (Snapshot(7, 4, 2, False, OWNER, 7),))
            await ask(3, 8)
            held_now = held.held()
            assert held_now is not None
            assert [one.step for one in held_now.held] == [7, 8]

    run(test)


def test_shares_of_other_ranks_are_held_beside_the_own() -> None:
    async def test() -> None:
        async with holding(replicas=1) as held:
            assert await ask(2, replica=2) is None  # more than was asked for
            for rank in (2, 3):
                await ask(rank, 7)
            await ask(2, 7, replica=1)
            assert held.held() == Snapshots(
                3, "m", (Snapshot(7, 4, 2, False, OWNER, 7),), (Replica(7, 4, (0,), OWNER, 7),)
            )
            await ask(3, 7, replica=1)
            await ask(3, 8, replica=1)
            found = held.held()
            assert found is not None
            assert found.replicas == (
                Replica(7, 4, (0, 1), OWNER, 7),
                Replica(8, 4, (1,), OWNER, 8),
            )
            held.begin(replace(ROUND, round=4, resumption=Resumption(7, 3, "m", OWNER)))
            found = held.held()
            assert found is not None
            assert found.replicas == (Replica(7, 4, (0, 1), OWNER, 7),)
            held.drop()
            assert held.held() is None

    run(test)


def test_no_replica_is_kept_where_none_is_asked_for() -> None:
    async def test() -> None:
        async with holding():
            assert await ask(2, replica=1) is None

    run(test)


def test_a_round_begins_with_the_step_that_all_resume_from() -> None:
    async def test() -> None:
        async with holding() as held:
            for rank in (2, 3):
                await ask(rank, 7)
                await ask(rank, 8)
            held.begin(replace(ROUND, round=4, resumption=Resumption(7, 3, "m", OWNER)))
            assert await ask(3) == "7"
            assert held.held() == Snapshots(4, "m", (Snapshot(7, 4, 2, False, OWNER, 7),))
            held.begin(replace(ROUND, round=5))
            assert await ask(3) == "-1"
            assert held.held() is None

    run(test)


def test_what_was_left_in_another_round_does_not_stay() -> None:
    async def test() -> None:
        for line in ((2, "m"), (3, "another")):
            async with holding() as held:
                for rank in (2, 3):
                    await ask(rank, 7)
                held.begin(replace(ROUND, round=4, resumption=Resumption(7, *line)))
                assert held.held() is None
                assert await ask(3) == "7"  # others have it, and send it

    run(test)


def test_a_spare_gives_the_memory_back() -> None:
    async def test() -> None:
        async with holding() as held:
            for rank in (2, 3):
                await ask(rank, 7)
            held.drop()
            assert held.held() is None
            assert await ask(2) is None  # a spare has no workers

    run(test)


class Worker:
    """A worker of this process, with a sharded state of two ranks."""

    def __init__(self, rank: int) -> None:
        channel = connect(page.SOCKET, os.getpid())
        memory = snapshot_memory._receive_memory(channel, page.REQUEST.pack(page.MAGIC, rank))
        assert memory is not None
        assert memory.saver is not None
        self.rank, self.memory, self.saver = rank, memory, memory.saver
        self._map = mmap.mmap(memory.page_fd, page.PAGE_BYTES)
        self.page = memoryview(self._map)

    def leave(
        self,
        step: int,
        folder: Path,
        size: int = 2,
        *,
        owner: int = OWNER,
        generation: int = 0,
        buffer: int = 1,
    ) -> None:
        """Leave a shard."""
        layout = packed([], Description(b"meta", (digest([]),) * size))
        os.pwrite(self.memory.buffer_fds[buffer], b"data" + layout, 0)
        page.write_destination(self.page, owner, page.Destination(str(folder), 3, True))
        age = generation or step
        entry = page.Entry(age, owner, step, size, self.rank, 4, len(layout), False)
        page.write(self.page, buffer, entry)

    def close(self) -> None:
        self.saver.close()
        self.page.release()
        self._map.close()
        del self.memory


def leave_replica(rank: int, step: int, whose: int) -> None:
    """Leave the shard of another rank, as this process does that has the memory of a rank."""
    channel = connect(page.SOCKET, os.getpid())
    memory = snapshot_memory._receive_memory(channel, page.REPLICA.pack(page.MAGIC, rank, 1))
    assert memory is not None
    with mmap.mmap(memory.page_fd, page.PAGE_BYTES) as view:
        page.write(memoryview(view), 0, page.Entry(step, OWNER, step, 4, whose, 10, 0, False))


@pytest.mark.parametrize("first", [0, 1])
def test_a_sharded_snapshot_is_saved_when_all_ranks_ask(tmp_path: Path, first: int) -> None:
    async def test() -> None:
        async with holding(replace(ROUND, rank_offset=0)) as held:
            workers = [await asyncio.to_thread(Worker, rank) for rank in (0, 1)]
            asking = [workers[first], workers[1 - first]]

            async def save(step: int) -> list[str]:
                for worker in asking:
                    worker.saver.save(1, step, OWNER)
                for worker in asking:
                    await asyncio.to_thread(worker.saver.wait)
                return [worker.saver.error(OWNER) for worker in asking]

            for worker in workers:
                worker.leave(7, tmp_path)
            assert await save(7) == ["", ""]
            files = sorted(os.listdir(tmp_path / "step-00000007"))
            assert files == [".ft_run", ".metadata", "__0_0.distcp", "__1_0.distcp"]
            # While they wait, they see that the storage gets on.
            assert all(page.progress(worker.page) >= 2 for worker in workers)
            assert held.newest_whole() is not None
            workers[0].leave(8, tmp_path)
            assert await save(8) == [NOT_BEGUN] * 2  # rank 1 has none: no rank waits for ever
            assert held.newest_whole() is None
            workers[1].leave(8, tmp_path)
            whole = held.newest_whole()
            assert whole is not None
            assert [shard.entry.rank for shard in whole.shards] == [0, 1]
            for worker in workers:
                worker.leave(9, tmp_path, size=3)
            # The rest is another node's, which counts alike how often its workers have asked.
            words = json.dumps({"digests": {"2": digest([])}, "bytes": 4}).encode()
            LocalStorage(tmp_path).mark(9, held._attempt("3"), "2", words)
            assert await save(9) == ["", ""]
            assert held.newest_whole() is None
            held._saves.close()
            for worker in workers:
                worker.close()

    run(test)


def test_what_a_lost_node_had_to_write_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ft_run.launcher.saver.saves._COMES_S", 0.1)
    lost = node_lost(1, "b", "trainer", "its host is gone")

    async def test() -> None:
        async with holding() as held:
            workers = [await asyncio.to_thread(Worker, rank) for rank in (2, 3)]
            for worker in workers:
                worker.leave(7, tmp_path, size=4)
                worker.saver.save(1, 7, OWNER)
            while not held._memory[0].held:  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.01)
            held.begin(replace(ROUND, round=4, cause=replace(lost, kind=FailureKind.WORKER)))
            await asyncio.sleep(0.3)
            assert held._memory[0].held
            held.begin(replace(ROUND, round=5, cause=lost))
            while held._memory[0].held:  # noqa: ASYNC110 - likewise
                await asyncio.sleep(0.01)
            for worker in workers:
                worker.close()

    run(test)


def test_the_end_saves_what_the_master_says(tmp_path: Path) -> None:
    """Also the shard of another node's rank; each node of a round knows where they meet."""

    async def test() -> None:
        async with holding(replicas=1) as held:
            workers = [await asyncio.to_thread(Worker, rank) for rank in (2, 3)]
            for worker in workers:
                worker.leave(7, tmp_path, size=4)
            await asyncio.to_thread(leave_replica, 2, 7, whose=0)
            assert held.newest_whole() is None
            for ranks in ((2, 3), (2,), (0, 2, 3), (0,)):
                found = held.part(Saving(7, ranks, OWNER))
                assert found is not None
                assert [shard.entry.rank for shard in found.shards] == [*ranks]
                assert found.order().ranks == 4
                assert found.order().is_first == (0 in ranks)
                assert found.destination.folder == str(tmp_path)
                assert found.attempt == held._attempt("end")
            for saving in (
                Saving(7, (1, 2), OWNER),
                Saving(8, (2, 3), OWNER),
                Saving(7, (), OWNER),
            ):
                assert held.part(saving) is None
            attempts = {held._attempt("end"), held._attempt("1")}
            for number, name in ((4, "m"), (3, "another")):
                held.begin(replace(ROUND, round=number, formed_by=name))
                attempts.add(held._attempt("end"))
            assert len(attempts) == 4
            for worker in workers:
                worker.close()

    run(test)


def test_strangers_do_not_disturb() -> None:
    async def test() -> None:
        async with holding():
            path = address_of(page.SOCKET, os.getpid())
            for words in (b"", b"x", struct.pack("<8sI", b"ftrsnap1", 2), b"y" * 100):
                with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
                    stranger.setblocking(False)
                    loop = asyncio.get_running_loop()
                    await loop.sock_connect(stranger, path)
                    await loop.sock_sendall(stranger, words)
                    assert await loop.sock_recv(stranger, 10) == b""
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
                silent.connect(path)
                assert await ask(2) == "-1"

    run(test)


@pytest.mark.root
def test_another_user_of_the_host_is_given_no_memory() -> None:
    """The name of the socket is in no folder, so no mode of a file keeps anyone from it."""
    if os.geteuid() != 0:
        pytest.skip("becoming another user needs root")

    async def ask_as(user: int) -> bytes:
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as channel:
            os.seteuid(user)  # what the kernel tells of this end is as of now
            try:
                channel.connect(address_of(page.SOCKET, os.getpid()))
            finally:
                os.seteuid(0)
            channel.setblocking(False)
            await asyncio.sleep(0)
            try:
                await loop.sock_sendall(channel, page.REQUEST.pack(page.MAGIC, 2))
                return await loop.sock_recv(channel, page.REPLY.size)
            except ConnectionError:
                return b""

    async def test() -> None:
        async with holding():
            assert await ask_as(65534) == b""
            assert await ask_as(0) == page.REPLY.pack(page.MAGIC, -1, 0, 0, False)

    run(test)


def test_memory_belongs_to_the_first_process_of_a_rank() -> None:
    async def test() -> None:
        async with holding() as held:
            wrapper = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", HOLD), stdout=asyncio.subprocess.PIPE,
                stdin=asyncio.subprocess.PIPE,
            )  # fmt: skip
            assert wrapper.stdout is not None
            assert (await wrapper.stdout.readline()).decode() == "True 6 False\n"
            assert (await wrapper.stdout.readline()).decode() == "True True\n"  # the same memory
            assert await ask(3) == "-1"  # another rank
            assert await ask(2) is None
            await wrapper.communicate(b"end")
            assert await ask(2) == "-1"  # a script of several processes, one after the other
            await ask(2, 7)
            held.begin(replace(ROUND, round=4, resumption=Resumption(7, 3, "m", OWNER)))
            assert await ask(2) == "7"

    run(test)


def test_snapshots_of_two_owners_are_told_apart(tmp_path: Path) -> None:
    async def test() -> None:
        async with holding(replace(ROUND, rank_offset=0)) as held:
            workers = [await asyncio.to_thread(Worker, rank) for rank in (0, 1)]
            for worker in workers:
                worker.leave(9, tmp_path / "first")
                worker.leave(2, tmp_path / "second", owner=6, generation=10, buffer=2)
            found = held.held()
            assert found is not None
            assert [(one.owner, one.step) for one in found.held] == [(OWNER, 9), (6, 2)]
            whole = held.newest_whole()
            assert whole is not None
            assert (whole.step, whole.destination.folder) == (2, str(tmp_path / "second"))
            for owner, folder in ((OWNER, "first"), (6, "second"), (7, None)):
                part = held.part(Saving({OWNER: 9, 6: 2}.get(owner, 2), (0, 1), owner))
                assert (part.destination.folder if part is not None else None) == (
                    str(tmp_path / folder) if folder else None
                )
            for worker in workers:
                assert worker.saver.save(2, 9, 6)  # a step of the other owner
                await asyncio.to_thread(worker.saver.wait)
                assert worker.saver.error(6) == NOT_BEGUN
            held.begin(replace(ROUND, round=4, resumption=Resumption(2, 3, "m", 6)))
            found = held.held()
            assert found is not None
            assert [(one.owner, one.step) for one in found.held] == [(6, 2)]
            for worker in workers:
                worker.close()

    run(test)
