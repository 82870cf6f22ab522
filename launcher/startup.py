"""What a process of ft-run does before anything else, and how it runs its event loop."""

import gc
import os
import signal
import sys
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


def run(main: Coroutine[object, object, T]) -> T:
    """Run a coroutine as ``asyncio.run`` does, for one that handles signals.

    ``asyncio`` closes the socket that signals wake its loop through before it takes the signal
    handlers away. A signal in between (SIGCHLD of a spawner that was killed) would print an
    "Exception ignored when trying to write to the signal wakeup fd", so none is written any
    more once the coroutine has ended.
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
    """Collect no garbage while modules are loaded: they stay, and no collection looks at them."""
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


def quiet_grpc() -> None:
    """Keep gRPC from writing lines of its own; it reads this when it is loaded.

    What it reports is reported better by ft-run. Workers get no variable by this: their
    environment is taken before.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def open_standard_streams() -> None:
    """Make sure that 0, 1 and 2 are open, or the next file would become a standard stream."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)
