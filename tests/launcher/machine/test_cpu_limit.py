"""The CPU limit, read from recorded layouts of ``/proc`` and ``/sys``.

``tests/e2e/processes/test_containers.py`` has a real cgroup.
"""

import os
from collections.abc import Mapping, Set
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import pytest
from ft_run.launcher.machine import cpu_limit
from ft_run.launcher.machine.cpu_limit import (
    CpuLimit,
    allowed_cpus,
    format_cpus,
    parse_cpus,
    quota_cpus,
    read_cpu_limit,
)
from hypothesis import given
from hypothesis import strategies as st

CG = "/sys/fs/cgroup"
POD = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice"
SCOPE = f"{POD}/cri-containerd-abc.scope"
DOCKER = "/docker/0123abc"
JOB = "/slurm/uid_1000/job_7/step_0"
UNIT = r"/system.slice/system-train\x2djob.slice"


def v2(point: str = CG, root: str = "/") -> str:
    return f"30 23 0:26 {root} {point} rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate"


def v1(controllers: str = "cpu,cpuacct", root: str = "/", point: str = "") -> str:
    where = point or f"{CG}/{controllers}"
    return f"33 31 0:29 {root} {where} rw,relatime - cgroup cgroup rw,{controllers}"


class Tree(NamedTuple):
    """One machine: /proc/self/cgroup, the cgroup mounts, and the quota files below them."""

    id: str
    cgroup: str
    mounts: tuple[str, ...]
    files: Mapping[str, str]
    """Directory → ``cpu.max`` text, or ``quota/period`` for v1."""
    expected: tuple[int, str] | None
    """CPUs, and the end of the source."""


Files = Mapping[str, str]
Expected = tuple[int, str] | None
V1_CPU = f"{CG}/cpu,cpuacct"
UNIFIED = f"{CG}/unified"
FOUR, THREE, TWO, ONE = (f"{cpus}00000 100000" for cpus in (4, 3, 2, 1))
FOUR_V1, THREE_V1, TWO_V1, ONE_V1 = (f"{cpus}00000/100000" for cpus in (4, 3, 2, 1))


def two(name: str, path: str, files: Files, expected: Expected, *mounts: str) -> Tree:
    """A pure v2 machine; ``files`` are below its usual mount point."""
    below = {f"{CG}{directory}": text for directory, text in files.items()}
    return Tree(f"v2-{name}", f"0::{path}\n", mounts or (v2(),), below, expected)


def one(name: str, path: str, files: Files, expected: Expected, *mounts: str) -> Tree:
    """A v1 machine with systemd's names; ``files`` are below the mount of ``cpu,cpuacct``."""
    lines = ["12:cpuset:{}", "11:cpu,cpuacct:{}", "10:memory:{}", "1:name=systemd:{}", "0::/"]
    cgroup = "".join(line.format(path) + "\n" for line in lines)
    below = {f"{V1_CPU}{directory}": text for directory, text in files.items()}
    return Tree(f"v1-{name}", cgroup, mounts or (v1(), v1("cpuset")), below, expected)


