"""Time-outs for storage that hangs: they start again whenever it makes progress."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..worker.log import log

_FIRST_LINE_S, _LINE_EVERY_S = 30.0, 60.0
_POLL_S = 0.5


class StorageTimeoutError(Exception):
    """Raised when storage made no progress within the time-out."""


class StorageTimeout:
    """How long storage may go without progress."""

    def __init__(self, limit_s: float | None) -> None:
        """Set the limit; None: no limit."""
        self.limit_s = limit_s

    def wait(self, is_done: Callable[[float], bool], progress: Callable[[], int]) -> None:
        """Wait until an operation is done.

        Args:
            is_done: waits up to the given number of seconds and returns whether it is done.
            progress: returns a number that changes with each progress.

        Raises:
            StorageTimeoutError: no progress within the limit.
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
        """Start no thread yet.

        Args:
            timeout: of each operation.
        """
        self._timeout = timeout
        self._is_done = threading.Event()
        self._is_done.set()
        self._progress = 0

    @property
    def is_stuck(self) -> bool:
        """Whether an abandoned operation still runs."""
        return not self._is_done.is_set()

    def tick(self) -> None:
        """Count progress; operations call it."""
        self._progress += 1

    def run(self, action: Callable[[], object]) -> None:
        """Run an operation after an abandoned one has ended, and wait for it.

        Raises:
            StorageTimeoutError: no progress within the limit.
            Exception: what the operation raises.
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
    """Log periodically what is being waited for, while the ``with`` block runs.

    Args:
        what: is waited for.
        limit_s: the time-out of the storage; None: no limit.
        is_enabled: whether this process logs it.
    """
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
    """Return a duration for people, e.g. ``1 min 30 s``."""
    minutes, rest = divmod(round(seconds, 1 if seconds < 1 else None), 60)
    words = [f"{minutes:.0f} min"] if minutes else []
    return " ".join([*words, f"{rest:g} s"] if rest or not words else words)
