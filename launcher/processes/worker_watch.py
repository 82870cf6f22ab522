"""The agent's side of a watched worker: the page that they share, and the worker's stacks."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ...training.worker import page_layout as layout
from ...training.worker import phases, recorders, starter
from .shared_memory import shared_file, shared_page

_STARTER = str(Path(starter.__file__).parent)


class Progress(NamedTuple):
    """The progress of a worker."""

    pid: int
    """The watched process, which need not be the one that was started (``--no-python``)."""
    steps: int
    """Number of steps done, or the number that the worker reported."""
    ticks: int
    """How often it has made progress."""
    last_s: float | None
    """The time of its last progress (``time.monotonic``); None before the first."""
    longest_s: float
    """The longest time between two consecutive times of progress."""
    furthest: int = -1
    """The highest reported step; -1 if the worker does not report steps."""
    steps_per_s: float = 0.0
    """The recent steps per second, as of its last progress."""
    first: int = -1
    """The first reported step; -1 if the worker does not report steps."""
    data_wait: float = 0.0
    """The recent share of time in which it waited for data, as of its last progress."""


class Loading(NamedTuple):
    """How a worker has waited for data while it trained."""

    batches: int
    wait_s: float
    """On a GPU, only while the GPU was idle."""
    first_wait_s: float
    """Part of ``wait_s`` for the first batches of iterators, e.g. of an epoch."""
    squares_s2: float
    """The sum of the squares of the other waits."""
    processes: int
    """``num_workers`` of the loader."""
    prefetch: int
    """``prefetch_factor`` of the loader; 0 if it has no workers."""


class Computing(NamedTuple):
    """What a worker has used for computing since its first step."""

    pid: int
    cpu_s: float
    """CPU time of all its threads, without its child processes."""
    seconds: float
    """Time in which it used that CPU time, up to a second ago."""
    uses_device: bool


class WorkerWatch:
    """The files that a worker shares with this process; ``OSError`` if they cannot be created."""

    def __init__(self) -> None:
        page_fd, self._memory = shared_page(layout.PAGE_FILE, layout.PAGE_BYTES)
        try:
            self._stacks_fd = shared_file(layout.STACKS_FILE)
        except OSError:
            self._memory.close()
            os.close(page_fd)
            raise
        self.fds = page_fd, self._stacks_fd
        """The descriptors of the page and of the file for stacks."""
        self._page = memoryview(self._memory).cast("Q")

    def clear_stacks(self) -> None:
        """Discard the stacks that were written; the next ones replace them."""
        os.lseek(self._stacks_fd, 0, os.SEEK_SET)  # both processes share the file position

    def stacks(self, max_bytes: int) -> str:
        """Return the stacks that have been written so far."""
        size = min(max_bytes, self._stacks_bytes)
        return os.pread(self._stacks_fd, size, 0).decode(errors="replace")

    @property
    def has_stacks(self) -> bool:
        """Return whether stacks, or a part of them, have been written."""
        return self._stacks_bytes > 0

    @property
    def _stacks_bytes(self) -> int:
        return os.lseek(self._stacks_fd, 0, os.SEEK_CUR)

    def progress(self) -> Progress | None:
        """Return the progress of the worker; None if it is not watched now."""
        if self.is_closed:
            return None
        page = self._page
        pid, last_ns = page[layout.PID], page[layout.LAST_NS]
        if not pid:
            return None
        steps, before_ns = page[layout.STEPS], page[layout.BEFORE_NS]
        # Another process writes concurrently: an inconsistent value is shown as 0.
        gained, took_s = steps - page[layout.BEFORE_STEPS], (last_ns - before_ns) / 1e9
        waited_s = (page[layout.WAIT_NS] - page[layout.BEFORE_WAIT_NS]) / 1e9
        has_rate = bool(before_ns) and took_s > 0
        return Progress(
            pid,
            steps,
            page[layout.TICKS],
            last_ns / 1e9 if last_ns else None,
            page[layout.LONGEST_NS] / 1e9,
            page[layout.FURTHEST] - 1,
            max(0, gained) / took_s if has_rate else 0.0,
            page[layout.FIRST] - 1,
            min(1.0, max(0.0, waited_s / took_s)) if has_rate else 0.0,
        )

    def phases(self, now_s: float) -> tuple[int, str, dict[str, float], float] | None:
        """Return process ID, current phase, seconds per phase, and idle training seconds.

        ``now_s`` is the time, or the time of its exit (``time.monotonic``). The last value is the
        training since its last progress. None if it is not watched now, or is changing the values
        at this moment.
        """
        if self.is_closed or not self._page[layout.PID]:
            return None
        found = phases.read(self._page, round(now_s * 1e9))
        return None if found is None else (self._page[layout.PID], *found)

    def computing(self) -> Computing | None:
        """Return what the worker has used for computing; None if it is not watched now."""
        if self.is_closed or not self._page[layout.PID]:
            return None
        page = self._page
        return Computing(
            page[layout.PID],
            page[layout.CPU_NS] / 1e9,
            page[layout.CPU_WALL_NS] / 1e9,
            bool(page[layout.USES_DEVICE]),
        )

    def loading(self) -> Loading | None:
        """Return how the worker has waited for data; None if it has not taken a batch."""
        if self.is_closed or not self._page[layout.BATCHES]:
            return None
        page = self._page
        return Loading(
            page[layout.BATCHES],
            page[layout.WAIT_NS] / 1e9,
            page[layout.FIRST_WAIT_NS] / 1e9,
            page[layout.SQUARES] / 1e12,
            page[layout.PROCESSES],
            page[layout.PREFETCH],
        )

    def imported(self) -> int:
        """Return what it had imported at its first step, as bits of ``training.worker.imported``.

        0 if none of these modules, or if there was no step yet.
        """
        return 0 if self.is_closed else self._page[layout.IMPORTED]

    def backends(self) -> tuple[str, ...]:
        """Return the backends of its process groups; empty if unknown."""
        return () if self.is_closed else recorders.read_backends(self._page)

    @property
    def trial(self) -> str:
        """The settings that the worker has on trial; empty if none."""
        if self.is_closed:
            return ""
        return layout.read_text(self._page, layout.TRIAL_AT, layout.TRIAL_BYTES)

    @property
    def page(self) -> memoryview | None:
        """The words of the page, for settings of the worker; None if it is closed."""
        return None if self.is_closed else self._page

    @property
    def stacks_fd_there(self) -> int:
        """Return the worker's descriptor of the file for stacks; 0 if it is not watched."""
        return self._page[layout.STACKS_FD]

    def trainjob(self) -> tuple[int, bool]:
        """Return the number of steps of the whole training, and whether the worker reports itself.

        The number is 0 if unknown. The report is that of its progress to Kubeflow's TrainJob.
        """
        if self.is_closed:
            return 0, True
        return self._page[layout.TOTAL], bool(self._page[layout.REPORTS_ITSELF])

    @property
    def is_closed(self) -> bool:
        """Return whether the file is closed, because the worker has ended."""
        return self._memory.closed

    def close(self) -> None:
        """Close the files."""
        self._page.release()
        self._memory.close()
        for fd in self.fds:
            os.close(fd)


def starter_env(
    environ: Mapping[str, str], shared: Sequence[int] = (), captured_pid: int = 0
) -> dict[str, str]:
    """Return the variables, on top of a worker's, that make an executed Python install its hooks.

    ``shared`` are the descriptors of its page and its file for stacks; empty if it is not watched.
    ``captured_pid`` is the process whose exception is captured in its error file; 0 if none.
    """
    path = environ.get("PYTHONPATH")
    page_fd, stacks_fd = shared or (-1, -1)
    # The interpreter ignores an empty variable, but an empty entry is the current directory.
    return {
        "PYTHONPATH": f"{_STARTER}{os.pathsep}{path}" if path else _STARTER,
        "FT_RUN_HOOK": f"{page_fd}:{stacks_fd}:{int(path == '')}:{captured_pid}",
    }
