"""A gloo group beside the script's own, which may be NCCL's."""

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch.distributed as dist

_INTERFACE = "GLOO_SOCKET_IFNAME"
_SIOCGIFADDR = 0x8915
"""See ``netdevice(7)``."""


def new_gloo_group() -> Any:
    """Return a gloo group of all ranks. All ranks call it together."""
    with _interface_towards(os.environ.get("MASTER_ADDR", "")):
        return dist.new_group(backend="gloo")


@contextmanager
def _interface_towards(address: str) -> Iterator[None]:
    """Have gloo listen on the interface of the route to a host, unless the user has named one.

    By default it listens at the address of the host's own name. On Debian that is 127.0.1.1, to
    which other hosts cannot connect (pytorch #68726). NCCL is not affected, so that a job of GPUs
    works until it uses gloo.
    """
    name = "" if _INTERFACE in os.environ else interface_towards(address)
    if not name:
        yield
        return
    os.environ[_INTERFACE] = name
    try:
        yield
    finally:
        os.environ.pop(_INTERFACE, None)


def interface_towards(address: str) -> str:
    """Return the network interface of the route to a host; empty: not known, or a loopback.

    Args:
        address: a name or an address.
    """
    with suppress(OSError):
        found = socket.getaddrinfo(address, 9, type=socket.SOCK_DGRAM)
        family, kind, protocol, _, place = found[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(place)  # a datagram socket sends nothing
            source = probe.getsockname()[0].partition("%")[0]
        if not source.startswith("127.") and source != "::1":
            return _of_ipv6(source) if family is socket.AF_INET6 else _of_ipv4(source)
    return ""


def _of_ipv4(source: str) -> str:
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # it has no address
                answer = fcntl.ioctl(asked, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                if socket.inet_ntoa(answer[20:24]) == source:
                    return name
    return ""


def _of_ipv6(source: str) -> str:
    digits = socket.inet_pton(socket.AF_INET6, source).hex()
    with open("/proc/net/if_inet6") as file:
        rows = (line.split() for line in file)
        return next((row[5] for row in rows if row[0] == digits), "")
