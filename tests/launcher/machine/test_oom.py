"""Which of the processes that were killed the OOM killer has killed."""

from pathlib import Path

import pytest
from ft_run.launcher.machine.oom import OomWatch

V1 = ("4:memory:/job\n", "cgroup cgroup rw,memory", "memory.oom_control")
V2 = ("0::/job\n", "cgroup2 cgroup2 rw", "memory.events")


class Cgroup:
    """A memory cgroup in which the OOM killer strikes when the test says so."""

    def __init__(self, root: Path, kind: tuple[str, str, str]) -> None:
        membership, described, file = kind
        (root / "proc/self").mkdir(parents=True)
        (root / "proc/self/cgroup").write_text(membership)
        (root / "proc/self/mountinfo").write_text(f"30 23 0:26 / /cg rw - {described}\n")
        self._file = root / "cg/job" / file
        self._file.parent.mkdir(parents=True)
        self._killed = 0
        self.kills(2)

    def kills(self, processes: int) -> None:
        self._killed += processes
        self._file.write_text(f"oom 9\noom_kill {self._killed}\n")


@pytest.mark.parametrize("kind", [V1, V2], ids=["v1", "v2"])
def test_each_victim_is_recognised_and_no_other(tmp_path: Path, kind: tuple[str, str, str]) -> None:
    cgroup = Cgroup(tmp_path, kind)
    watch = OomWatch(tmp_path)
    assert not watch.has_struck(), "before this process"
    cgroup.kills(2)
    assert [watch.has_struck() for _ in range(3)] == [True, True, False]
    cgroup.kills(1)
    assert [watch.has_struck() for _ in range(2)] == [True, False]


def test_what_it_did_in_earlier_rounds_is_not_of_this_one(tmp_path: Path) -> None:
    cgroup = Cgroup(tmp_path, V2)
    watch = OomWatch(tmp_path)
    cgroup.kills(3)
    watch.begin()
    assert not watch.has_struck()


def test_without_a_memory_cgroup_it_is_not_known(tmp_path: Path) -> None:
    assert not OomWatch(tmp_path).has_struck()
