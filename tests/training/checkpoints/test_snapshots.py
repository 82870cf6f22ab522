"""Two buffers and a page: whatever moment the worker dies at, the last snapshot is whole."""

import ctypes
import gc
import os
import signal
import socket
from functools import partial

import pytest
import torch
from ft_run.tests.harness.forked import run_forked
from ft_run.training.checkpoints.encoding import flatten
from ft_run.training.checkpoints.snapshot_store import Snapshots
from ft_run.training.worker import snapshot_page as page
from ft_run.training.worker.snapshot_memory import Memory, SaverLink
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_tensor

WORKER = """
import os, sys
import torch
from ft_run.training.checkpoints import snapshot_store
from ft_run.training.worker import snapshot_page
from ft_run.training.checkpoints.snapshot_file import SnapshotFile
from ft_run.training.worker.snapshot_memory import Memory, SaverLink
from ft_run.training.checkpoints.encoding import flatten

def die(*_, **__):
    os.kill(os.getpid(), 9)

class Deadly:
    def __reduce__(self):
        die()

def state(step, rows=100, value=None):
    tensors = {str(n): torch.full((rows, 7), float(step)) for n in range(20)}
    return {"model": tensors, "n": {"step": step, "value": value}, "z": torch.full((9,), step)}

def take(step, **odd):
    made = state(step, **odd)
    mine.write(step, lambda: made, flatten(made))

fds = list(map(int, sys.argv[2:]))
mine = snapshot_store.Snapshots(Memory(fds[0], tuple(fds[1:]), -1), rank=3, world_size=4, owner=5)
for step in (1, 2, 3):
    take(step)
match sys.argv[1]:
    case "before anything": die()
    case "when the older one is void": SnapshotFile.values_of = die
    case "in the middle of the copy": take(4, value=Deadly())
    case "in the middle of a new layout": take(4, rows=101, value=Deadly())
    case "before it is said to be complete": snapshot_store.Snapshots._now_holds = die
take(4)
"""
PHASES = (
    "before anything",
    "when the older one is void",
    "in the middle of the copy",
    "in the middle of a new layout",
    "before it is said to be complete",
)


def opened_fds() -> tuple[int, ...]:
    """Return a page and the buffers."""
    made = tuple(os.memfd_create("test") for _ in range(1 + page.BUFFERS))
    os.ftruncate(made[0], page.PAGE_BYTES)
    return made


def opened(fds: tuple[int, ...]) -> Snapshots:
    """Return the snapshots that were left."""
    mine = tuple(map(os.dup, fds))
    return Snapshots(Memory(mine[0], mine[1:], -1), rank=3, world_size=4, owner=5)


def numbers_in(snapshots: Snapshots, step: int) -> set[float] | None:
    file = snapshots.find(step)
    if file is None:
        return None
    values = [file.read(index) for index in range(len(file.items))]
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    assert len(tensors) == 21
    return {float(number) for tensor in tensors for number in tensor.flatten()}


def test_a_worker_that_dies_leaves_the_last_snapshot() -> None:
    memories = [opened_fds() for _ in PHASES]
    calls = [(phase, *fds) for phase, fds in zip(PHASES, memories, strict=True)]
    modules = ("torch", "ft_run.training.checkpoints.snapshot_store")
    every = [fd for fds in memories for fd in fds]
    ended = run_forked(WORKER, calls, modules, pass_fds=every)
    assert [one.status for one in ended] == [-signal.SIGKILL] * len(PHASES)
    for phase, fds in zip(PHASES, memories, strict=True):
        check_last_snapshot(phase, fds)
        for fd in fds:
            os.close(fd)


def check_last_snapshot(phase: str, fds: tuple[int, ...]) -> None:
    left = opened(fds)
    assert numbers_in(left, 3) == {3.0}, phase
    assert numbers_in(left, 4) is None, phase
    assert numbers_in(left, 2) == ({2.0} if phase == "before anything" else None), phase
    # The next worker goes on with the same memory.
    tensors = {str(n): torch.full((100, 7), 5.0) for n in range(20)}
    state = {"model": tensors, "n": {"step": 5, "value": None}, "z": torch.full((9,), 5)}
    left.write(5, lambda: state, flatten(state))
    assert numbers_in(left, 5) == {5.0}
    assert numbers_in(left, 3) == {3.0}
    left.close()


def test_the_older_one_is_overwritten(fds: tuple[int, ...]) -> None:
    snapshots = opened(fds)
    for step in range(1, 6):
        state = {"a": torch.full((3,), step), "b": "x" * 300 * step}
        snapshots.write(step, partial(dict, state), state)
        found = [n for n in range(6) if snapshots.find(n) is not None]
        assert found == [n for n in (step - 1, step) if n]
    snapshots.clear()
    assert snapshots.find(5) is None
    snapshots.close()


