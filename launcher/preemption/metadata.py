"""Queries a cloud's metadata service: HTTP to a host-local address, bounded in size and time."""

import asyncio
import http.client
from collections.abc import Mapping

from msgspec import Struct

from ...tasks import in_daemon_thread

ANSWER_S = 5.0
BODY_MAX = 256 * 1024
"""A scheduled event of each VM of a large set has about 300 bytes."""


class Reply(Struct, frozen=True):
    """A reply of the service."""

    status: int
    body: str
    headers: Mapping[str, str]
    """Values by lower-case name."""


class MetadataError(Exception):
    """Raised for a missing or invalid reply of the service; the message is for the user."""


class Service:
    """A metadata service."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port

    async def get(
        self,
        path: str,
        headers: Mapping[str, str],
        timeout_s: float = ANSWER_S,
        *,
        method: str = "GET",
    ) -> Reply:
        """Return the reply to a request; raises ``MetadataError`` if it is late or not HTTP."""
        reply = in_daemon_thread(lambda: self._reply(method, path, headers, timeout_s))
        try:
            return await asyncio.wait_for(reply, timeout_s)
        except (asyncio.TimeoutError, TimeoutError):
            why = f"no answer from {self._host} within {timeout_s:g} s"
        except http.client.HTTPException as error:
            why = f"{self._host} does not answer with HTTP ({type(error).__name__})"
        except OSError as error:
            why = f"{self._host}:{self._port}: {error.strerror or error}"
        raise MetadataError(why)

    def _reply(self, method: str, path: str, headers: Mapping[str, str], timeout_s: float) -> Reply:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=timeout_s)
        try:
            connection.request(method, path, headers=dict(headers))
            response = connection.getresponse()
            body = response.read(BODY_MAX)
            if response.length and len(body) < BODY_MAX:
                raise http.client.IncompleteRead(body, response.length)
            named = {name.lower(): value for name, value in response.getheaders()}
            return Reply(response.status, body.decode("utf-8", "replace"), named)
        finally:
            connection.close()
