"""Storage of checkpoints, each of which becomes visible as a whole or not at all.

Used by workers and by ft-run's saver; does not import torch.

In a directory, a checkpoint has a temporary name until it is complete and while it is removed.
Behind a URL (fsspec) there is no atomic rename: a checkpoint is complete if it has the metadata
file, which is written last and removed first. If several nodes write one checkpoint, they
coordinate by markers next to it. Temporary names contain the tag of their job: another job removes
them only when they are old.
"""

import re
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import Any, BinaryIO

from ..worker.log import log

LATEST = "latest"
METADATA = ".metadata"
"""The metadata file of ``torch.distributed.checkpoint``."""
UNFINISHED = ".writing"
CORRUPT = ".corrupt"
"""Suffix of a damaged checkpoint; behind a URL, of its metadata file."""
OLD_S = 3600.0
"""Temporary files of other jobs are removed if they were not written to for this time."""
_MARKS = "marks"
NAME = re.compile(r"step-(\d{8,18})")
"""Name of a checkpoint; a longer number is not a step."""
_LEFTOVER = re.compile(
    r"\.step-(\d{8,18})(?:\.([\w-]+))?\.(?:writing|removing|marks)|\.latest(?:\.([\w-]+))?\.writing"
)

ReadPart = Callable[[int, int], BinaryIO]
"""Returns the part of a file from one offset to another, cut at the end of the file."""


class Storage(ABC):
    """The checkpoints of one job, in a directory that need not exist yet."""

    def __init__(self, root: str, tag: str) -> None:
        self._root, self._tag = root, tag

    def steps(self) -> list[int]:
        """Return the steps of all complete checkpoints."""
        return [step for step in self._begun() if self._is_complete(step)]

    def clean(self) -> None:
        """Remove leftovers of crashes; this job must not be writing."""
        for step in self._unfinished():
            self._discard(name_of(step), is_own=False)
        self._clean(None)

    @abstractmethod
    def corrupt(self) -> list[str]:
        """Return the paths of the checkpoints that were set aside."""

    @abstractmethod
    def set_aside(self, step: int) -> str:
        """Rename a damaged checkpoint so that it is not complete; return its new path."""

    @abstractmethod
    def read(self, step: int, name: str) -> bytes:
        """Return the content of a file of a checkpoint, or raise ``OSError``."""

    @abstractmethod
    def reading(self, step: int, name: str) -> AbstractContextManager[ReadPart]:
        """Return a context with a function that reads parts of a file, or raise ``OSError``."""

    @abstractmethod
    def path(self, step: int) -> str:
        """Return the path of the checkpoint of a step, which need not exist."""

    @abstractmethod
    def draft(self, step: int, attempt: str = "") -> str:
        """Return where to write a checkpoint before ``publish``.

        ``attempt`` distinguishes concurrent writers of this job: letters, digits and dashes.
        """

    def begin(self, draft: str) -> None:
        """Create an empty draft; an earlier one is removed."""
        self.abandon(draft)
        self._make(draft)

    @abstractmethod
    def put(self, draft: str, name: str, write: "Callable[[Any], object]") -> None:
        """Write a file of a checkpoint, durably; ``write(file)`` may be called more than once."""

    def publish(self, step: int, draft: str, keep: int) -> str:
        """Make a checkpoint visible and the latest; remove old ones, and leftovers up to it.

        Return why an old checkpoint could not be removed; empty if all were.
        """
        self._make_latest(step, draft)
        warning = self._retire_old(step, keep)
        self._clean(step)
        return warning

    def _retire_old(self, step: int, keep: int) -> str:
        others: list[int] = []
        why = self._try(self._root, lambda: others.extend(self.steps()))
        others = sorted(other for other in others if other < step)
        for old in others[: len(others) + 1 - keep]:
            found = self._try(self.path(old), partial(self._retire, old))
            why = why or found
        return why

    @staticmethod
    def _try(at: str, action: Callable[[], object]) -> str:
        try:
            action()
        except Exception as error:  # any exception of an fsspec file system
            return f"{at}: {one_line(error)}"
        return ""

    def abandon(self, draft: str) -> None:
        """Remove a draft."""
        self._remove(draft)

    def mark(self, step: int, attempt: str, name: str, data: bytes) -> None:
        """Write a marker for the other writers; it is durable when this returns."""
        folder = self._marks(step, attempt)
        self._make(folder)
        self.put(folder, name, of_bytes(data))

    def marks(self, step: int, attempt: str) -> list[str]:
        """Return the names of all markers of an attempt."""
        names = self._names(self._marks(step, attempt))
        return [name for name in names if not name.startswith(".")]

    @abstractmethod
    def read_mark(self, step: int, attempt: str, name: str) -> bytes:
        """Return the content of a marker; it can be truncated while it is being written."""

    def unmark(self, step: int, attempt: str) -> None:
        """Remove all markers of an attempt."""
        self._remove(self._marks(step, attempt))

    def _begun(self) -> list[int]:
        matches = (NAME.fullmatch(name) for name in self._names(self._root))
        return [int(match[1]) for match in matches if match]

    def _clean(self, until: int | None) -> None:
        """Remove the leftovers of steps up to ``until``; of all steps if it is None."""
        with suppress(Exception):  # the checkpoint is complete, and the next one tries again
            for name in self._names(self._root):
                match = _LEFTOVER.fullmatch(name)
                if match is not None and (until is None or int(match[1] or 0) <= until):
                    is_own = bool(self._tag) and (match[2] or match[3] or "").startswith(self._tag)
                    self._discard(name, is_own=is_own)

    def _discard(self, name: str, *, is_own: bool) -> None:
        """Remove a leftover of this job, or one that was not written to for a long time."""
        with suppress(Exception):  # read-only storage
            at = f"{self._root}/{name}"
            if is_own or time.time() - self._written_at(at) > OLD_S:
                self._delete(at)

    def _marks(self, step: int, attempt: str) -> str:
        return self._hidden(step, attempt, _MARKS)

    def _hidden(self, step: int, attempt: str, what: str) -> str:
        name = "-".join(filter(None, (self._tag, attempt)))
        return f"{self._root}/{'.'.join(filter(None, (f'.{name_of(step)}', name, what)))}"

    @abstractmethod
    def _make(self, folder: str) -> None:
        """Create a directory and its parents, unless they exist."""

    @abstractmethod
    def _is_complete(self, step: int) -> bool:
        """Return whether a checkpoint that was started has all its files."""

    def _unfinished(self) -> list[int]:
        """Return the steps of unfinished checkpoints that already have their final names."""
        return []

    @abstractmethod
    def _written_at(self, at: str) -> float:
        """Return when a directory, or a file in it, was last written (seconds since the epoch)."""

    @abstractmethod
    def _make_latest(self, step: int, draft: str) -> None:
        """Make a checkpoint visible and the latest."""

    @abstractmethod
    def _retire(self, step: int) -> None:
        """Remove a visible checkpoint."""

    @abstractmethod
    def _names(self, at: str) -> Sequence[str]:
        """Return the names in a directory; empty if it does not exist."""

    @abstractmethod
    def _delete(self, at: str) -> None:
        """Remove a directory or file, in one attempt."""

    def _remove(self, at: str) -> None:
        with suppress(FileNotFoundError):
            self._delete(at)


