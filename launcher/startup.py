"""The first steps of every ft-run process, and how it runs its event loop."""

import gc
import os
import signal
import sys
from collections.abc import Coroutine, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


def run(main: Coroutine[object, object, T]) -> T:
    """Run a coroutine as ``asyncio.run`` does, for one that handles signals.

    ``asyncio`` closes the socket by which signals wake its loop before it removes the signal
    handlers. A signal in between (SIGCHLD of a spawner that was killed) would print "Exception
    ignored when trying to write to the signal wakeup fd". So the wake-up is switched off when the
    coroutine has ended.
    """
    import asyncio  # by now loaded without ssl

    async def quietly() -> T:
        try:
            return await main
        finally:
            signal.set_wakeup_fd(-1)

    return asyncio.run(quietly())


@contextmanager
def loading() -> Iterator[None]:
    """Switch garbage collection off while modules are loaded, and keep them out of later ones."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def import_asyncio() -> None:
    """Import asyncio as in a Python without ssl: no TLS here, and OpenSSL takes time to load."""
    if "ssl" in sys.modules:
        return
    sys.modules["ssl"] = None  # type: ignore[assignment]  # its import then fails
    try:
        import asyncio  # noqa: F401 - it is to be loaded, without ssl
    finally:
        del sys.modules["ssl"]


def unblock(signals: Iterable[signal.Signals]) -> None:
    """Receive signals that the parent process blocked; call this when their handlers are set.

    A signal mask is inherited. Workers get the mask of the parent process, as from torchrun.
    """
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)


def quiet_grpc() -> None:
    """Keep gRPC from writing lines of its own; it reads this when it is loaded.

    ft-run reports the same in its own lines. The variable does not reach workers: their
    environment is copied before.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def forget_token() -> None:
    """Take the job's secret out of the environment: workers and helpers do not inherit it."""
    from ..rendezvous.trust.source import TOKEN_VARIABLE

    os.environ.pop(TOKEN_VARIABLE, None)


def open_standard_streams() -> None:
    """Open descriptors 0, 1 and 2 where they are closed: else a file would get their number."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)
