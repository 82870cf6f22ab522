"""Whether the kernel's OOM killer has struck in this process's memory cgroup."""

import re
from pathlib import Path

from .cgroups import own_directory

_OOM_KILL = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


class OomWatch:
    """Counts the OOM kills of this process's cgroup, in which the workers are too.

    Read from ``memory.oom_control`` (v1) or ``memory.events`` (v2).
    """

    def __init__(self, root: Path = Path("/")) -> None:
        directory = own_directory(root, "memory")
        self._files: list[Path] = []
        if directory is not None:
            self._files = [directory / "memory.events", directory / "memory.oom_control"]
        self._known = self._read()
        """Its kills that were recognised, or are of earlier rounds."""

    def begin(self) -> None:
        """A round begins: what the OOM killer did before is not of this round."""
        self._known = self._read()

    def has_struck(self) -> bool:
        """Return whether it has killed one process more than those that were recognised.

        It may have killed several at once, and each of them is asked about.
        """
        is_one_more = self._read() > self._known
        self._known += is_one_more
        return is_one_more

    def _read(self) -> int:
        for path in self._files:
            try:
                match = _OOM_KILL.search(path.read_text(encoding="ascii"))
            except (OSError, ValueError):
                continue
            if match is not None:
                return int(match[1])
        return 0
