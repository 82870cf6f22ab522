"""What the agent reads from the page of a worker."""

import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from ft_run.launcher.processes.worker_watch import Computing, Progress, WorkerWatch, starter_env
from ft_run.training.worker import hook, start
from ft_run.training.worker import page_layout as layout


@pytest.fixture(autouse=True)
def no_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker in this process does not end with it."""
    monkeypatch.setattr(hook, "atexit", SimpleNamespace(register=lambda *_: None))


@pytest.fixture
def watch() -> Iterator[WorkerWatch]:
    """The files of one worker."""
    made = WorkerWatch()
    yield made
    made.close()


def run(watch: WorkerWatch, *lines: str) -> Progress:
    """Return how far a watched script has come."""
    subprocess.run(
        [sys.executable, "-c", "\n".join(("from ft_run.training import progress", *lines))],
        env={**os.environ, **starter_env(os.environ, watch.fds)},
        pass_fds=watch.fds,
        check=True,
        timeout=60,
    )
    found = watch.progress()
    assert found is not None
    return found


def test_a_worker_that_is_not_there_yet(watch: WorkerWatch) -> None:
    assert watch.progress() is None


def test_a_worker_that_has_just_begun_has_no_rate(watch: WorkerWatch) -> None:
    watch._page[layout.PID], watch._page[layout.STEPS], watch._page[layout.LAST_NS] = 1, 7, 10**9
    found = watch.progress()
    assert found is not None
    assert found.steps_per_s == 0.0


def test_the_recent_share_of_the_wait_for_data(watch: WorkerWatch) -> None:
    page, now_s = watch._page, 100
    hooked = hook.Hook(start.Page(page))
    clock = SimpleNamespace(monotonic_ns=lambda: round(now_s * 1e9), process_time_ns=lambda: 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hook, "time", clock)
        for _ in range(30):  # at first it does not wait
            now_s += 1
            hooked.progress(-1)
        for _ in range(30):
            now_s += 1
            page[layout.WAIT_NS] += 250_000_000
            hooked.progress(-1)
    found = watch.progress()
    assert found is not None
    assert found.data_wait == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("lines", "steps", "ticks", "furthest"),
    [
        ((), 0, 0, -1),
        (("progress()",), 0, 1, -1),
        (("progress(0)",), 0, 1, 0),
        (("progress(5)", "progress(9)", "progress(3)"), 3, 3, 9),
        (("progress(2**63 - 1)",), 2**63 - 1, 1, 2**63 - 1),
    ],
)
def test_what_a_script_says(
    watch: WorkerWatch, lines: tuple[str, ...], steps: int, ticks: int, furthest: int
) -> None:
    found = run(watch, *lines)
    assert (found.steps, found.ticks, found.furthest) == (steps, ticks, furthest)


CLOCK = (
    "import time",
    "now = 50 * 10**9",
    "time.monotonic_ns = lambda: now",
    "def pass_time(seconds):",
    "    global now; now += int(seconds * 1e9)",
)


@pytest.mark.parametrize(
    ("lines", "rate"),
    [
        (("progress(1)",), 0.0),
        # Since the first.
        (("for n in range(5): progress(n); pass_time(0.5)",), 2.0),
        # Of late: between 10 and 20 seconds.
        (
            (
                "for n in range(100): progress(n); pass_time(1)",
                "for n in range(100, 1000): progress(n); pass_time(0.1)",
            ),
            10.0,
        ),
        # Longer steps, each by itself.
        (("for n in range(5): progress(n); pass_time(40)",), 1 / 40),
        # What was counted before the script said its own number does not count.
        (("progress()", "pass_time(1)", "progress(7000)", "pass_time(1)", "progress(7001)"), 1.0),
        # An evaluation that begins to count anew.
        (("progress(700)", "pass_time(1)", "progress(1)"), 0.0),
    ],
)
def test_steps_per_second(watch: WorkerWatch, lines: tuple[str, ...], rate: float) -> None:
    assert run(watch, *CLOCK, *lines).steps_per_s == pytest.approx(rate)


@pytest.mark.parametrize(
    ("lines", "longest_s"),
    [
        (("pass_time(7)", "progress()", "pass_time(9)"), 0.0),
        (("for pause in (1, 5, 2): progress(); pass_time(pause)", "progress()"), 5.0),
    ],
)
def test_the_longest_time_between_two_signs_of_progress(
    watch: WorkerWatch, lines: tuple[str, ...], longest_s: float
) -> None:
    assert run(watch, *CLOCK, *lines).longest_s == pytest.approx(longest_s)


def test_what_a_worker_computes_with(watch: WorkerWatch, monkeypatch: pytest.MonkeyPatch) -> None:
    assert watch.computing() is None
    now, used = [5_000_000_000], [2_000_000_000]
    clock = SimpleNamespace(monotonic_ns=lambda: now[0], process_time_ns=lambda: used[0])
    monkeypatch.setattr(hook, "time", clock)
    no_device = SimpleNamespace(is_initialized=lambda: False)
    device = SimpleNamespace(is_initialized=lambda: True)
    torch = SimpleNamespace(cuda=no_device, xpu=SimpleNamespace(), npu=device)
    monkeypatch.setitem(sys.modules, "torch", torch)
    page = memoryview(mmap.mmap(watch.fds[0], layout.PAGE_BYTES)).cast("Q")
    worker = hook.Hook(start.Page(page))
    worker.progress(-1)
    assert watch.computing() == Computing(os.getpid(), 0.0, 0.0, True)
    for _ in range(4):
        now[0] += 600_000_000
        used[0] += 1_200_000_000
        worker.progress(-1)
    assert watch.computing() == Computing(os.getpid(), 4.8, 2.4, True)
    torch.npu = no_device
    hook.Hook(start.Page(page)).progress(-1)
    assert watch.computing() == Computing(os.getpid(), 0.0, 0.0, False)