def file_of(rank: int) -> str:
    """Return DCP's name for the file of a rank."""
    return f"__{rank}_0.distcp"


def of_bytes(data: bytes) -> "Callable[[Any], object]":
    """Return a function that writes bytes to a file."""
    return lambda file: file.write(data)


def one_line(error: BaseException) -> str:
    """Return an error in one line."""
    lines = filter(None, map(str.strip, str(error).splitlines()))
    return next(lines, type(error).__name__)


def name_of(step: int) -> str:
    """Return the name of the checkpoint of a step."""
    return f"step-{step:08}"


# --- time-outs -----------------------------------------------------------------------------------

_FIRST_LINE_S, _LINE_EVERY_S = 30.0, 60.0
_POLL_S = 0.5


class StorageTimeoutError(Exception):
    """Raised if storage made no progress within the time-out."""


class StorageTimeout:
    """Limit for the time without progress of the storage; None for no limit."""

    def __init__(self, limit_s: float | None) -> None:
        self.limit_s = limit_s

    def wait(self, is_done: Callable[[float], bool], progress: Callable[[], int]) -> None:
        """Wait until an operation is done.

        ``is_done`` waits up to the given number of seconds; ``progress`` changes with each
        progress.

        Raises:
            StorageTimeoutError: If there was no progress within the limit.
        """
        seen, since = progress(), time.monotonic()
        while not is_done(_POLL_S):
            now, found = time.monotonic(), progress()
            if found != seen:
                seen, since = found, now
            elif self.limit_s is not None and now - since >= self.limit_s:
                raise StorageTimeoutError(
                    f"no response from the storage for {format_duration(self.limit_s)}"
                )


class StorageThread:
    """Runs storage operations one after the other, in daemon threads that can be abandoned."""

    def __init__(self, timeout: StorageTimeout) -> None:
        self._timeout = timeout
        self._is_done = threading.Event()
        self._is_done.set()
        self._progress = 0

    @property
    def is_stuck(self) -> bool:
        """Whether an abandoned operation is still running."""
        return not self._is_done.is_set()

    def tick(self) -> None:
        """Count progress; operations call it."""
        self._progress += 1

    def run(self, action: Callable[[], object]) -> None:
        """Run an operation after an abandoned one has ended; wait for its end or exception.

        Raises:
            StorageTimeoutError: If there was no progress within the limit.
        """
        self._wait()
        self._is_done = is_done = threading.Event()
        errors: list[Exception] = []

        def act() -> None:
            try:
                action()
            except Exception as error:  # raised in the caller below
                errors.append(error)
            finally:
                is_done.set()

        threading.Thread(target=act, name="ft-run-storage", daemon=True).start()
        self._wait()
        if errors:
            raise errors[0]

    def _wait(self) -> None:
        self._timeout.wait(self._is_done.wait, lambda: self._progress)


@contextmanager
def log_while_waiting(what: str, limit_s: float | None, *, is_enabled: bool) -> Iterator[None]:
    """Log periodically that this process waits for ``what``, while the ``with`` block runs."""
    if not is_enabled:
        yield
        return
    is_over, started = threading.Event(), time.monotonic()
    limit = (
        "" if limit_s is None else f", gives up after {format_duration(limit_s)} without progress"
    )

    def announce() -> None:
        pause_s = _FIRST_LINE_S
        while not is_over.wait(pause_s):
            pause_s = _LINE_EVERY_S
            log(f"waiting for {what} ({format_duration(time.monotonic() - started)} so far{limit})")

    thread = threading.Thread(target=announce, name="ft-run-waiting", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def format_duration(seconds: float) -> str:
    """Return a duration for display, e.g. ``1 min 30 s``."""
    minutes, rest = divmod(round(seconds, 1 if seconds < 1 else None), 60)
    words = [f"{minutes:.0f} min"] if minutes else []
    return " ".join([*words, f"{rest:g} s"] if rest or not words else words)
