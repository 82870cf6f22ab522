"""The address that this node advertises to others, and a reserved port for the store.

Agents advertise an IP address, not a host name: no DNS in the data path, no 127.0.1.1.
"""

import errno
import ipaddress
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress

from ...errors import UsageError
from ...rendezvous.protocol.endpoint import Endpoint, is_ipv6
from ...rendezvous.protocol.offer import Offer


def is_local_address(address: str) -> bool:
    """Return whether an IP address belongs to this host, i.e. can be bound."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True


def resolve(host: str) -> list[str]:
    """Return the IP addresses of a name, in the resolver's order; empty if it has none."""
    try:
        infos = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):  # UnicodeError: an invalid host name, e.g. "a..b"
        return []
    return list(dict.fromkeys(str(info[4][0]) for info in infos))


def own_endpoints(endpoints: Sequence[Endpoint]) -> tuple[dict[int, Endpoint], bool]:
    """Return the listen address of each endpoint that names this host, by its position.

    The second value is whether every name resolves: an unresolved one may be a name of this host
    that the DNS does not have yet.
    """
    known = [resolve(endpoint.host) for endpoint in endpoints]
    found = map(_listen_address, endpoints, known)
    own = {place: address for place, address in enumerate(found) if address is not None}
    return own, all(known)


def _listen_address(endpoint: Endpoint, addresses: Sequence[str]) -> Endpoint | None:
    """Return the address to listen at if the endpoint names this host; None for another host.

    For an IP address or ``localhost`` it is that address; for a name, the wildcard address: Debian
    maps a host's own name to 127.0.1.1, which other hosts cannot reach. The DNS may not know the
    name of a new pod, or have the address of the pod that it replaced, so the name is also compared
    with this host's own.
    """
    local = [address for address in addresses if is_local_address(address)]
    if not local:
        # A short name with another address may belong to a clone.
        is_clear = not addresses or "." in endpoint.host
        is_own = is_clear and _is_own_name(endpoint.host)
        return Endpoint(any_address(), endpoint.port) if is_own else None
    if _is_literal(endpoint.host) or endpoint.host == "localhost":
        return Endpoint(local[0], endpoint.port)
    return Endpoint(any_address(), endpoint.port)


def _is_own_name(name: str) -> bool:
    """Return whether a name is this host's full name, or a prefix of it up to a dot."""
    if name.partition(".")[0].lower() != socket.gethostname().partition(".")[0].lower():
        return False  # without a DNS query
    return f"{socket.getfqdn()}.".lower().startswith(f"{name.rstrip('.')}.".lower())


def is_loopback(host: str) -> bool:
    """Return whether only processes of this host can reach a server at this address or name."""
    found = resolve(host)
    return bool(found) and all(map(_is_loopback_address, found))


