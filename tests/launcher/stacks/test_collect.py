"""Where workers are, of real processes: what they write, and what the kernel says of the others."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ft_run.launcher.processes.worker_exec import Worker, fork_worker
from ft_run.launcher.processes.worker_watch import WorkerWatch
from ft_run.launcher.stacks import collect as stacks_collect
from ft_run.launcher.stacks.collect import AskedWorker, collect, uses_gpu
from ft_run.rendezvous.protocol import stacks
from ft_run.rendezvous.protocol.stacks import RankStack, RankState

Start = Callable[..., AskedWorker]

LONG_S = 100.0
"""For an answer that comes."""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Execute a worker as the spawner does; return it when it has said that it is there."""
    started: list[tuple[int, WorkerWatch, int]] = []

    def run(*argv: str, watched: bool = True) -> AskedWorker:
        watch = WorkerWatch()
        here, there = os.pipe2(os.O_CLOEXEC)
        worker = Worker(0, [*argv], {}, [1], [], [], is_watched=watched)
        files = (there, *watch.fds) if watched else (there,)
        pid, errors = fork_worker(worker, files)
        os.close(there)
        os.close(errors)
        started.append((pid, watch, here))
        assert os.read(here, 1)
        return AskedWorker(7, pid, watch if watched else None)

    yield run
    for pid, watch, here in started:
        for number in (signal.SIGKILL, signal.SIGCONT):
            os.kill(pid, number)
        os.waitpid(pid, 0)
        watch.close()
        os.close(here)


def script(folder: Path, *lines: str) -> tuple[str, ...]:
    path = folder / "job.py"
    path.write_text("\n".join(lines) + "\n")
    return sys.executable, "-u", str(path)


def ask(*workers: AskedWorker, timeout_s: float = LONG_S) -> tuple[RankStack, ...]:
    return asyncio.run(collect(workers, 3, "gpu07", timeout_s))


