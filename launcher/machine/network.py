"""The address that this node advertises to others, and a reserved port for the store.

Agents advertise an IP address, not a host name: no DNS in the data path, no 127.0.1.1.
"""

import errno
import ipaddress
import socket
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


def listen_address(endpoint: Endpoint) -> Endpoint | None:
    """Return the address to listen at if the endpoint names this host; None: another host.

    For a literal address or ``localhost`` it is that address only. For a name it is all addresses:
    Debian maps a host's own name to 127.0.1.1, which other hosts cannot reach. A pod starts before
    the DNS has its address, so that a host compares the name with its own if the DNS does not know
    it or has another address, as for a pod that was replaced.
    """
    addresses = resolve(endpoint.host)
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
    found = [ipaddress.ip_address(address.partition("%")[0]) for address in resolve(host)]
    return bool(found) and all(address.is_loopback for address in found)


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
    except OSError:
        return is_ipv6(host)
    return True


class AdvertisedAddress:
    """The IP address that this node advertises to the others.

    It is the one that the user gave, else that of the interface that routes to the master, or to
    the first known of the hosts that may lead; without a master (standalone) it is the loopback
    address. A host may get another address while the job runs: ``find`` checks again, without
    resolving names a second time.
    """

    def __init__(
        self, master_host: str | None, local_addr: str | None, others: Sequence[str] = ()
    ) -> None:
        """Find the address.

        Args:
            master_host: address or name of the master's host; None without a master.
            local_addr: ``--local-addr``; None: not given.
            others: other hosts that may lead; the name of a lost host may not resolve.

        Raises:
            UsageError: ``--local-addr`` is neither an address nor a name that resolves.
        """
        self._hosts = () if master_host is None else (master_host, *others)
        self._masters: list[str] = []
        """The addresses of the master's host, or of one that may lead, once known."""
        self._given = _given_address(local_addr) if local_addr is not None else None
        self._found: str | None = None

    def find(self) -> str:
        """Return the present address: the previous one, as long as this host has it."""
        if self._given is not None:
            return self._given
        if self._found is None or not is_local_address(self._found):
            self._found = self._routed() or self._found
        return self._found or _loopback()

    def _routed(self) -> str | None:
        self._masters = self._masters or next(filter(None, map(resolve, self._hosts)), [])
        return next(filter(None, map(_route_to, self._masters)), None)


def _given_address(local_addr: str) -> str:
    addresses = resolve(local_addr)
    if not addresses:
        raise UsageError(
            f"--local-addr {local_addr!r} is neither an IP address nor a host name that resolves."
        )
    local = [address for address in addresses if is_local_address(address)]
    # A translated address (NAT, a floating IP) is not local and may still be correct.
    return (local or addresses)[0]


def _loopback() -> str:
    """Return the loopback address; that of IPv6 on a host without IPv4."""
    return "127.0.0.1" if is_local_address("127.0.0.1") else "::1"


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
    """Reserves a port for the store of a round, without a race.

    The socket is bound with SO_REUSEADDR and never listens: the kernel assigns the port to no other
    process, and the store of rank 0, which sets SO_REUSEADDR too, can still bind it and listen.
    (Linux; verified with torch 2.13's libuv and legacy stores.)
    """

    def __init__(
        self, address: Callable[[], str], ports: Sequence[int] | None, flag: str = "--worker-port"
    ) -> None:
        """Reserve a port.

        Args:
            address: returns the present address to offer with it.
            ports: the ports to try; None: the kernel chooses.
            flag: the flag that gave ``ports``.

        Raises:
            UsageError: none of ``ports`` is free.
        """
        self._ports = ports
        self._flag = flag
        self._address = address
        self._next = 0
        self._socket = self._bind()

    @property
    def offer(self) -> Offer:
        """Return the present address and port at which this node would host the store."""
        return Offer(self._address(), self._socket.getsockname()[1])

    def renew(self) -> Offer:
        """Release the port and reserve another, for the next round.

        If there is no other, the port is kept; the store reports an error if it cannot listen.
        """
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
