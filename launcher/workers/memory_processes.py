"""The processes that own the snapshot memory of a node's ranks in a round."""

import os
import select


class MemoryProcesses:
    """The first process that has requested the memory, by local rank, until it has exited."""

    def __init__(self) -> None:
        self._found: dict[int, tuple[int, int]] = {}
        """Process ID and pidfd, by local rank."""

    def may_use(self, local_rank: int, pid: int) -> bool:
        """Return whether a process may use the memory of a rank.

        Raises:
            OSError: If the process has exited, or no descriptor is available.
        """
        if local_rank in self._found and _has_exited(self._found[local_rank][1]):
            os.close(self._found.pop(local_rank)[1])
        if local_rank not in self._found:
            self._found[local_rank] = pid, os.pidfd_open(pid)
        return self._found[local_rank][0] == pid

    def clear(self) -> None:
        """Forget all processes: a round has ended."""
        for _, pidfd in self._found.values():
            os.close(pidfd)
        self._found.clear()


def _has_exited(pidfd: int) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))
