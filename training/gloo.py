"""A gloo group in addition to the script's own group, which may use NCCL."""

import datetime
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

_INTERFACE = "GLOO_SOCKET_IFNAME"
A_DAY, NO_LIMIT = datetime.timedelta(days=1), datetime.timedelta(days=3650)


def new_gloo_group() -> Any:
    """Return a gloo group of all ranks, whose operations can take a day.

    All ranks call it together. torch's default limit applies to its creation only: later, a rank
    may wait for another rank's evaluation, or for slow storage.
    """
    with gloo_towards(os.environ.get("MASTER_ADDR", "")):
        group = dist.new_group(backend="gloo")
    set_limit(group, A_DAY)
    return group


def set_limit(group: Any, limit: datetime.timedelta) -> None:
    """Set how long an operation of a group may take."""
    if group is not dist.GroupMember.NON_GROUP_MEMBER:
        # Public since torch 2.15, which warns of the old name.
        public = getattr(dist, "set_timeout", None)
        (public or distributed_c10d._set_pg_timeout)(limit, group)


@contextmanager
def gloo_towards(address: str) -> Iterator[None]:
    """Make gloo listen on the interface of the route to a host, unless the user has set one.

    By default it listens on the address of the host's own name. On Debian that is 127.0.1.1, to
    which other hosts cannot connect (pytorch #68726). NCCL is not affected, so a GPU job works
    until it uses gloo.
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
    """Return the network interface of the route to a host; empty if unknown, or a loopback."""
    with suppress(OSError, ImportError):  # a different interpreter from ft-run's may lack psutil
        found = socket.getaddrinfo(address, 9, type=socket.SOCK_DGRAM)
        family, kind, protocol, _, place = found[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(place)  # a datagram socket sends nothing
            source = probe.getsockname()[0].partition("%")[0]
        if not source.startswith("127.") and source != "::1":
            import psutil  # only with several hosts

            for name, addresses in psutil.net_if_addrs().items():
                if any(one.address.partition("%")[0] == source for one in addresses):
                    return str(name)
    return ""
