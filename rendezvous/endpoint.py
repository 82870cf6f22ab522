"""Addresses as people write them: ``host``, ``host:port``, ``[v6]:port``."""

import re
from dataclasses import dataclass

from .. import defaults
from ..errors import UsageError

_BRACKETED = re.compile(r"\[(?P<host>[0-9A-Fa-f:.%a-z]+)\](?::(?P<port>[0-9]+))?\Z")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a master listens. ``host`` is a name or an address, IPv6 without brackets."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str, default_port: int = defaults.ENDPOINT_PORT) -> "Endpoint":
        """Read ``host[:port]`` or ``[v6][:port]``; a bare IPv6 address has no port.

        Raises:
            UsageError: the text is not an endpoint.
        """
        text = text.strip()
        if text.startswith("["):
            match = _BRACKETED.match(text)
            if match is None:
                raise _bad(text)
            host, port = match["host"], match["port"]
        elif text.count(":") > 1:
            host, port = text, None
        else:
            host, colon, port = text.partition(":")
            if colon and not port:
                raise _bad(text)
        if not host or (port and not port.isdecimal()):
            raise _bad(text)
        number = int(port) if port else default_port
        if not 0 <= number <= 65535:
            raise UsageError(f"the port of the endpoint {text!r} is not between 0 and 65535.")
        return cls(host, number)

    def __str__(self) -> str:
        return join_host_port(self.host, self.port)


def join_host_port(host: str, port: int) -> str:
    """Return ``host:port``, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _bad(text: str) -> UsageError:
    return UsageError(
        f"the endpoint {text!r} is not HOST[:PORT]; right would be node0:29400 or [fd00::1]:29400."
    )