def _is_loopback_address(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def names_all_hosts(host: str) -> bool:
    """Return whether other hosts can connect to a master at this name, judged by the name alone.

    With a name, a master listens at all addresses, even if it resolves to a loopback address.
    """
    return host != "localhost" and not (_is_literal(host) and _is_loopback_address(host))


def any_address() -> str:
    """Return the wildcard address: IPv6 and IPv4 if the host has both."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind(("::", 0))
    except OSError:
        return "0.0.0.0"  # noqa: S104 - this function is the one place that means it
    return "::"


def _is_literal(host: str) -> bool:
    try:
        socket.inet_pton(socket.AF_INET, host)
    except (OSError, ValueError):  # ValueError: a NUL, or not ASCII
        return is_ipv6(host)
    return True


class AdvertisedAddress:
    """The IP address that this node advertises to the others.

    It is ``local_addr`` (``--local-addr``) if given, else the address of the interface that routes
    to the master, or to the first resolvable host that may lead (``others``). On the master's own
    host, whose name may not resolve to a useful address, it is the address that routes to another
    node, and before there is one, the default route's. It is the loopback address only if no other
    host can join (``is_open``). ``find`` checks again, because addresses can change during a job.

    Raises:
        UsageError: If ``local_addr`` is neither an address nor a name that resolves.
    """

    def __init__(
        self,
        master_host: str | None,
        local_addr: str | None,
        others: Sequence[str] = (),
        *,
        is_open: bool = False,
    ) -> None:
        self._hosts = () if master_host is None else (master_host, *others)
        self._masters: list[str] = []
        """Addresses of the master's host, or of one that may lead, once known."""
        self._is_open = is_open
        self._given = None if local_addr is None else self._given_address(local_addr)
        self._found: str | None = None
        """The last address that routed to a master or to a different node."""
        self._advertised = ""
        """The last result of ``find``."""

    @classmethod
    def named(cls, name: str) -> "AdvertisedAddress":
        """Advertise a name of this host unchanged."""
        address = cls(None, None)
        address._given = name
        return address

    def find(self) -> str:
        """Return the current address: the previous one, as long as this host has it."""
        self._advertised = self._given or self._find()
        return self._advertised

    def meet(self, address: str) -> bool:
        """Take the address of another node into account; return whether ``find`` changes."""
        before = self._advertised
        is_found = self._found is not None and is_local_address(self._found)
        is_remote = _is_literal(address) and not is_local_address(address)
        if self._is_open and is_remote and not is_found:
            self._found = self._useful_route(address) or self._found
        return self.find() != before

    def _find(self) -> str:
        found = self._found
        if found is None or not is_local_address(found):
            found = self._routed()
            self._found = found or self._found
            if found is None and self._is_open:
                found = _outward_address()
        return found or self._found or _loopback()

    def _routed(self) -> str | None:
        for addresses in [self._masters] if self._masters else map(resolve, self._hosts):
            for found in map(self._useful_route, addresses):
                if found is not None:
                    self._masters = list(addresses)
                    return found
        return None

    def _useful_route(self, address: str) -> str | None:
        found = _route_to(address)
        is_useless = found is None or (self._is_open and _is_loopback_address(found))
        return None if is_useless else found

    def _given_address(self, local_addr: str) -> str | None:
        addresses = resolve(local_addr)
        if not addresses:
            raise UsageError(
                f"--local-addr {local_addr!r} is neither an IP address nor a host name that "
                "resolves."
            )
        if self._is_open and not _is_literal(local_addr):
            # As for the master: a host often resolves its own name to 127.0.1.1.
            addresses = [one for one in addresses if not _is_loopback_address(one)]
        local = [address for address in addresses if is_local_address(address)]
        # A translated address (NAT, a floating IP) is not local and may still be correct.
        return next(iter(local or addresses), None)


def _loopback() -> str:
    """Return the loopback address; the IPv6 one on a host without IPv4."""
    return "127.0.0.1" if is_local_address("127.0.0.1") else "::1"


_FAR = ("192.0.2.1", "2001:db8::1")
"""Addresses of blocks for documentation: the default route leads to them."""


def _outward_address() -> str | None:
    """Return the address of the default route, else of the first network; None if there is none."""
    for address in (*map(_route_to, (*_FAR, *_neighbors())), *_own_ipv6()):
        if address is not None and not _is_loopback_address(address):
            return address
    return None


def _neighbors() -> list[str]:
    """Return one address of each IPv4 network to which this host has a route."""
    with suppress(OSError), open("/proc/net/route", encoding="ascii") as file:
        rows = [line.split() for line in file][1:]
        destinations = [int.from_bytes(bytes.fromhex(row[1]), sys.byteorder) for row in rows]
        return [str(ipaddress.IPv4Address(one + 1)) for one in destinations if one]
    return []


def _own_ipv6() -> list[str]:
    with suppress(OSError), open("/proc/net/if_inet6", encoding="ascii") as file:
        rows = [line.split() for line in file]
        return [str(ipaddress.IPv6Address(int(row[0], 16))) for row in rows if row[3] == "00"]
    return []


def _route_to(address: str) -> str | None:
    """Return the source address of packets to ``address``. A datagram socket sends nothing."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))
            return str(probe.getsockname()[0])
    except OSError:
        return None


class PortReservation:
    """Reserves a port for the store of a round, without a race; a free one if ``ports`` is None.

    The socket is bound with SO_REUSEADDR and never listens: the kernel does not assign the port to
    another process, and the store of rank 0, which sets SO_REUSEADDR too, can still bind it and
    listen. (Linux; verified with torch 2.13's libuv and legacy stores.)

    Raises:
        UsageError: If none of ``ports`` is free.
    """

    def __init__(
        self, address: Callable[[], str], ports: Sequence[int] | None, flag: str = "--worker-port"
    ) -> None:
        self._ports = ports
        self._flag = flag
        self._address = address
        self._next = 0
        self._socket = self._bind()

    @property
    def offer(self) -> Offer:
        """Return the current address and port at which this node would host the store."""
        return Offer(self._address(), self._socket.getsockname()[1])

    def renew(self) -> Offer:
        """Reserve another port for the next round, or keep this one if there is no other."""
        with suppress(OSError, UsageError):
            old, self._socket = self._socket, self._bind()
            old.close()
        return self.offer

    def close(self) -> None:
        """Release the port."""
        self._socket.close()

    def _bind(self) -> socket.socket:
        if self._ports is None:
            return _bound(0)
        for _ in range(len(self._ports)):
            port = self._ports[self._next % len(self._ports)]
            self._next += 1
            try:
                return _bound(port)
            except OSError as error:
                if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                    raise
        first, last = self._ports[0], self._ports[-1]
        given = str(first) if first == last else f"{first}-{last}"
        advice = "give a free port, or a wider range" if len(self._ports) > 1 else "give a free one"
        raise UsageError(
            f"{self._flag} {given}: no port of it is free for this user on this host; {advice}."
        )


def _bound(port: int) -> socket.socket:
    family = socket.AF_INET6 if any_address() == "::" else socket.AF_INET
    reserved = socket.socket(family, socket.SOCK_STREAM)
    try:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            with suppress(OSError):
                reserved.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        reserved.bind(("", port))
    except OSError:
        reserved.close()
        raise
    return reserved
