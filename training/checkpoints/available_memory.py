"""How much memory this process can still use before the OOM killer ends it."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def available(root: Path = Path("/")) -> int:
    """Return the bytes available on the machine and within the limits of its cgroups.

    Args:
        root: that contains ``proc`` and ``sys``.
    """
    found = [_number_after("MemAvailable:", root / "proc/meminfo", unit=1024)]
    for folder in _cgroups(root):
        for limit, usage, cache in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            with suppress(OSError, ValueError):  # no limit, or "max"
                most = int((folder / limit).read_text())
                used = int((folder / usage).read_text())
                kept = _number_after(cache, folder / "memory.stat", unit=1) or 0
                found.append(most - used + kept)
    return max(0, min((number for number in found if number is not None), default=1 << 62))


def _cgroups(root: Path) -> Iterator[Path]:
    """Yield the visible folders of this process's cgroup and its parents."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        top = root / "sys/fs/cgroup" / controllers
        parts = [part for part in path.split("/") if part]
        for count in range(len(parts), -1, -1):
            yield top.joinpath(*parts[:count])


def _number_after(word: str, path: Path, unit: int) -> int | None:
    with suppress(OSError, ValueError):
        for line in path.read_text().splitlines():
            first, *rest = line.split()
            if first == word:
                return int(rest[0]) * unit
    return None
