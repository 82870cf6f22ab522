"""The first steps of every ft-run process, and the start of its event loop."""

import asyncio
import os
import signal
from collections.abc import Coroutine, Iterable
from typing import TypeVar

from ..rendezvous.trust.source import TOKEN_VARIABLE

T = TypeVar("T")


def run(main: Coroutine[object, object, T]) -> T:
    """Run a coroutine that handles signals, like ``asyncio.run``.

    Before removing the signal handlers, ``asyncio`` closes the socket by which signals wake its
    loop. A signal in between (e.g. SIGCHLD of a killed spawner) would print "Exception ignored when
    trying to write to the signal wakeup fd". Therefore the wake-up is disabled after the coroutine.
    """

    async def quietly() -> T:
        try:
            return await main
        finally:
            signal.set_wakeup_fd(-1)

    return asyncio.run(quietly())


def unblock(signals: Iterable[signal.Signals]) -> None:
    """Unblock signals that the parent process blocked; call this after setting their handlers.

    Workers still get the signal mask of the parent process, as from torchrun.
    """
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)


def quiet_grpc() -> None:
    """Prevent gRPC, which reads this when it is loaded, from printing its own lines.

    ft-run reports the same. Workers do not get the variable: their environment is copied earlier.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def forget_token() -> None:
    """Remove the job's secret from the environment, so workers and helpers do not inherit it."""
    os.environ.pop(TOKEN_VARIABLE, None)


def open_standard_streams() -> None:
    """Open descriptors 0, 1 and 2 if they are closed: otherwise a file would get their number."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)
