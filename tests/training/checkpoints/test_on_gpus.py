"""Snapshots of tensors on GPUs, with what stands in for CUDA (``harness/cuda/runtime.py``)."""

import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from ft_run.tests.harness.cuda.runtime import CudaRuntime
from ft_run.tests.harness.log_lines import logged
from ft_run.training import Checkpointer
from ft_run.training.checkpoints import copying, memory_files
from ft_run.training.checkpoints.copying import Background, LateCopy
from ft_run.training.checkpoints.encoding import flatten
from ft_run.training.checkpoints.memory_files import Registration
from ft_run.training.checkpoints.replication import IDLE
from ft_run.training.checkpoints.snapshot_store import Snapshots
from ft_run.training.worker import snapshot_page as page
from ft_run.training.worker.snapshot_memory import Memory

Use = Callable[[CudaRuntime], CudaRuntime]
State = dict[str, dict[str, torch.Tensor]]


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Use:
    """Call it with the runtime of the process that the test goes on as."""

    def use(runtime: CudaRuntime) -> CudaRuntime:
        monkeypatch.setattr(copying, "_CUDA", runtime)
        monkeypatch.setattr(memory_files, "_CUDA", runtime)
        monkeypatch.setattr(memory_files, "_error_reader", lambda: runtime.read_error)
        return runtime

    return use


@pytest.fixture
def cuda(use: Use) -> CudaRuntime:
    """The runtime of this process."""
    return use(CudaRuntime())


@pytest.fixture
def new() -> Iterator[Callable[[], Snapshots]]:
    """Makes a rank's snapshots."""
    made: list[Snapshots] = []

    def make() -> Snapshots:
        fds = [os.memfd_create("test") for _ in range(1 + page.BUFFERS)]
        os.ftruncate(fds[0], page.PAGE_BYTES)
        made.append(Snapshots(Memory(fds[0], tuple(fds[1:]), -1), 0, 1, 5))
        return made[-1]

    yield make
    for one in made:
        one.close()


def state_on(cuda: CudaRuntime, device: int, value: float, count: int = 200_000) -> State:
    """Return a state whose large tensor is copied late; the small one is cloned first."""
    large, small = torch.full((count,), float(value)), torch.full((5,), float(value))
    return {"model": {"large": cuda.on(large, device), "small": cuda.on(small, device)}}


def take(mine: Snapshots, background: Background, step: int, state: State) -> list[str]:
    """Take a snapshot as Checkpointer does; return what its completion says, if it is late."""
    said: list[str] = []
    complete = mine.write(step, lambda: state, flatten(state), frozenset({"model.large"}))
    if complete is not None:
        background.begin(lambda: said.append(complete()))
    background.wait()
    assert background.error is None
    return said


def values(mine: Snapshots, step: int) -> set[float]:
    """Return the values that a snapshot has."""
    file = mine.written(step)
    assert file is not None
    return {float(v) for i in range(len(file.items)) for v in file.read(i).unique()}


def test_each_rank_of_a_node_has_one_context_and_leaves_nothing(
    use: Use, new: Callable[[], Snapshots]
) -> None:
    contexts: Counter[int] = Counter()
    registered, left = [], []
    for rank in range(8):
        cuda = use(CudaRuntime(contexts))
        cuda.set_device(rank)
        background, mine, of_others = Background(), new(), new()
        for step in range(1, 5):
            said = take(mine, background, step, state_on(cuda, rank, step))
            assert said == ([""] if step > 1 else [])  # the first is laid out, at once
            assert values(mine, step) == {float(step)}

        def receive(held: Snapshots = of_others, sent: Snapshots = mine) -> None:
            file = sent.written(4)
            assert file is not None
            held.receive(file.data_bytes, file.layout_bytes).all_bytes.copy_(file.all_bytes)
            held.received(4, rank=1, is_replicated=False, generation=4)

        thread = threading.Thread(target=receive)  # as replicas come
        thread.start()
        thread.join()
        assert of_others.find(4, 1) is not None
        registered.append(len(cuda.registered))
        mine.close()
        of_others.close()
        left.append((len(cuda.registered), cuda.pending))
    assert contexts == dict.fromkeys(range(8), 1)
    assert (registered, left) == ([2] * 8, [(0, 0)] * 8)


def test_sources_on_two_gpus_are_both_waited_for(cuda: CudaRuntime) -> None:
    """Where neither is the current device: no context is made on that."""
    sources = [cuda.on(torch.full((count,), float(n)), n) for n, count in ((3, 300_000), (5, 9))]
    targets = [torch.zeros(source.shape) for source in sources]
    for target in targets:
        cuda.registered[target.data_ptr()] = target.nbytes
    copy, background, said = LateCopy(list(zip(targets, sources, strict=True))), Background(), []
    background.begin(lambda: said.append(copy.run()))
    background.wait()
    assert (background.error, said) == (None, [True])
    assert [float(target.unique()) for target in targets] == [3, 5]
    assert cuda.mine == {3, 5}


