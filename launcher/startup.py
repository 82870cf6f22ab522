"""The first steps of every ft-run process, and the start of its event loop."""

import gc
import os
import signal
import sys
from collections.abc import Coroutine, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


def run(main: Coroutine[object, object, T]) -> T:
    """Run a coroutine that handles signals, like ``asyncio.run``.

    Before removing the signal handlers, ``asyncio`` closes the socket by which signals wake its
    loop. A signal in between (e.g. SIGCHLD of a killed spawner) would print "Exception ignored when
    trying to write to the signal wakeup fd". Therefore the wake-up is disabled after the coroutine.
    """
    import asyncio  # already loaded without ssl

    async def quietly() -> T:
        try:
            return await main
        finally:
            signal.set_wakeup_fd(-1)

    return asyncio.run(quietly())


@contextmanager
def loading() -> Iterator[None]:
    """Disable garbage collection while modules are loaded, and exempt them from later ones."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def import_asyncio() -> None:
    """Import asyncio as in a Python without ssl: there is no TLS here, and OpenSSL loads slowly."""
    if "ssl" in sys.modules:
        return
    sys.modules["ssl"] = None  # type: ignore[assignment]  # its import then fails
    try:
        import asyncio  # noqa: F401 - it is to be loaded, without ssl
    finally:
        del sys.modules["ssl"]


def unblock(signals: Iterable[signal.Signals]) -> None:
    """Unblock signals that the parent process blocked; call this after setting their handlers.

    Workers inherit the mask of the parent process, as from torchrun.
    """
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)


def quiet_grpc() -> None:
    """Prevent gRPC, which reads this when it is loaded, from printing its own lines.

    ft-run reports the same. Workers do not get the variable: their environment is copied earlier.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def forget_token() -> None:
    """Remove the job's secret from the environment, so workers and helpers do not inherit it."""
    from ..rendezvous.trust.source import TOKEN_VARIABLE

    os.environ.pop(TOKEN_VARIABLE, None)


def open_standard_streams() -> None:
    """Open descriptors 0, 1 and 2 if they are closed: otherwise a file would get their number."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)