@pytest.mark.parametrize(
    "wait",
    [
        "time.sleep(1000)",
        "list(x for x in iter(int, 1))",  # spins in Python
        "sum(itertools.repeat(0))",  # spins in C, with the interpreter's lock
        "open('fifo').read()",
        "lock.acquire()",
        "other.join()",
    ],
)
def test_a_worker_writes_its_stack_wherever_it_is(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wait: str
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("fifo")
    lines = (
        "import itertools, threading, time",
        "lock = threading.Lock()",
        "lock.acquire()",
        "other = threading.Thread(target=time.sleep, args=(1000,), daemon=True)",
        "other.start()",
        "def train():",
        "    print('there')",
        f"    {wait}",
        "train()",
    )
    worker = start(*script(tmp_path, *lines))
    while True:  # it may be asked before it is there
        (stack,) = ask(worker)
        own = [frame for frame in stack.frames if not frame.is_library]
        if own[-2].line == 8:
            break
    assert (stack.rank, stack.node_rank, stack.host) == (7, 3, "gpu07")
    assert (stack.state, stack.remark, stack.steps) == (RankState.ANSWERED, "", 0)
    assert [(f.file, f.line, f.function, f.source) for f in own[-2:]] == [
        ("job.py", 8, "train", wait.partition("  #")[0]),
        ("job.py", 9, "<module>", "train()"),
    ]


def test_it_goes_on_undisturbed_and_can_be_asked_again(start: Start, tmp_path: Path) -> None:
    worker = start(
        *script(
            tmp_path,
            "from ft_run.training import progress",
            "import time",
            "print('there')",
            "for step in range(10**9):",
            "    time.sleep(0.001)",
            "    progress(step)",
        )
    )
    steps: list[int] = []
    while len(steps) < 3:
        (stack,) = ask(worker)
        assert stack.state is RankState.ANSWERED
        assert worker.watch is not None
        assert not worker.watch.stacks(1).startswith("\0")  # the file begins anew each time
        if not steps or stack.steps > steps[-1]:
            steps.append(stack.steps)
    assert stack.ticks >= steps[-1]


def test_nothing_is_read_of_what_was_written_before(start: Start, tmp_path: Path) -> None:
    worker = start(*script(tmp_path, "print('there')", "import time; time.sleep(1000)"))
    assert worker.watch is not None
    old = 'Thread 0x1 (most recent call first):\n  File "old.py", line 1 in old\n'
    os.pwrite(worker.watch.fds[1], old.encode(), 100_000)
    (stack,) = ask(worker)
    assert [frame.file for frame in stack.frames] == ["job.py"]


def test_an_answer_is_read_when_it_is_complete(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a signal is handled it is blocked: some of it may be in the file already."""
    worker = start(*script(tmp_path, "print('there')", "import time; time.sleep(1000)"))
    is_handled = iter([True] * 9)
    status = stacks_collect._status

    def slow(pid: int) -> dict[str, str]:
        found = status(pid)
        return found | {"SigBlk": f"{1 << 61:x}"} if next(is_handled, False) else found

    monkeypatch.setattr(stacks_collect, "_status", slow)
    (stack,) = ask(worker)
    assert stack.state is RankState.ANSWERED
    assert not list(is_handled)


def test_what_is_too_long_for_a_message_loses_its_outermost_frames(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "recurse" * 25
    argv = script(
        tmp_path,
        "import time",
        f"def {name}(depth):",
        f"    return {name}(depth - 1) if depth else time.sleep(1000)",
        "print('there')",
        f"{name}(60)",
    )
    workers = [start(*argv) for _ in range(2)]

    def sizes() -> list[int]:
        frames = [stack.frames for stack in ask(*workers)]
        return [sum(len(f.file + f.function + f.source) for f in stack) for stack in frames]

    while min(sizes()) < 2500:  # it may be asked before it is there
        pass
    assert max(sizes()) <= stacks.STACK_MAX_BYTES
    monkeypatch.setattr(stacks, "REPORT_MAX_BYTES", 4000)
    assert max(sizes()) <= 2000


BLOCKS_THE_SIGNAL = (
    "import signal, time",
    "signal.pthread_sigmask(signal.SIG_BLOCK, [62])",
    "print('there')",
    "time.sleep(1000)",
)


def test_a_worker_that_is_gone_is_not_waited_for(start: Start, tmp_path: Path) -> None:
    worker = start(*script(tmp_path, *BLOCKS_THE_SIGNAL))

    async def close() -> tuple[RankStack, ...]:
        asking = asyncio.create_task(collect([worker], 3, "gpu07", timeout_s=100_000.0))
        assert worker.watch is not None
        while not is_pending(worker.pid):  # noqa: ASYNC110 - nothing announces it
            await asyncio.sleep(0.01)
        worker.watch.close()
        worker.watch.close = lambda: None  # type: ignore[method-assign]  # the fixture does, too
        return await asking

    (stack,) = asyncio.run(close())
    assert stack.frames == ()


def is_pending(pid: int) -> bool:
    """Whether the process has yet to handle a signal."""
    found = re.search(r"ShdPnd:\s*(\w+)", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1], 16) != 0


def test_a_stopped_process_is_called_that(start: Start, tmp_path: Path) -> None:
    worker = start(*script(tmp_path, "print('there')", "import time; time.sleep(1000)"))
    os.kill(worker.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, worker.pid, os.WSTOPPED | os.WNOWAIT)
    (stack,) = ask(worker)
    assert (stack.state, stack.frames, stack.remark) == (RankState.STOPPED, (), "by a signal")
    assert not is_pending(worker.pid), "it would have to answer when it goes on"


def test_a_process_that_blocks_the_signal_does_not_answer(start: Start, tmp_path: Path) -> None:
    worker = start(*script(tmp_path, *BLOCKS_THE_SIGNAL))
    (stack,) = ask(worker, timeout_s=0.1)
    assert (stack.state, stack.frames) == (RankState.SILENT, ())


@pytest.mark.parametrize(
    ("program", "watched"),
    [
        (("sh", "-c", "echo there; exec sleep 1000"), True),
        (
            (sys.executable, "-c", "print('there', flush=True); import time; time.sleep(1000)"),
            False,
        ),
        (
            # It puts another program in its place, which would die of the signal.
            (
                sys.executable,
                "-c",
                "import os; os.execvp('sh', ['sh', '-c', 'echo x; exec sleep 1000'])",
            ),
            True,
        ),
        (
            # It takes the signal back, which would end it now.
            (
                sys.executable,
                "-c",
                "import faulthandler, time; faulthandler.unregister(62);"
                " print('x', flush=True); time.sleep(1000)",
            ),
            True,
        ),
        (
            # It closes all files, and has opened one of its own under the number.
            (
                sys.executable,
                "-c",
                "import os, time; os.closerange(3, 9999); [os.dup(1) for _ in range(200)];"
                " print('x', flush=True); time.sleep(1000)",
            ),
            True,
        ),
    ],
)
def test_a_process_without_the_hook_is_left_alone(
    start: Start, program: tuple[str, ...], watched: bool
) -> None:
    worker = start(*program, watched=watched)
    for _ in range(2):
        (stack,) = ask(worker)
        assert (stack.state, stack.frames) == (RankState.UNKNOWN, ())
        assert stack.remark in ("not watched", "the stacks hook was removed")
    os.kill(worker.pid, 0)


def test_a_process_that_has_ended_is_called_that() -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    (stack,) = ask(AskedWorker(0, ended.pid, None))
    assert (stack.state, stack.remark) == (RankState.UNKNOWN, "it has ended")


def test_many_are_asked_at_once(start: Start, tmp_path: Path) -> None:
    argv = script(tmp_path, "print('there')", "import time; time.sleep(1000)")
    workers = [start(*argv) for _ in range(4)]
    os.kill(workers[1].pid, signal.SIGSTOP)
    os.waitid(os.P_PID, workers[1].pid, os.WSTOPPED | os.WNOWAIT)
    states = [stack.state for stack in ask(*workers)]
    assert states == [RankState.ANSWERED, RankState.STOPPED, *[RankState.ANSWERED] * 2]


@pytest.mark.parametrize(
    ("states", "expected"),
    [("DDS", RankState.UNKNOWN), ("D", RankState.UNINTERRUPTIBLE), ("SD", RankState.UNKNOWN)],
)
def test_one_without_the_hook_that_waits_for_a_disk_for_a_moment_is_not_uninterruptible(
    start: Start, monkeypatch: pytest.MonkeyPatch, states: str, expected: RankState
) -> None:
    """No process can be put into that state at will without root: what /proc says is replaced."""
    said = iter(states)
    last = states[-1]
    monkeypatch.setattr(stacks_collect, "_state", lambda pid: next(said, last))
    worker = start("sh", "-c", "echo there; exec sleep 1000", watched=False)
    # What is to be seen to change has all the time that a busy machine needs.
    timeout_s = 0.2 if expected is RankState.UNINTERRUPTIBLE else 60.0
    assert ask(worker, timeout_s=timeout_s)[0].state is expected


def test_a_process_that_has_started_cuda_uses_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NVML opens other devices."""
    monkeypatch.setattr(stacks_collect, "_GPUS", (str(tmp_path / "nvidia-uvm"),))
    (tmp_path / "nvidiactl").touch()
    with open(tmp_path / "nvidiactl"):
        assert not uses_gpu(os.getpid())
    (tmp_path / "nvidia-uvm").touch()
    with open(tmp_path / "nvidia-uvm"):
        assert uses_gpu(os.getpid())
    assert not uses_gpu(2**22 - 1)