def test_a_snapshot_waits_for_what_the_gpu_was_given_before(cuda: CudaRuntime) -> None:
    source, target = cuda.on(torch.ones(300_000), 0), torch.zeros(300_000)
    cuda.registered[target.data_ptr()] = target.nbytes
    done: list[str] = []
    cuda.current_stream().work.append(lambda: done.append("backward"))
    copy = LateCopy([(target, source)])
    cuda.current_stream().work.append(lambda: done.append("forward"))
    assert copy.run()
    assert done == ["backward"], "and for nothing of after"


@pytest.mark.parametrize("pinnable", [0, 1_000_000])
def test_a_refused_registration_costs_speed_and_nothing_else(
    cuda: CudaRuntime, new: Callable[[], Snapshots], pinnable: int
) -> None:
    cuda.pinnable = pinnable  # nothing, or one of two buffers
    background, mine = Background(), new()
    for step in range(1, 5):
        take(mine, background, step, state_on(cuda, 0, step))
        assert cuda.pending == 0
        cuda.launch()  # what training does next
        assert values(mine, step) == {float(step)}
    assert len(cuda.registered) == bool(pinnable)


def test_memory_that_nobody_uses_any_more_is_not_registered(
    cuda: CudaRuntime, new: Callable[[], Snapshots]
) -> None:
    """Not closed, as when a script drops its Checkpointer, in a thread that has set no device."""
    cuda.set_device(2)
    held = [new()]
    for step in (1, 2, 3, 4):
        take(held[0], Background(), step, state_on(cuda, 2, step))
    assert len(cuda.registered) == 2
    files, held[0]._files, held[0]._last = [held[0]._files], [], None
    thread = threading.Thread(target=files.clear)
    thread.start()
    thread.join()
    assert (cuda.registered, cuda.mine, cuda.pending) == ({}, {2}, 0)


class Training:
    """A script in one process of a node, from its first or its restored step on."""

    def __init__(self, cuda: CudaRuntime, folder: Path, device: int = 0) -> None:
        torch.manual_seed(0)
        self.cuda, model = cuda, torch.nn.Linear(400, 400)
        for name, parameter in list(model.named_parameters()):
            setattr(model, name, torch.nn.Parameter(cuda.on(parameter.detach(), device)))
        self.model, self.optimizer = model, torch.optim.Adam(model.parameters(), lr=0.1)
        state = {"model": model, "optimizer": self.optimizer}
        self.checkpointer = Checkpointer(folder, state, checkpoint_every=None)

    def train(self, total: int, do: Callable[[int], object] = lambda _: None) -> torch.Tensor:
        """Train up to a step; return all bits of the state."""
        for number in self.checkpointer.steps(total):
            do(number)
            for index, parameter in enumerate(self.model.parameters()):
                gradient = torch.full(parameter.shape, number - index + 0.5)
                parameter.grad = self.cuda.on(gradient, parameter.device.index)
            self.optimizer.step()
        self.checkpointer.wait()
        state = flatten({"optimizer": self.optimizer.state_dict()}) | self.model.state_dict()
        values = [value for value in state.values() if isinstance(value, torch.Tensor)]
        return torch.cat([value.detach().as_subclass(torch.Tensor).flatten() for value in values])


