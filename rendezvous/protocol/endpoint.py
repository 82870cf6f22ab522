"""Addresses as users write them: ``host``, ``host:port``, ``[v6]:port``."""

import re
import socket
from typing import Final

from msgspec import Struct

from ... import defaults
from ...errors import UsageError

MAX_PORT: Final = 65535
RIGHT: Final = "HOST[:PORT], e.g. node0:29400 or [fd00::1]:29400"
"""Expected form of an endpoint, for error messages."""

_BRACKETED = re.compile(r"\[(?P<host>[^\[\]]*)\](?P<rest>.*)\Z", re.DOTALL)
_NAME = re.compile(r"[\w.-]+")
_PORT = re.compile(r"[0-9]{1,5}")
_SHOWN = 120


class Endpoint(Struct, frozen=True):
    """Where a master listens. ``host`` is a name or an address, IPv6 without brackets."""

    host: str
    port: int
    others: "tuple[Endpoint, ...]" = ()
    """The rest of the list, if several hosts can lead."""

    @classmethod
    def parse(cls, text: str, default_port: int = defaults.ENDPOINT_PORT) -> "Endpoint":
        """Parse ``host[:port]`` or ``[v6][:port]``; a bare IPv6 address has no port.

        A bare IPv6 address whose end can only be a port (``fd00::1:29400``: no group of an address
        has five digits) is parsed like in torchrun.

        Raises:
            UsageError: If the string is not an endpoint.
        """
        text = text.strip()
        bracketed = _BRACKETED.match(text)
        if bracketed is not None:
            host, rest = bracketed["host"], bracketed["rest"]
            colon, port = rest[:1], rest[1:]
            good = is_ipv6(host) and colon in ("", ":")
        elif is_ipv6(text):
            host, colon, port, good = text, "", "", True
        else:
            host, colon, port = text.rpartition(":") if ":" in text else (text, "", "")
            good = is_host(host)
        if not good or (colon and (_PORT.fullmatch(port) is None or int(port) > MAX_PORT)):
            shown = text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
            raise UsageError(f"invalid endpoint {shown!r}: expected {RIGHT}.")
        return cls(host, int(port) if colon else default_port)

    def __str__(self) -> str:
        return join_host_port(self.host, self.port)


def is_host(text: str) -> bool:
    """Return whether a string can be a host name or an address, IPv6 without brackets."""
    return _NAME.fullmatch(text) is not None or is_ipv6(text)


def is_ipv6(text: str) -> bool:
    """Return whether a string is an IPv6 address, with or without a zone (``fe80::1%eth0``)."""
    address, percent, zone = text.partition("%")
    if percent and _NAME.fullmatch(zone) is None:
        return False
    try:
        socket.inet_pton(socket.AF_INET6, address)
    except (OSError, ValueError):  # ValueError: a NUL, or not ASCII
        return False
    return True


def join_host_port(host: str, port: int) -> str:
    """Return ``host:port``, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
