"""What ``--auto-tune advise`` reads on a node: two sockets of four CPUs, a GPU on each."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from ft_run.events.tuning import TuningMeasured
from ft_run.launcher.machine import idle_cpus
from ft_run.launcher.machine.accelerators import Device
from ft_run.launcher.processes.worker_watch import WorkerWatch
from ft_run.launcher.tuning import measuring
from ft_run.launcher.tuning.measuring import Measuring
from ft_run.rendezvous.protocol.messages import Assignment
from ft_run.training.worker import page_layout as layout

GPUS = [Device("0", "0000:01:00.0"), Device("1", "0000:02:00.0"), Device("2", None)]


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def runs_on(root: Path, pid: int, cpu: int) -> None:
    """Write what proc_pid_stat(5) says of a process: field 39 is the CPU."""
    fields = ["S", *("0" for _ in range(35)), str(cpu), "0"]
    write(root, f"proc/{pid}/stat", f"{pid} (a ) b) {' '.join(fields)}")


@pytest.fixture
def allowed(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The CPUs that this process may run on."""
    found = {*range(8)}
    for module in (idle_cpus, measuring):
        monkeypatch.setattr(module, "allowed_cpus", lambda: frozenset(found))
    return found


def measure(measuring: Measuring, watches: Any, training_s: float, steps: int) -> TuningMeasured:
    at = cast(Assignment, SimpleNamespace(round=2, node_rank=1))
    return measuring.measure(at, watches, training_s, steps)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The tree of the machine."""
    write(tmp_path, "sys/devices/system/cpu/online", "0-7")
    for node in range(2):
        cpus = range(4 * node, 4 * node + 4)
        write(tmp_path, f"sys/devices/system/node/node{node}/cpulist", f"{cpus[0]}-{cpus[-1]}")
        write(tmp_path, f"sys/bus/pci/devices/0000:0{node + 1}:00.0/numa_node", str(node))
        for cpu in cpus:
            topology = f"sys/devices/system/cpu/cpu{cpu}/topology"
            write(tmp_path, f"{topology}/physical_package_id", str(node))
    return tmp_path


@pytest.fixture
def watches() -> Iterator[Any]:
    """Three workers."""
    made = [WorkerWatch() for _ in range(3)]
    for number, watch in enumerate(made):
        watch._page[layout.PID] = 70 + number
    yield made
    for watch in made:
        watch.close()


def test_where_workers_run(root: Path, watches: Any, allowed: set[int]) -> None:
    measuring = Measuring({}, GPUS, root)
    for pid, cpu in ((70, 3), (71, 2), (72, 0)):
        runs_on(root, pid, cpu)
    found = measure(measuring, watches, 0.0, 0)
    assert (found.samples, found.far_samples) == (2, 1)  # the third GPU's place is unknown
    runs_on(root, 70, 5)
    (root / "proc/71/stat").unlink()
    found = measure(measuring, watches, 0.0, 0)
    assert (found.samples, found.far_samples) == (3, 2)


def test_a_socket_that_may_not_be_used_is_no_advice(
    root: Path, watches: Any, allowed: set[int]
) -> None:
    allowed -= {*range(4, 8)}
    measuring = Measuring({}, GPUS, root)
    for pid in (70, 71):
        runs_on(root, pid, 1)
    found = measure(measuring, watches, 0.0, 0)
    assert (found.samples, found.far_samples) == (1, 0)


def test_the_worker_that_waits_longest_and_the_first_one(
    root: Path, watches: Any, allowed: set[int]
) -> None:
    measuring = Measuring({"OMP_NUM_THREADS": "4"}, (), root)
    for number, watch in enumerate(watches[:2]):
        page = watch._page
        page[layout.BATCHES] = 10 + number
        page[layout.WAIT_NS] = (1 + number) * 10**9
        page[layout.FIRST_WAIT_NS], page[layout.SQUARES] = 10**8, 3 * 10**12
        page[layout.PROCESSES], page[layout.PREFETCH] = 4 + number, 2
    page = watches[0]._page
    page[layout.CPU_NS], page[layout.CPU_WALL_NS], page[layout.USES_DEVICE] = 9 * 10**9, 10**10, 1
    found = measure(measuring, watches, 12.5, 30)
    assert (found.round, found.node_rank, found.workers) == (2, 1, 3)
    assert (found.training_s, found.steps) == (12.5, 30)
    assert (found.batches, found.wait_s, found.first_wait_s) == (11, 2.0, 0.1)
    assert (found.squares_s2, found.num_workers, found.prefetch_factor) == (3.0, 5, 2)
    assert (found.worker_cpu_s, found.worker_s, found.uses_device) == (9.0, 10.0, True)
    assert (found.omp_num_threads, found.cpus, found.cores) == (4, 8.0, 8)
    assert found.idle_cpu_s == 0.0
