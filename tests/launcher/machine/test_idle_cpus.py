"""Idle CPU time, read from recorded layouts of ``/proc`` and cgroups."""

from pathlib import Path

import pytest
from ft_run.launcher.machine import idle_cpus
from ft_run.launcher.machine.idle_cpus import IdleCpus

TICKS = 100
ALLOWED = frozenset({0, 1, 2, 5})


class Machine:
    """Six CPUs, two threads a core; a test lets time pass."""

    def __init__(self, root: Path, quota: str = "") -> None:
        self.root, self.now_s = root, 100.0
        self.busy = [0.0] * 6
        self.idle = [0.0] * 6
        self.write("sys/devices/system/cpu/online", "0-5")
        for cpu in range(6):
            pair = f"{cpu // 2 * 2}-{cpu // 2 * 2 + 1}"
            folder = f"sys/devices/system/cpu/cpu{cpu}/topology"
            self.write(f"{folder}/thread_siblings_list", pair)
        if quota == "v2":
            self.write("proc/self/cgroup", "0::/job\n")
            self.write("proc/self/mountinfo", "30 23 0:26 / /cg rw - cgroup2 cgroup2 rw\n")
            self.write("cg/job/cpu.max", "250000 100000")
        elif quota == "v1":
            self.write("proc/self/cgroup", "2:cpuacct:/job\n1:cpu:/job\n")
            mounts = "30 23 0:26 / /cpu rw - cgroup c rw,cpu\n"
            mounts += "31 23 0:27 / /acct rw - cgroup c rw,cpuacct\n"
            self.write("proc/self/mountinfo", mounts)
            self.write("cpu/job/cpu.cfs_quota_us", "250000")
            self.write("cpu/job/cpu.cfs_period_us", "100000")
        self.passes(0.0, 0.0)

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def passes(self, seconds: float, busy: float, used_s: float = 0.0) -> None:
        """Let time pass in which each CPU is busy for a share of it."""
        self.now_s += seconds
        lines = ["cpu  9 9 9 9 9 9 9 9 0 0"]
        for cpu in range(6):
            self.busy[cpu] += seconds * busy * TICKS
            self.idle[cpu] += seconds * (1 - busy) * TICKS
            half = int(self.idle[cpu]) // 2
            lines.append(
                f"cpu{cpu} {int(self.busy[cpu])} 0 0 {int(self.idle[cpu]) - half} {half} 0 0 0 7 0"
            )
        self.write("proc/stat", "\n".join([*lines, "intr 1 2 3"]))
        self.write("cg/job/cpu.stat", f"nr_periods 1\nusage_usec {int(used_s * 1e6)}\n")
        self.write("acct/job/cpuacct.usage", f"{int(used_s * 1e9)}\n")

    def idle_cpus(self) -> IdleCpus:
        return IdleCpus(self.root, lambda: self.now_s)


@pytest.fixture(autouse=True)
def allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle_cpus, "allowed_cpus", lambda: ALLOWED)


def test_the_idle_time_of_the_cpus_that_may_be_used(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    idle = machine.idle_cpus()
    assert (idle.cpus, idle.cores) == (4.0, 3)
    machine.passes(50.0, 1.0)
    assert idle.read() == 0.0
    machine.passes(10.0, 0.75)
    assert idle.read() == pytest.approx(4 * 10 * 0.25, abs=0.1)
    machine.passes(0.5, 0.0)
    assert idle.read() == pytest.approx(10.0, abs=0.1)  # too early to read again
    machine.passes(9.5, 0.0)
    assert idle.read() == pytest.approx(10.0 + 4 * 10, abs=0.1)


@pytest.mark.parametrize("quota", ["v1", "v2"])
def test_a_quota_has_idle_time_of_its_own(tmp_path: Path, quota: str) -> None:
    machine = Machine(tmp_path, quota)
    idle = machine.idle_cpus()
    assert (idle.cpus, idle.cores) == (2.5, 2)
    assert idle.read() == 0.0
    machine.passes(10.0, 0.0, used_s=15.0)
    assert idle.read() == pytest.approx(25.0 - 15.0)
    machine.passes(10.0, 0.9, used_s=16.0)  # others keep the machine busy
    assert idle.read() == pytest.approx(10.0 + 4 * 10 * 0.1, abs=0.1)


def test_what_is_not_shown_is_not_known(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "usage", "v2")
    idle = machine.idle_cpus()
    idle.read()
    machine.passes(10.0, 0.0)
    (machine.root / "cg/job/cpu.stat").unlink()
    assert idle.read() == -1.0
    machine = Machine(tmp_path / "zeros")
    idle = machine.idle_cpus()
    idle.read()
    machine.now_s += 10.0  # a sandbox that counts nothing
    assert idle.read() == -1.0
    machine.passes(10.0, 0.0)
    assert idle.read() == -1.0
