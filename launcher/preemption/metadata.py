"""Queries a cloud's metadata service: HTTP to a host-local address, bounded in size and time."""

import asyncio
import http.client
import io
from collections.abc import Mapping
from typing import Any

from ...values import dataclass

ANSWER_S = 5.0
BODY_MAX = 256 * 1024
"""A scheduled event of each VM of a large set has some 300 bytes."""
_HEAD_MAX = 16 * 1024


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply of the service."""

    status: int
    body: str
    headers: Mapping[str, str]
    """By lower-case name."""


class MetadataError(Exception):
    """Raised for a missing or invalid reply of the service; the text is for the user."""


class Service:
    """A metadata service."""

    def __init__(self, host: str, port: int, name: str = "") -> None:
        """Create the service; this sends no request.

        Args:
            host: its address.
            port: its port.
            name: its name in requests; empty: the host.
        """
        self._host, self._port, self._name = host, port, name or host

    async def get(
        self, path: str, headers: Mapping[str, str], timeout_s: float = ANSWER_S
    ) -> Reply:
        """Return the reply to a GET; raises the errors of ``ask``."""
        return await self.ask("GET", path, headers, timeout_s)

    async def ask(
        self, method: str, path: str, headers: Mapping[str, str], timeout_s: float = ANSWER_S
    ) -> Reply:
        """Return the reply to a request.

        Raises:
            MetadataError: there is no reply in time, or it is not valid HTTP.
        """
        try:
            return await asyncio.wait_for(self._ask(method, path, headers), timeout_s)
        except asyncio.TimeoutError:
            raise MetadataError(f"no answer from {self._host} within {timeout_s:g} s") from None
        except OSError as error:
            why = error.strerror or str(error)
            raise MetadataError(f"{self._host}:{self._port}: {why}") from None
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError) as error:
            raise MetadataError(
                f"{self._host} does not answer with HTTP ({type(error).__name__})"
            ) from None
        except http.client.HTTPException as error:
            raise MetadataError(
                f"{self._host} does not answer with HTTP ({type(error).__name__})"
            ) from None

    async def _ask(self, method: str, path: str, headers: Mapping[str, str]) -> Reply:
        reader, writer = await asyncio.open_connection(self._host, self._port, limit=_HEAD_MAX)
        try:
            sent = {"Host": self._name, "Connection": "close", "Accept": "*/*", **headers}
            if method == "PUT":
                sent["Content-Length"] = "0"
            lines = "".join(f"{name}: {value}\r\n" for name, value in sent.items())
            writer.write(f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode("latin-1"))
            head = await reader.readuntil(b"\r\n\r\n")
            return _parsed(head + await _body(reader, head))
        finally:
            writer.transport.abort()


async def _body(reader: asyncio.StreamReader, head: bytes) -> bytes:
    length = next(
        (line[15:] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")),
        None,
    )
    if length is not None:
        return await reader.readexactly(min(int(length), BODY_MAX))
    body = b""
    while len(body) < BODY_MAX and (more := await reader.read(BODY_MAX - len(body))):
        body += more
    return body


class _Received:
    """Replaces a socket whose data was all read."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, *_: object) -> io.BytesIO:
        return io.BytesIO(self._data)


def _parsed(data: bytes) -> Reply:
    received: Any = _Received(data)
    response = http.client.HTTPResponse(received)
    response.begin()
    body = response.read(len(data)).decode("utf-8", "replace")
    return Reply(response.status, body, {k.lower(): v for k, v in response.getheaders()})