def test_a_layout_is_made_once(fds: tuple[int, ...]) -> None:
    """For both buffers: the second is a copy of the first."""
    snapshots = opened(fds)
    asked = []

    def nested() -> dict[str, torch.Tensor]:
        asked.append(state)
        return state

    for step in range(1, 6):
        state = {"a": torch.full((5000,), float(step))}
        snapshots.write(step, nested, state)
        assert held_steps(snapshots) == {n: float(n) for n in (step - 1, step) if n}
    assert len(asked) == 1
    snapshots.close()


def test_an_entry_that_is_torn_is_void(fds: tuple[int, ...]) -> None:
    data = bytearray(page.PAGE_BYTES)
    view = memoryview(data)
    entry = page.Entry(1, 5, 7, 4, 3, 4096, 100, True)
    page.write(view, 1, entry)
    assert page.read(view, 0) is None
    assert page.read(view, 1) == entry
    for position in (i for i, byte in enumerate(data) if byte):
        torn = bytearray(data)
        torn[position] ^= 0xFF
        assert page.read(memoryview(torn), 1) is None
    page.write(view, 1, None)
    assert not any(data)


class Agent:
    """What a worker speaks to about its checkpoints."""

    def __init__(self) -> None:
        self.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.link = SaverLink(theirs)

    def asked(self) -> tuple[int, int]:
        """Return the buffer and the step that are to be saved."""
        magic, buffer, step, owner = page.SAVE.unpack(self.channel.recv(100))
        assert (magic, owner) == (page.MAGIC, 5)
        return buffer, step

    def saved(self, buffer: int, step: int, words: str = "", owner: int = 5) -> None:
        self.channel.send(page.SAVED.pack(page.MAGIC, buffer, step, owner) + words.encode())

    def is_waited_for(self) -> bool:
        """Return whether it has an order that is not answered."""
        return self.link.is_busy

    def close(self) -> None:
        self.channel.close()


def take(snapshots: Snapshots, step: int) -> None:
    state = {"a": torch.full((5000,), float(step))}
    assert snapshots.write(step, lambda: state, state) is None


def held_steps(snapshots: Snapshots) -> dict[int, float]:
    """Return by step what the snapshots that are there hold."""
    found = {}
    for step in range(100):
        file = snapshots.find(step)
        if file is not None:
            (value,) = set(file.read(0).tolist())
            found[step] = value
    return found


@pytest.mark.parametrize("room", ["there is", "for one of two ranks", "until it is taken"])
def test_what_the_saver_reads_is_left_alone(
    fds: tuple[int, ...], monkeypatch: pytest.MonkeyPatch, room: str
) -> None:
    agent = Agent()
    mine = [*map(os.dup, fds)]
    snapshots = Snapshots(
        Memory(mine[0], tuple(mine[1:]), -1, agent.link), rank=0, world_size=1, owner=5
    )
    for step in (1, 2, 3):
        take(snapshots, step)
    sizes = {os.fstat(fd).st_size for fd in fds[1:]}
    assert len(sizes) == 2  # the third one is empty
    assert 0 in sizes
    has_room = room != "for one of two ranks"
    if not has_room:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
        monkeypatch.setattr(
            "ft_run.training.checkpoints.snapshot_store.available", lambda: int(1.5 * max(sizes))
        )
    assert snapshots.save(3)
    buffer, step = agent.asked()
    assert step == 3
    with open(f"/proc/self/fd/{fds[1 + buffer]}", "rb") as file:
        whole = file.read()
        for number in range(4, 9):
            if room == "until it is taken" and number == 6:
                monkeypatch.setattr(
                    "ft_run.training.checkpoints.snapshot_store.available", lambda: 0
                )
            take(snapshots, number)
            found = held_steps(snapshots)
            assert found[number] == number  # the newest one
            assert (number - 1 in found) == (has_room or number == 4)  # and the one before
            file.seek(0)
            assert file.read() == whole
    agent.saved(buffer, 3)
    for number in (9, 10, 11):
        take(snapshots, number)
        assert held_steps(snapshots) == {n: float(n) for n in (number - 1, number)}
    assert sum(os.fstat(fd).st_size > 0 for fd in fds[1:]) == 2
    assert agent.link.error(5) == ""
    snapshots.close()
    agent.close()


