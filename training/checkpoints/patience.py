"""How long is waited for a storage: as long as it gets on, and a time after that."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..worker.log import log

_FIRST_LINE_S, _LINE_EVERY_S = 30.0, 60.0
_LOOK_S = 0.5


class StorageHangsError(Exception):
    """Raised when a storage has not got on for too long; the text says so."""


class Patience:
    """How long a storage may take for one call."""

    def __init__(self, limit_s: float | None) -> None:
        """Wait for nothing yet.

        Args:
            limit_s: None: it may take for ever.
        """
        self.limit_s = limit_s

    def wait(self, is_over: Callable[[float], bool], progress: Callable[[], int]) -> None:
        """Wait until something is over.

        Args:
            is_over: returns whether it is, after so many seconds at most.
            progress: returns a number that changes when the storage has done something.

        Raises:
            StorageHangsError: it does nothing.
        """
        seen, since = progress(), time.monotonic()
        while not is_over(_LOOK_S):
            now, found = time.monotonic(), progress()
            if found != seen:
                seen, since = found, now
            elif self.limit_s is not None and now - since >= self.limit_s:
                raise StorageHangsError(f"no response from the storage for {span(self.limit_s)}")


class StorageThread:
    """Does what a storage is asked for, one thing at a time, in threads that can be left behind."""

    def __init__(self, patience: Patience) -> None:
        """Do nothing yet.

        Args:
            patience: how long each thing may take.
        """
        self._patience = patience
        self._is_done = threading.Event()
        self._is_done.set()
        self._progress = 0

    @property
    def is_stuck(self) -> bool:
        """Whether something was left behind, and is not done yet."""
        return not self._is_done.is_set()

    def tick(self) -> None:
        """Note that the storage has done something; from what is done."""
        self._progress += 1

    def do(self, action: Callable[[], object]) -> None:
        """Do something, when what was left behind is done, and wait.

        Raises:
            StorageHangsError: the storage does not answer.
            Exception: what the action raises.
        """
        self._wait()
        self._is_done = is_done = threading.Event()
        errors: list[Exception] = []

        def act() -> None:
            try:
                action()
            except Exception as error:  # of the caller
                errors.append(error)
            finally:
                is_done.set()

        threading.Thread(target=act, name="ft-run-storage", daemon=True).start()
        self._wait()
        if errors:
            raise errors[0]

    def _wait(self) -> None:
        self._patience.wait(self._is_done.wait, lambda: self._progress)


@contextmanager
def announced(what: str, limit_s: float | None, *, speaks: bool) -> Iterator[None]:
    """Say now and then what is waited for, and for how long.

    Args:
        what: is waited for.
        limit_s: how long the storage may take for one call.
        speaks: whether this process says it.
    """
    if not speaks:
        yield
        return
    is_over, begun = threading.Event(), time.monotonic()
    until = f", gives up after {span(limit_s)} without progress" if limit_s is not None else ""

    def announce() -> None:
        pause_s = _FIRST_LINE_S
        while not is_over.wait(pause_s):
            pause_s = _LINE_EVERY_S
            log(f"waiting for {what} ({span(time.monotonic() - begun)} so far{until})")

    thread = threading.Thread(target=announce, name="ft-run-waiting", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def span(seconds: float) -> str:
    """Return a time in words."""
    minutes, rest = divmod(round(seconds, 1 if seconds < 1 else None), 60)
    words = [f"{minutes:.0f} min"] if minutes else []
    return " ".join([*words, f"{rest:g} s"] if rest or not words else words)
