"""How much memory is available, as the kernel shows it."""

from pathlib import Path

import pytest
from ft_run.training.checkpoints import memory_files

GB = 1 << 30


def machine(root: Path, cgroup: str, files: dict[str, str]) -> Path:
    """Write what the kernel would show; 8 GB are available on the machine."""
    meminfo = f"MemTotal: {16 * GB // 1024} kB\nMemAvailable: {8 * GB // 1024} kB\n"
    shown = {"proc/meminfo": meminfo, "proc/self/cgroup": cgroup}
    for name, text in (shown | files).items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


V1 = "4:cpu,cpuacct:/\n3:memory:/docker/1\n"


@pytest.mark.parametrize(
    ("cgroup", "limits", "expected"),
    [
        ("0::/\n", {}, 8),
        ("0::/\n", {"memory.max": 4, "memory.current": 3}, 1),
        ("0::/\n", {"memory.max": 4, "memory.current": 5}, 0),
        ("0::/\n", {"memory.max": 4, "memory.current": 3, "memory.stat": 2}, 3),
        ("0::/a/b\n", {"a/memory.max": 4, "a/memory.current": 2}, 2),
        ("0::/a/b\n", {"a/b/memory.max": 40, "a/b/memory.current": 2}, 8),
        ("0::/\n", {"memory.max": "max", "memory.current": 3}, 8),
        (V1, {"memory/memory.limit_in_bytes": 5, "memory/memory.usage_in_bytes": 2}, 3),
    ],
)
def test_the_least_of_machine_and_cgroups(
    tmp_path: Path, cgroup: str, limits: dict[str, "int | str"], expected: int
) -> None:
    files = {}
    for name, value in limits.items():
        text = value if isinstance(value, str) else str(value * GB)
        stat = f"anon 1\ninactive_file {text}\n"
        files[f"sys/fs/cgroup/{name}"] = stat if name.endswith("stat") else text
    assert memory_files.available(machine(tmp_path, cgroup, files)) == expected * GB


def test_what_is_not_shown_limits_nothing(tmp_path: Path) -> None:
    assert memory_files.available(tmp_path) == 1 << 62
    assert 0 < memory_files.available() < 1 << 50