def test_the_only_snapshot_is_left_alone_while_the_saver_reads_it(
    fds: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Room for both buffers was looked for when the first one was made."""
    agent = Agent()
    mine = [*map(os.dup, fds)]
    snapshots = Snapshots(
        Memory(mine[0], tuple(mine[1:]), -1, agent.link), rank=0, world_size=1, owner=5
    )
    take(snapshots, 1)
    assert snapshots.save(1)
    monkeypatch.setattr("ft_run.training.checkpoints.snapshot_store.available", lambda: 0)
    take(snapshots, 2)
    assert held_steps(snapshots) == {1: 1.0, 2: 2.0}
    snapshots.close()
    agent.close()


@pytest.mark.parametrize("has_heard", [True, False])
def test_where_the_agent_is_gone_nothing_is_held(fds: tuple[int, ...], has_heard: bool) -> None:
    agent = Agent()
    mine = [*map(os.dup, fds)]
    snapshots = Snapshots(
        Memory(mine[0], tuple(mine[1:]), -1, agent.link), rank=0, world_size=1, owner=5
    )
    take(snapshots, 1)
    assert snapshots.save(1)
    assert agent.is_waited_for()
    if has_heard:
        agent.asked()
    agent.close()
    assert not agent.is_waited_for()
    agent.link.wait()
    assert not snapshots.save(1)
    snapshots.close()


def test_a_path_that_is_too_long_is_not_for_the_saver(fds: tuple[int, ...]) -> None:
    agent = Agent()
    mine = [*map(os.dup, fds)]
    snapshots = Snapshots(
        Memory(mine[0], tuple(mine[1:]), -1, agent.link), rank=0, world_size=1, owner=5
    )
    with open(f"/proc/self/fd/{fds[0]}", "rb") as file:
        for folder, fits in (("/kept", True), ("/" + "x" * 3000, True), ("/" + "x" * 4000, False)):
            place = page.Destination(folder, 3, at_breakpoint=True)
            assert snapshots.save_to(place) is fits
            file.seek(0)
            whole = bytearray(file.read())
            assert page.read_destinations(memoryview(whole)) == ({5: place} if fits else {})
            at = whole.find(folder[:50].encode())
            if at >= 0:  # a worker died while it wrote this
                whole[at + 1] ^= 1
                assert page.read_destinations(memoryview(whole)) == {}
    snapshots.close()
    agent.close()


@pytest.mark.parametrize(("is_sharded", "copies"), [(False, 2), (True, 6)])
def test_replicas_are_counted_where_they_are_sent(
    fds: tuple[int, ...],
    mesh: DeviceMesh,
    monkeypatch: pytest.MonkeyPatch,
    is_sharded: bool,
    copies: int,
) -> None:
    """Two for the shard of another rank, and two more of the own."""
    value = torch.ones(1 << 20)
    state = {"a": distribute_tensor(value, mesh, [Shard(0)]) if is_sharded else value}
    snapshots = opened(fds)
    snapshots.beside = [opened(fds)]
    needed = 2 * int(copies * value.nbytes * 1.1)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setattr("ft_run.training.checkpoints.snapshot_store.available", lambda: needed - 2)
    with pytest.raises(OSError, match=f"{copies} copies of the state of 2 rank"):
        snapshots.write(1, lambda: state, state)
    monkeypatch.setattr("ft_run.training.checkpoints.snapshot_store.available", lambda: needed)
    snapshots.write(1, lambda: state, state)
    assert snapshots.has(1)
    # What is there already is not needed once more.
    monkeypatch.setattr(
        "ft_run.training.checkpoints.snapshot_store.available", lambda: needed - 2 * value.nbytes
    )
    other = {"b": state["a"]}
    snapshots.write(2, lambda: other, other)
    assert snapshots.has(2)
    for one in (snapshots, *snapshots.beside):
        one.close()


@pytest.mark.slow
def test_a_thousand_snapshots_take_no_more_memory_than_ten(fds: tuple[int, ...]) -> None:
    snapshots = opened(fds)

    def held() -> tuple[int, int]:
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)  # else it is what malloc keeps, which depends on threads
        with open("/proc/self/status") as file:
            (line,) = (line for line in file if line.startswith("RssAnon"))
        return int(line.split()[1]), sum(os.fstat(fd).st_blocks for fd in fds)

    before = (0, 0)
    for step in range(1000):
        # Each tenth has another layout.
        state = {"a": torch.full((1000, 100 + step // 10 % 2), step), "b": "x" * (step % 100)}
        snapshots.write(step, partial(dict, state), state)
        before = held() if step == 20 else before
    now = held()
    assert now[1] <= before[1] + 16
    assert now[0] < before[0] + 512
    snapshots.close()


def test_what_a_replica_belongs_to_stays_while_there_are_buffers() -> None:
    made = tuple(os.memfd_create("test") for _ in range(5))
    os.ftruncate(made[0], page.PAGE_BYTES)
    mine = Snapshots(Memory(made[0], made[1:], -1), rank=3, world_size=4, owner=5)

    def take(step: int, *keep: int) -> set[int]:
        state = {"model": {"weight": torch.full((8,), float(step))}}
        mine.write(step, lambda: state, flatten(state), keep=frozenset(keep))
        return {number for number in range(step + 1) if mine.has(number)}

    assert [take(step) for step in (1, 2, 3)][-1] == {2, 3}
    assert take(4, 3) == {3, 4}
    assert take(5, 3) == {3, 4, 5}  # another buffer: the newest one stays as well
    assert take(6, 3, 4) == {3, 4, 5, 6}
    assert take(7, 3, 6) == {3, 5, 6, 7}
    assert take(8) >= {7, 8}
    mine.close()


def test_a_share_of_another_rank_is_not_taken_for_the_own(fds: tuple[int, ...]) -> None:
    mine = opened(fds)
    state = {"model": {"weight": torch.ones(8)}}
    mine.write(1, lambda: state, flatten(state))
    file = mine.written(1)
    assert file is not None
    data = file.all_bytes.clone()
    other = mine.receive(file.data_bytes, file.layout_bytes, keep=frozenset((1,)))
    other.all_bytes.copy_(data)
    mine.received(2, rank=0, is_replicated=False, generation=2)
    assert mine.ranks_of(2) == [0]
    assert mine.find(2) is None
    assert mine.find(2, 0) is not None
    mine.forget_others()
    assert mine.ranks_of(2) == []
    assert mine.find(1) is not None
    mine.close()


def test_owners_share_buffers_and_rotate(fds: tuple[int, ...]) -> None:
    memory = Memory(os.dup(fds[0]), map(os.dup, fds[1:]), 2, resume_owner=1)
    red, blue = (Snapshots(memory, 0, 1, owner) for owner in (1, 2))
    assert (red.resume_step, blue.resume_step) == (2, -1)

    def take(of: Snapshots, step: int) -> tuple[list[int], list[int]]:
        state = {"a": torch.full((9,), float(of.owner * 100 + step))}
        of.see_others()
        of.write(step, lambda: state, flatten(state))
        return ([n for n in range(9) if red.has(n)], [n for n in range(9) if blue.has(n)])

    def value(of: Snapshots, step: int) -> float:
        file = of.find(step)
        assert file is not None
        return float(file.read(0)[0])

    assert [take(red, step) for step in (6, 7)][-1] == ([6, 7], [])
    red.let_go()
    assert take(blue, 1) == ([7], [1])
    assert (value(red, 7), value(blue, 1)) == (107, 201)
    assert blue.find(7) is None  # the step of another owner is no step of this one
    blue.clear()
    assert value(red, 7) == 107
    assert take(blue, 1) == ([7], [1])
    assert take(blue, 2) == ([], [1, 2])
    blue.let_go()
    assert take(red, 8) == ([8], [2])  # it does not trust its own view of the buffers
    assert (value(red, 8), value(blue, 2)) == (108, 202)
    assert red.generation > blue.generation_of(2)
    blue.end_resuming()
    assert red.resume_step == 2
    red.end_resuming()
    assert red.resume_step == -1
    for one in (red, blue):
        one.close()


def test_destination_of_each_owner_stays_with_its_snapshots() -> None:
    view = memoryview(bytearray(page.PAGE_BYTES))
    places = {n: page.Destination(f"/kept/{n}", 3, at_breakpoint=True) for n in range(1, 4)}
    page.write(view, 0, page.Entry(1, 1, 7, 4, 3, 4096, 100, True))
    assert page.write_destination(view, 1, places[1])
    assert page.write_destination(view, 2, places[2])
    assert page.read_destinations(view) == {1: places[1], 2: places[2]}
    assert page.write_destination(view, 3, places[3])  # there is no snapshot of the second one
    assert page.read_destinations(view) == {1: places[1], 3: places[3]}
    long = page.Destination("/" + "x" * 3400, 3, at_breakpoint=True)
    assert page.write_destination(view, 2, long)  # without room for the others
    assert page.read_destinations(view) == {2: long}


def test_late_answer_of_the_saver_changes_nothing(fds: tuple[int, ...]) -> None:
    agent = Agent()
    link = agent.link
    assert link.save(0, 3, 5)
    agent.saved(0, 2, "late")
    agent.saved(0, 3, "of another owner", owner=6)
    assert agent.is_waited_for()
    assert link.error(5) == ""
    agent.saved(0, 3, "full")
    assert not agent.is_waited_for()
    assert (link.error(5), link.error(6)) == ("full", "")
    agent.close()
