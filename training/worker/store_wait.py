"""Makes torch wait until its store listens."""

from __future__ import annotations

import os
import socket
import sys
import time
from typing import Any

from .patching import take_name

RENDEZVOUS = "torch.distributed.rendezvous"
_STORE_WAIT_S = 60.0
"""Maximum wait for torch's store; after that, torch connects as usual."""


def await_store() -> None:
    """If torch is loaded, make ranks wait until its store listens before they connect.

    All ranks start simultaneously, and one of them hosts the store. A connection that is too early
    is refused, and torch retries after 0.25 to 0.75 s: longer than the rest of a restart with a
    fork server.
    """
    if (rendezvous := sys.modules.get(RENDEZVOUS)) is not None:
        await_before_connecting(rendezvous)


def await_before_connecting(rendezvous: Any) -> None:
    """Make ranks wait, by a patch of ``torch.distributed.rendezvous``."""
    create = getattr(rendezvous, "_create_c10d_store", None)
    if create is None:
        return

    def create_store(*arguments: Any, **named: Any) -> Any:
        try:
            host, port, rank, ranks, timeout = arguments[:5]
            if rank or _is_separate(host, port):
                _await(host, port, ranks, min(_STORE_WAIT_S, timeout.total_seconds() / 4))
        except Exception:  # noqa: S110 - torch reports errors in its arguments and the address
            pass
        return create(*arguments, **named)

    take_name(create_store, create)
    rendezvous._create_c10d_store = create_store


def _is_separate(host: str, port: int) -> bool:
    """Return whether an address is that of ``--store separate``, not of the script's own store."""
    served = {"TORCHELASTIC_USE_AGENT_STORE": "True", "MASTER_ADDR": host, "MASTER_PORT": str(port)}
    return all(os.environ.get(name) == value for name, value in served.items())


def _await(host: str, port: int, ranks: int, limit_s: float) -> None:
    """Wait until an address accepts connections, up to a limit.

    All ranks of the job together try at most 10,000 times per second. The store ignores a
    connection that is closed without data.

    Raises:
        OSError: If the connection failed, except by being refused.
    """
    deadline = time.monotonic() + limit_s
    shortest_s = pause_s = 0.002 + ranks / 10_000
    while (left_s := deadline - time.monotonic()) > 0 and not _listens(host, port, left_s):
        time.sleep(pause_s)
        pause_s = min(1.2 * pause_s, max(0.05, shortest_s))


def _listens(host: str, port: int, limit_s: float) -> bool:
    try:
        socket.create_connection((host, port), limit_s).close()
    except ConnectionRefusedError:
        return False
    return True
