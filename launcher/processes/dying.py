"""How long to wait for processes that were sent SIGKILL."""

from collections.abc import Iterable

from .tree import processor_ticks

SURVIVES_KILL_S = 10.0
"""A process that is alive this long after SIGKILL, without any progress, is in uninterruptible
sleep."""
DEVICES_SURVIVE_KILL_S = 120.0
"""The same for a process with memory pinned for a GPU: the driver unpins it page by page, which
takes 26 s for 243 GB."""
ENDS_WITHIN_S = 600.0
"""A process that is still alive after this time never exits."""


class Dying:
    """Processes that were sent SIGKILL. Call ``go_on`` every ``SURVIVES_KILL_S``.

    The kernel's work to release the memory of a process counts as CPU time of that process. The
    remaining memory is not visible: ``VmRSS`` disappears when the release starts.
    """

    def __init__(self, pids: Iterable[int], now: float, *, have_devices: bool) -> None:
        self._begun, self.looks = now, 0
        self._least_s = DEVICES_SURVIVE_KILL_S if have_devices else SURVIVES_KILL_S
        self._ticks = {pid: processor_ticks(pid) for pid in pids}

    def go_on(self, pids: Iterable[int], now: float) -> bool:
        """Return whether to wait longer for the remaining processes."""
        self.looks += 1
        before, self._ticks = self._ticks, {pid: processor_ticks(pid) for pid in pids}
        works = any(ticks > before.get(pid, 0) for pid, ticks in self._ticks.items())
        waited_s = now - self._begun
        return waited_s < self._least_s or (works and waited_s < ENDS_WITHIN_S)
