"""The position of this process in the cgroup hierarchies of its container, v1, v2 or both.

Formats: ``cgroups(7)`` and ``proc_pid_mountinfo(5)``.
"""

import re
from pathlib import Path
from typing import Final, NamedTuple

_OCTAL_ESCAPE: Final = re.compile(r"\\([0-7]{3})")

Parts = tuple[str, ...]
"""A cgroup path without ``.``, ``..`` and empty components; ``()`` is ``/``."""


class Mount(NamedTuple):
    """One mounted cgroup hierarchy: its part below ``root`` is visible at ``point``."""

    root: Parts
    point: Path

    def shows(self, path: Parts) -> bool:
        """Return whether a cgroup of the hierarchy is visible below the mount point."""
        return path[: len(self.root)] == self.root


def read_membership(root: Path, controller: str) -> tuple[bool, Parts] | None:
    """Return (is v1, path) of the cgroup of ``controller`` that contains this process.

    A v1 line with the exact controller takes precedence: on a hybrid machine the v2 hierarchy then
    lacks the controller. ``cpuset`` and ``cpuacct`` are not ``cpu``.
    """
    unified: Parts | None = None
    for line in read_text(root / "proc/self/cgroup").split("\n"):
        hierarchy, _, rest = line.partition(":")
        controllers, separator, path = rest.partition(":")
        if not separator:
            continue
        if controller in controllers.split(","):
            return True, split_path(path)
        if hierarchy == "0" and not controllers:
            unified = split_path(path)
    return None if unified is None else (False, unified)


def read_mounts(root: Path, controller: str, *, is_v1: bool) -> list[Mount]:
    """Return the mounts of the hierarchy that has ``controller``."""
    mounts: dict[str, Mount] = {}
    for line in read_text(root / "proc/self/mountinfo").split("\n"):
        # Optional fields end at a single dash; a mount point cannot have " - " (spaces are \040).
        before, _, after = line.partition(" - ")
        fields, described = before.split(" "), after.split(" ")
        if len(fields) < 6 or len(described) < 3:
            continue
        if is_v1:
            wanted = described[0] == "cgroup" and controller in described[2].split(",")
        else:
            wanted = described[0] == "cgroup2"
        if wanted:
            point = _unescape(fields[4])
            # The last mount on a point hides the earlier ones.
            mounts[point] = Mount(
                split_path(_unescape(fields[3])), root.joinpath(*split_path(point))
            )
    return list(mounts.values())


def own_directory(root: Path, controller: str) -> Path | None:
    """Return the directory of this process's own cgroup; None if it is not mounted."""
    membership = read_membership(root, controller)
    if membership is None:
        return None
    is_v1, path = membership
    for mount in read_mounts(root, controller, is_v1=is_v1):
        if mount.shows(path):
            return mount.point.joinpath(*path[len(mount.root) :])
    return None


def own_directories(root: Path, controller: str) -> tuple[Path, ...]:
    """Return this process's own cgroup and the directories above it; empty if it is not mounted."""
    own = own_directory(root, controller)
    return () if own is None else (own, *own.parents)


def split_path(path: str) -> Parts:
    """Split a path; ``..``, as seen from outside a cgroup namespace, never leads above the root."""
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            if parts:
                parts.pop()
        elif part not in ("", "."):
            parts.append(part)
    return tuple(parts)


def _unescape(field: str) -> str:
    r"""Undo the kernel's escapes in mountinfo: space, tab, newline and backslash as ``\ooo``.

    ``/proc/self/cgroup`` is not escaped: it contains systemd's ``\x2d`` unchanged, mountinfo
    contains ``\134x2d``.
    """
    return _OCTAL_ESCAPE.sub(lambda match: chr(int(match[1], 8)), field)


def read_text(path: Path) -> str:
    """Return the content of a file; empty if it cannot be read, which means no limit."""
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except (OSError, ValueError):  # ValueError: a NUL in a path of a garbled mountinfo
        return ""
