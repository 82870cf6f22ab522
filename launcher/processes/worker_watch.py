"""What the agent holds of a worker that is watched: its page and the file for its stacks."""

import mmap
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from ...training.worker import hook
from ...values import dataclass

_STARTER = str(Path(hook.__file__).parent / "starter")


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a worker is."""

    pid: int
    """Its process, which need not be the one that was started (``--no-python``)."""
    steps: int
    """The steps that it has done, or the number that it has said."""
    ticks: int
    """How often it has shown progress."""
    last_s: float | None
    """When it did last, by the clock of ``time.monotonic``; None: not yet."""
    longest_s: float
    """The longest time between two times."""
    furthest: int = -1
    """The highest number of steps that it has said; -1: it says none."""
    steps_per_s: float = 0.0
    """How many it has done in a second of late, at its last sign of progress."""


class WorkerWatch:
    """The files that a worker shares with this process; ``close`` it."""

    def __init__(self) -> None:
        """Make the files.

        Raises:
            OSError: there is no descriptor or no memory for them.
        """
        self.page_fd = os.memfd_create("ft-run-page")
        try:
            os.ftruncate(self.page_fd, hook.PAGE_BYTES)
            self._memory = mmap.mmap(self.page_fd, hook.PAGE_BYTES)
            self.stacks_fd = os.memfd_create("ft-run-stacks")
        except OSError:
            os.close(self.page_fd)
            raise
        self._page = memoryview(self._memory).cast("Q")

    def progress(self) -> Progress | None:
        """Return how far the worker is; None: not watched, not yet or not any more."""
        if self.is_closed:
            return None
        page = self._page
        pid, last_ns = page[hook.PID], page[hook.LAST_NS]
        if not pid:
            return None
        steps, before_ns = page[hook.STEPS], page[hook.BEFORE_NS]
        # Another process writes meanwhile: a moment's nonsense is shown as 0.
        gained, took_s = steps - page[hook.BEFORE_STEPS], (last_ns - before_ns) / 1e9
        return Progress(
            pid,
            steps,
            page[hook.TICKS],
            last_ns / 1e9 if last_ns else None,
            page[hook.LONGEST_NS] / 1e9,
            page[hook.FURTHEST] - 1,
            max(0, gained) / took_s if before_ns and took_s > 0 else 0.0,
        )

    @property
    def stacks_fd_there(self) -> int:
        """The descriptor of the file for stacks in the worker; 0: not watched."""
        return self._page[hook.STACKS_FD]

    @property
    def is_closed(self) -> bool:
        """Whether the files are gone: so is the worker."""
        return self._memory.closed

    def close(self) -> None:
        """Let go of the files."""
        self._page.release()
        self._memory.close()
        os.close(self.page_fd)
        os.close(self.stacks_fd)


def starter_env(
    environ: Mapping[str, str], watched_by: Sequence[int] = (), captured_pid: int = 0
) -> dict[str, str]:
    """Return what has an executed Python install its hooks, on top of a worker's environment.

    Args:
        environ: of the worker.
        watched_by: its page and its file for stacks; empty: not watched.
        captured_pid: the process whose exception is written to its error file; 0: none.
    """
    path = environ.get("PYTHONPATH")
    page_fd, stacks_fd = watched_by or (-1, -1)
    # An empty one is as none for the interpreter, an empty entry in it is the current folder.
    return {
        "PYTHONPATH": f"{_STARTER}{os.pathsep}{path}" if path else _STARTER,
        "FT_RUN_HOOK": f"{page_fd}:{stacks_fd}:{int(path == '')}:{captured_pid}",
    }
