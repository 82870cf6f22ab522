"""How long processes that were sent SIGKILL are waited for."""

from collections.abc import Iterable

from .tree import processor_ticks

SURVIVES_KILL_S = 10.0
"""A process that SIGKILL has not ended after this long, and that does nothing meanwhile, is in
uninterruptible sleep."""
DEVICES_SURVIVE_KILL_S = 120.0
"""The same where it may have memory that is pinned for a GPU: the driver gives that back page by
page, which takes 26 s for 243 GB."""
ENDS_WITHIN_S = 600.0
"""What is not done by then never will be."""


class Dying:
    """Processes that were sent SIGKILL.

    What the kernel does to give back the memory of a process counts as processor time of that
    process. The memory itself is shown no longer: ``VmRSS`` is gone as soon as this begins.
    """

    def __init__(self, pids: Iterable[int], now: float, *, have_devices: bool) -> None:
        """Look at the processes; ``go_on`` is asked every ``SURVIVES_KILL_S``.

        Args:
            pids: of the processes.
            now: when they were killed, in seconds.
            have_devices: whether they may have used GPUs.
        """
        self._begun, self.looks = now, 0
        self._least_s = DEVICES_SURVIVE_KILL_S if have_devices else SURVIVES_KILL_S
        self._ticks = {pid: processor_ticks(pid) for pid in pids}

    def go_on(self, pids: Iterable[int], now: float) -> bool:
        """Return whether those that are left are to be waited for.

        Args:
            pids: of the processes that are left.
            now: in seconds.
        """
        self.looks += 1
        before, self._ticks = self._ticks, {pid: processor_ticks(pid) for pid in pids}
        works = any(ticks > before.get(pid, 0) for pid, ticks in self._ticks.items())
        waited_s = now - self._begun
        return waited_s < self._least_s or (works and waited_s < ENDS_WITHIN_S)