def test_a_restart_reads_first_and_registers_memory_beside_training(
    use: Use, memory: Callable[..., memoryview], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory(-1)
    undisturbed = Training(use(CudaRuntime()), tmp_path).train(9)
    memory(-1)
    Training(use(CudaRuntime()), tmp_path).train(4)
    memory(4)
    cuda = use(CudaRuntime())
    seen: list[tuple[int | str, int]] = []
    training = Training(cuda, tmp_path)
    cuda.registers.clear()
    wait = Registration.wait

    def let_go(registration: Registration) -> None:
        seen.append(("awaited", len(cuda.registered)))
        cuda.registers.set()
        wait(registration)

    monkeypatch.setattr(Registration, "wait", let_go)
    bits = training.train(9, lambda number: seen.append((number, len(cuda.calls))))
    cuda.registers.set()
    assert torch.equal(bits, undisturbed)
    # Step 4 is restored; step 5 is written to the other buffer while the first is registered.
    assert seen[:3] == [(4, 0), (5, 1), ("awaited", 0)]
    assert cuda.registered_by == {"ft-run-pinning"}
    assert (len(cuda.registered), cuda.contexts) == (2, {0: 1})


def ranks(folder: Path, memories: list[list[int]], total: int, resume: int) -> list[dict[str, Any]]:
    """Run two ranks of a sharded training, each on a node of its own; return what they print."""
    folder.mkdir()
    module = "ft_run.tests.harness.cuda.sharded_rank"
    running = [
        subprocess.Popen(
            [sys.executable, "-m", module, *map(str, (folder / "r", rank, total, resume, *fds))],
            pass_fds=fds,
            stdout=subprocess.PIPE,
        )
        for rank, fds in enumerate(memories)
    ]
    outputs = [process.communicate(timeout=120)[0] for process in running]
    assert [process.returncode for process in running] == [0, 0]
    return [json.loads(output) for output in outputs]


@pytest.mark.slow
def test_a_lost_host_costs_no_bit_of_sharded_state(tmp_path: Path) -> None:
    with ExitStack() as stack:

        def memory_of_node() -> list[int]:
            fds = [os.memfd_create("test") for _ in range(2 * (1 + page.BUFFERS))]
            for fd in fds:
                stack.callback(os.close, fd)
            for fd in fds[:: 1 + page.BUFFERS]:
                os.ftruncate(fd, page.PAGE_BYTES)
            return fds

        kept = memory_of_node()
        undisturbed = ranks(tmp_path / "a", [memory_of_node(), memory_of_node()], 7, -1)
        ranks(tmp_path / "b", [kept, memory_of_node()], 4, -1)
        resumed = ranks(tmp_path / "c", [kept, memory_of_node()], 7, 4)
    for rank, (before, after) in enumerate(zip(undisturbed, resumed, strict=True)):
        assert before == {
            "begun": 0,
            "calls": 0,
            "bits": after["bits"],
            "devices": [rank],
            "replicas": IDLE,
            "threads": ["ft-run-pinning", "ft-run-snapshots_0"],
            "pending": 0,
        }
        assert after == {**before, "begun": 4}
    assert undisturbed[0]["bits"] != undisturbed[1]["bits"]


def test_too_little_memory_of_the_gpu_is_an_error_of_torch(
    cuda: CudaRuntime, new: Callable[[], Snapshots]
) -> None:
    background, mine = Background(), new()
    for step in (1, 2):
        take(mine, background, step, state_on(cuda, 0, step))
    cuda.free = 0
    with pytest.raises(RuntimeError, match="out of memory"):
        take(mine, background, 3, state_on(cuda, 0, 3))
    assert (mine.has(2), mine.has(3)) == (True, False)
    cuda.free = float("inf")
    cuda.broken = "an illegal memory access was encountered"
    assert take(mine, background, 4, state_on(cuda, 0, 4)) == [f"CUDA error: {cuda.broken}"]
    cuda.broken = ""
    assert take(mine, background, 5, state_on(cuda, 0, 5)) == [""]
    assert values(mine, 5) == {5.0}


def test_training_goes_on_when_copies_fail(
    cuda: CudaRuntime,
    tmp_path: Path,
    memory: Callable[..., memoryview],
    capfd: pytest.CaptureFixture[str],
) -> None:
    """First without overlap, then without snapshots: each said in one line."""
    entries = memory(-1)
    model = torch.nn.Linear(400, 400)
    for name, parameter in list(model.named_parameters()):
        setattr(model, name, torch.nn.Parameter(cuda.on(parameter.detach(), 0)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = {"model": model, "optimizer": optimizer}
    held: list[set[int]] = []
    for number in Checkpointer(tmp_path, state, checkpoint_every=None).steps(9):
        optimizer.step()  # waits for the copy of the step before
        there = [page.read(entries, index) for index in range(page.BUFFERS)]
        held.append({entry.step for entry in there if entry is not None})
        cuda.broken = "unspecified launch failure" if number in (3, 6) else ""
        if number == 4:
            assert cuda.waited_by > {"ft-run-snapshots_0"}
            cuda.waited_by.clear()
    assert held == [set(), {1}, {1, 2}, {2, 3}, {3}, {3, 5}, {5, 6}, {6}, {6}]
    lost = "no snapshot of step {}: CUDA error: unspecified launch failure; {}"
    assert logged(capfd) == [
        lost.format(4, "training waits for each copy from now on"),
        lost.format(7, "snapshots are disabled, checkpoints only"),
    ]
    assert (cuda.registered, cuda.pending, cuda.waited_by) == ({}, 0, {"MainThread"})


def test_without_a_thread_memory_is_not_registered(
    cuda: CudaRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    assert memory_files.register(torch.zeros(10), cuda) is None
    assert not cuda.calls
