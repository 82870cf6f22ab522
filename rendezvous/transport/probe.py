"""Probes whether a process listens at an endpoint, by a plain TCP connection.

It costs a tenth of the CPU time of a gRPC channel, and a node may search its master for minutes.
"""

import asyncio
import errno
import os
import socket
from typing import Any

from ..protocol.endpoint import Endpoint
from .addresses import HOSTS

_LIMIT_S = 1.2
"""After 1 s, the kernel sends a second SYN, to which a host that has just returned responds."""


async def why_unreachable(endpoint: Endpoint) -> str | None:
    """Return why no address of an endpoint can be reached; None if one accepts a connection."""
    tasks: list[asyncio.Task[str | None]] = []
    reasons = []
    try:
        try:
            addresses = await HOSTS.look_up(endpoint)
        except OSError:  # no thread can be started: gRPC has its own, and will try
            return None
        tasks = [asyncio.create_task(_connect(*one)) for one in addresses]
        for next_one in asyncio.as_completed(tasks, timeout=_LIMIT_S):
            if (reason := await next_one) is None:
                return None
            reasons.append(reason)
    except asyncio.TimeoutError:
        reasons.append("timed out")
    except OSError as error:
        reasons.append(error.strerror or str(error))
    finally:
        for task in tasks:
            task.cancel()
    # The same reason each time: a node logs each change of it.
    return min(reasons, default="DNS resolution failed")


async def _connect(family: int, address: Any) -> str | None:
    """Return the kernel's error for a connection to an address; None if it is accepted."""
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)
            await asyncio.get_running_loop().sock_connect(probe, address)
    except OSError as error:
        is_late = error.errno == errno.ETIMEDOUT
        return "timed out" if is_late else os.strerror(error.errno or errno.EIO)
    return None