TREES = [
    two("max", "/a", {"/a": "max 100000\n"}, None),
    two("exact", "/a", {"/a": "400000 100000\n"}, (4, "cgroup v2 cpu.max 400000/100000 at /a")),
    two("rounds-up", "/a", {"/a": "350000 100000"}, (4, "cpu.max 350000/100000 at /a")),
    two("below-one", "/a", {"/a": "10000 100000"}, (1, "10000/100000 at /a")),
    two("parent-is-tighter", "/p/c", {"/p": TWO, "/p/c": FOUR}, (2, "at /p")),
    two("equal-names-the-inner", "/p/c", {"/p": "100000 50000", "/p/c": TWO}, (2, "at /p/c")),
    two("ratio-not-quota", "/p/c", {"/p": ONE, "/p/c": "50000 10000"}, (1, "at /p")),
    two("garbage-goes-upwards", "/p/c", {"/p": TWO, "/p/c": "banana"}, (2, "at /p")),
    two("deleted-goes-upwards", "/p/gone (deleted)", {"/p": TWO}, (2, "at /p")),
    two("sibling-does-not-count", "/p/c", {"/p/d": ONE}, None),
    two("three-fields", "/a", {"/a": "200000 100000 7"}, None),
    two("beyond-64-bits", "/a", {"/a": "9" * 5000 + " 100000"}, None),
    two("docker-host-namespace", DOCKER, {"/": TWO}, (2, f"at {DOCKER}"), v2(root=DOCKER)),
    two(
        "docker-in-docker",
        f"{DOCKER}/docker/in",
        {"/": FOUR, "/docker/in": TWO},
        (2, f"at {DOCKER}/docker/in"),
        v2(root=DOCKER),
    ),
    two(
        "second-mount-shows-more",
        DOCKER,
        {"/": FOUR, "/host/docker": THREE},
        (3, "at /docker"),
        v2(root=DOCKER),
        v2(f"{CG}/host"),
    ),
    two("mounted-over", DOCKER, {"/": THREE}, (3, f"at {DOCKER}"), v2(), v2(root=DOCKER)),
    two(
        "root-is-no-string-prefix",
        "/dock/x",
        {"/bind": ONE, "/dock/x": THREE},
        (3, "at /dock/x"),
        v2(f"{CG}/bind", "/doc"),
        v2(),
    ),
    two("outside-the-mount", "/init", {"/": TWO}, (2, f"at {DOCKER}"), v2(root=DOCKER)),
    two("outside-the-namespace", "/../sibling", {"/": TWO}, (2, "at /")),
    two("kubernetes-pod", SCOPE, {SCOPE: "max 100000", POD: THREE}, (3, f"at {POD}")),
    two(
        "systemd-escape",
        f"{UNIT}/a",
        {"/a": TWO},
        (2, f"at {UNIT}/a"),
        v2(root=UNIT.replace("\\", r"\134")),
    ),
    two(
        "slurm",
        "/system.slice/slurmstepd.scope/job_7/step_0/user/task_0",
        {"/system.slice/slurmstepd.scope/job_7": FOUR},
        (4, "slurmstepd.scope/job_7"),
    ),
    two(
        "spaces",
        "/my pods/a b",
        {"/c g/a b": TWO},
        (2, "at /my pods/a b"),
        v2(rf"{CG}/c\040g", r"/my\040pods"),
    ),
    two("colon", "/a:b/c:d", {"/a:b/c:d": TWO}, (2, "at /a:b/c:d")),
    two("not-mounted", "/a", {"/a": TWO}, None, "30 23 0:26 / /tmp rw - tmpfs tmpfs rw"),
    two("mountinfo-is-garbage", "/a", {"/a": TWO}, None, "x", "- - -", "1 2 3 - cgroup2 c rw"),
    two("nul-in-mount-point", "/a", {"/a": TWO}, None, v2(r"/\000")),
    two(
        "many-optional-fields-and-no-source",
        "/a",
        {"/a": TWO},
        (2, "at /a"),
        f"30 23 0:26 / {CG} rw shared:1 master:2 propagate_from:3 unbindable - cgroup2  rw",
    ),
    one("none", "/", {"/": "-1/100000"}, None),
    one(
        "docker",
        DOCKER,
        {"/": "250000/100000"},
        (3, f"cgroup v1 cpu.cfs_quota_us 250000/100000 at {DOCKER}"),
        v1(root=DOCKER),
        v1("cpuset", DOCKER),
    ),
    one("kubernetes", "/k/pod1/c", {"/k/pod1": THREE_V1, "/k/pod1/c": TWO_V1}, (2, "/pod1/c")),
    one("slurm", JOB, {"/slurm/uid_1000/job_7": FOUR_V1}, (4, "at /slurm/uid_1000/job_7")),
    one("empty-period", "/a", {"/a": "200000/"}, None),
    one("garbage-goes-upwards", "/p/c", {"/p/c": "?/100000", "/p": TWO_V1}, (2, "at /p")),
    Tree(
        "v1-cpu-alone",
        "3:cpuset:/\n2:cpuacct:/\n1:cpu:/a\n0::/\n",
        (v1("cpuset"), v1("cpuacct"), v1("cpu")),
        {f"{CG}/cpu/a": TWO_V1, f"{CG}/cpuset/a": ONE_V1, f"{CG}/cpuacct/a": ONE_V1},
        (2, "at /a"),
    ),
    Tree(
        "v1-cpuacct-before-cpu",
        "4:cpuacct,cpu:/a\n",
        (v1("cpuacct,cpu"),),
        {f"{CG}/cpuacct,cpu/a": TWO_V1},
        (2, "at /a"),
    ),
    Tree(
        "v1-cpuset-and-cpuacct-are-not-cpu",
        "3:cpuset:/a\n2:cpuacct:/a\n",
        (v1("cpuset"), v1("cpuacct")),
        {f"{CG}/cpuset/a": ONE_V1, f"{CG}/cpuacct/a": ONE_V1},
        None,
    ),
    Tree(
        "v1-cpu-and-cpuset-in-different-places",
        "3:cpuset:/other\n1:cpu:/a\n",
        (v1("cpuset"), v1("cpu")),
        {f"{CG}/cpu/a": TWO_V1, f"{CG}/cpu/other": ONE_V1},
        (2, "at /a"),
    ),
    Tree(
        "hybrid-v1-rules",
        "1:cpu,cpuacct:/a\n0::/a\n",
        (v1(), v2(UNIFIED)),
        {f"{V1_CPU}/a": THREE_V1, f"{UNIFIED}/a": ONE},
        (3, "cgroup v1 cpu.cfs_quota_us 300000/100000 at /a"),
    ),
    Tree(
        "hybrid-v1-rules-without-a-quota",
        "1:cpu,cpuacct:/a\n0::/a\n",
        (v1(), v2(UNIFIED)),
        {f"{V1_CPU}/a": "-1/100000", f"{UNIFIED}/a": ONE},
        None,
    ),
    Tree(
        "hybrid-v1-rules-unmounted",
        "1:cpu,cpuacct:/a\n0::/a\n",
        (v2(UNIFIED),),
        {f"{UNIFIED}/a": ONE},
        None,
    ),
    Tree(
        "hybrid-cpu-is-in-v2",
        "3:cpuset:/a\n1:name=systemd:/a\n0::/a\n",
        (v1("cpuset"), v2(UNIFIED)),
        {f"{UNIFIED}/a": TWO},
        (2, "cgroup v2 cpu.max 200000/100000 at /a"),
    ),
    Tree(
        "hybrid-unified-line-first",
        "0::/a\n1:cpu:/a\n",
        (v1("cpu"), v2(UNIFIED)),
        {f"{CG}/cpu/a": TWO_V1, f"{UNIFIED}/a": ONE},
        (2, "at /a"),
    ),
    Tree(
        "v1-a-hierarchy-named-cpu-is-not-the-controller",
        "2:name=cpu:/a\n0::/a\n",
        (v1("name=cpu", point="/named"), v2(UNIFIED)),
        {"/named/a": ONE_V1, f"{UNIFIED}/a": TWO},
        (2, "cgroup v2 cpu.max 200000/100000 at /a"),
    ),
    Tree("cgroup-file-is-garbage", "banana\n::\n\n", (v2(),), {CG: TWO}, None),
    Tree("cgroup-file-is-empty", "", (v2(), v1()), {CG: TWO, V1_CPU: TWO_V1}, None),
]


