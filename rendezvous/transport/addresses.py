"""Addresses of master hosts: the last known ones are used while the DNS does not respond."""

import asyncio
import socket
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final

from ...tasks import in_daemon_thread
from ..protocol.endpoint import Endpoint

Address = tuple[int, Any]
"""Family and socket address."""

_LIMIT_S = 1.2
"""How long a look-up can delay a connection attempt."""
_KNOWN_LIMIT_S = 0.3
"""The same if an address is known: a candidate has one second for an election."""
_LEARN_AGAIN_S: Final = 60.0


class HostAddresses:
    """The addresses of hosts, by endpoint."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], list[Address]] = {}
        self._own: set[tuple[str, int]] = set()
        self._without_dns: set[tuple[str, int]] = set()
        """Endpoints with a known address whose last look-up failed."""

    def keep_own(self, endpoint: Endpoint, listens_at: str) -> None:
        """Record an endpoint of this process, bound to ``listens_at``: it needs no DNS."""
        is_any = listens_at in ("::", "0.0.0.0")  # noqa: S104 - a comparison
        host = "127.0.0.1" if is_any else listens_at
        self._own.add(_key(endpoint))
        self._known[_key(endpoint)] = _resolve(host, endpoint.port)

    async def look_up(self, endpoint: Endpoint) -> list[Address]:
        """Return the addresses of an endpoint, the last known ones if the DNS does not respond.

        Raises:
            OSError: If no thread can be started, and no address is known.
        """
        key = _key(endpoint)
        known = self._known.get(key, [])
        if key in self._own:
            return known
        try:
            # A name server that does not respond must not delay the end of the process.
            looking = in_daemon_thread(lambda: _resolve(*key))
            looking.add_done_callback(lambda done: self._take(key, done))
            limit_s = _KNOWN_LIMIT_S if known else _LIMIT_S
            found = await asyncio.wait_for(asyncio.shield(looking), limit_s)
        except asyncio.TimeoutError:
            found = []
        except OSError:
            if not known:
                raise
            found = []
        if known and not found:
            self._without_dns.add(key)
        return found or known

    def _take(self, key: tuple[str, int], done: "asyncio.Future[list[Address]]") -> None:
        """Keep the result of a look-up, even if it was too late for the attempt."""
        if not done.cancelled() and done.exception() is None and done.result():
            self._known[key] = done.result()
            self._without_dns.discard(key)

    def target(self, endpoint: Endpoint) -> Endpoint:
        """Return where to connect: the endpoint's name, or an address if the DNS is down."""
        key = _key(endpoint)
        if key not in self._own and key not in self._without_dns:
            return endpoint
        host = self._known[key][0][1][0]
        return Endpoint(str(host), endpoint.port)

    async def learn(self, endpoints: Iterable[Endpoint]) -> None:
        """Look up endpoints until an address of each is known."""
        missing = list(endpoints)
        while missing:
            for endpoint in missing:
                with suppress(OSError):
                    await self.look_up(endpoint)
            missing = [endpoint for endpoint in missing if _key(endpoint) not in self._known]
            if missing:  # e.g. a pod that has not started
                await asyncio.sleep(_LEARN_AGAIN_S)


HOSTS: Final = HostAddresses()
"""The addresses that this process knows."""


def _key(endpoint: Endpoint) -> tuple[str, int]:
    return endpoint.host, endpoint.port


def _resolve(host: str, port: int) -> list[Address]:
    with suppress(OSError, UnicodeError):
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return [(int(info[0]), info[4]) for info in infos]
    return []
