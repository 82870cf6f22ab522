"""Detects kills of the kernel's OOM killer in this process's memory cgroup."""

import re
from pathlib import Path

from .cgroups import own_directory

_OOM_KILL = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


class OomWatch:
    """Counts the OOM kills of this process's cgroup (v1 or v2), which contains the workers too."""

    def __init__(self, root: Path = Path("/")) -> None:
        directory = own_directory(root, "memory")
        self._files: list[Path] = []
        if directory is not None:
            self._files = [directory / "memory.events", directory / "memory.oom_control"]
        self._known = self._read()
        """Kills already reported, and kills of earlier rounds."""

    def begin(self) -> None:
        """Ignore earlier kills, because a round starts."""
        self._known = self._read()

    def has_struck(self) -> bool:
        """Return whether there is an unreported kill, and count one kill as reported.

        There may be several kills; call it once for each killed worker.
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