def plant(root: Path, tree: Tree) -> None:
    """Write ``tree`` below ``root``; every cgroup also has shares and a weight, never a limit."""
    proc = root / "proc/self"
    proc.mkdir(parents=True)
    (proc / "cgroup").write_text(tree.cgroup)
    noise = ["22 1 8:1 / / rw - ext4 /dev/sda1 rw", f"31 23 0:28 / {CG} rw - tmpfs tmpfs rw"]
    (proc / "mountinfo").write_text("\n".join([*noise, *tree.mounts, ""]))
    for directory, text in tree.files.items():
        assignment = root / directory.lstrip("/")
        assignment.mkdir(parents=True, exist_ok=True)
        quota, slash, period = text.partition("/")
        names = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if slash else ("cpu.max",)
        for name, value in zip(names, (quota, period), strict=False):
            (assignment / name).write_text(value)
        (assignment / "cpu.shares").write_text("1024\n")
        (assignment / "cpu.weight").write_text("1\n")


def limit_of(root: Path, affinity: Set[int], machine_cpus: int) -> CpuLimit | None:
    """Return the limit of a process with an affinity mask, on a machine with so many CPUs."""
    with (
        mock.patch.object(cpu_limit, "allowed_cpus", return_value=frozenset(affinity)),
        mock.patch.object(cpu_limit, "_count_machine_cpus", return_value=machine_cpus),
    ):
        return read_cpu_limit(root)


@pytest.mark.parametrize("tree", TREES, ids=[tree.id for tree in TREES])
def test_limit_of_a_layout(tree: Tree, tmp_path: Path) -> None:
    plant(tmp_path, tree)
    limit = limit_of(tmp_path, set(range(64)), 64)
    if tree.expected is None:
        assert limit is None
    else:
        assert limit is not None
        assert (limit.cpus, limit.source[-len(tree.expected[1]) :]) == tree.expected


@pytest.mark.parametrize(
    ("quotas", "cpus"),
    [
        ({}, None),
        ({"/a": "max 100000"}, None),
        ({"/a/b": "25000 100000"}, 0.25),
        ({"/a": "350000 100000", "/a/b": "max 100000"}, 3.5),
        ({"/a": "50000 100000", "/a/b": "200000 100000"}, 0.5),
    ],
)
def test_what_the_tightest_quota_is_worth(tmp_path: Path, quotas: Files, cpus: float) -> None:
    plant(tmp_path, two("worth", "/a/b", quotas, None))
    assert quota_cpus(tmp_path) == cpus


def test_no_proc_is_no_limit(tmp_path: Path) -> None:
    assert limit_of(tmp_path, {0, 1}, 2) is None


@pytest.mark.parametrize(
    ("quota", "affinity", "machine_cpus", "expected"),
    [
        ("max", {0, 1, 2, 3}, 64, CpuLimit(4, "affinity mask 0-3 of 64 CPUs")),
        ("max", {0, 2, 3, 9}, 64, CpuLimit(4, "affinity mask 0,2-3,9 of 64 CPUs")),
        ("max", {5}, 64, CpuLimit(1, "affinity mask 5 of 64 CPUs")),
        ("max", set(range(64)), 64, None),
        ("200000", {0, 1, 2, 3}, 64, CpuLimit(2, "cgroup v2 cpu.max 200000/100000 at /a")),
        ("400000", {0, 1, 2, 3}, 64, CpuLimit(4, "cgroup v2 cpu.max 400000/100000 at /a")),
        ("800000", {0, 1, 2, 3}, 64, CpuLimit(4, "affinity mask 0-3 of 64 CPUs")),
        (
            "800000",
            {0, 1},
            2,
            CpuLimit(2, "cgroup v2 cpu.max 800000/100000 at /a, more than the 2 CPUs here"),
        ),
    ],
)
def test_quota_and_affinity(
    quota: str, affinity: Set[int], machine_cpus: int, expected: CpuLimit | None, tmp_path: Path
) -> None:
    plant(tmp_path, Tree("", "0::/a\n", (v2(),), {f"{CG}/a": f"{quota} 100000"}, None))
    assert limit_of(tmp_path, affinity, machine_cpus) == expected


def test_machine_cpus_come_from_sysfs(tmp_path: Path) -> None:
    (tmp_path / "sys/devices/system/cpu").mkdir(parents=True)
    (tmp_path / "sys/devices/system/cpu/online").write_text("0-7\n")
    with mock.patch.object(cpu_limit, "allowed_cpus", return_value={0, 1}):
        limit = read_cpu_limit(tmp_path)
    assert limit == CpuLimit(2, "affinity mask 0-1 of 8 CPUs")


def test_undecodable_cgroup_name(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_bytes(b"0::/\xff\n")
    (tmp_path / "proc/self/mountinfo").write_text(v2())
    assignment = tmp_path / "sys/fs/cgroup" / os.fsdecode(b"\xff")
    assignment.mkdir(parents=True)
    (assignment / "cpu.max").write_text("200000 100000")
    limit = limit_of(tmp_path, set(range(8)), 8)
    assert limit == CpuLimit(2, r"cgroup v2 cpu.max 200000/100000 at /\xff")


def test_unreadable_file_is_no_limit_at_that_level(tmp_path: Path) -> None:
    plant(tmp_path, Tree("", "0::/p/c\n", (v2(),), {f"{CG}/p": "200000 100000"}, None))
    (tmp_path / "sys/fs/cgroup/p/c/cpu.max").mkdir(parents=True)
    limit = limit_of(tmp_path, set(range(8)), 8)
    assert limit is not None
    assert limit.source.endswith("at /p")


def test_this_process_may_use_the_cpus_of_its_affinity_mask() -> None:
    mask = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(mask)})
    try:
        assert allowed_cpus() == {min(mask)}
    finally:
        os.sched_setaffinity(0, mask)


@given(st.frozensets(st.integers(0, 300)))
def test_cpu_lists_round_trip(cpus: frozenset[int]) -> None:
    assert parse_cpus(format_cpus(cpus) + "\n") == cpus


@pytest.mark.parametrize("text", ["a", "-1", "1-2-3", "max"])
def test_bad_cpu_list(text: str) -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        parse_cpus(text)
