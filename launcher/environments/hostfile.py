"""Hostfiles in the format of Open MPI and DeepSpeed: one line ``HOST slots=N`` per host."""

import re

from msgspec import Struct

from ...errors import UsageError

_HOST = re.compile(
    r"([A-Za-z0-9_.-]+@)?[A-Za-z0-9][A-Za-z0-9._-]*|([A-Za-z0-9_.-]+@)?[0-9A-Fa-f:]+"
)
_SLOTS = re.compile(r"[1-9][0-9]{0,4}")


class HostLine(Struct, frozen=True):
    """One host and its number of workers; None if the file does not set it."""

    name: str
    """The name for ssh: ``[USER@]HOST``."""
    slots: int | None
    where: str
    """The position for errors: ``line 3 of hosts``."""

    @property
    def address(self) -> str:
        """Return the name without the user."""
        return self.name.rpartition("@")[2]


def read_hostfile(text: str, path: str) -> tuple[HostLine, ...]:
    """Return the hosts of a file; refuse invalid lines and repeated hosts."""
    hosts = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if words:
            hosts.append(_host(words, f"line {number} of {path}"))
    return _checked(hosts, path)


def read_list(text: str, flag: str) -> tuple[HostLine, ...]:
    """Return the hosts of ``a,b,c``; refuse empty, invalid and repeated names."""
    hosts = [
        _host([word.strip()], f"host {number} of {flag}")
        for number, word in enumerate(text.split(","), 1)
    ]
    return _checked(hosts, flag)


def _host(words: list[str], where: str) -> HostLine:
    name, *rest = words
    if _HOST.fullmatch(name) is None:
        raise UsageError(
            f"invalid host name {name[:80]!r} ({where}): expected HOST or USER@HOST, and in a file"
            " HOST slots=N."
        )
    slots = None
    for word in rest:
        key, _, value = word.partition("=")
        if key != "slots" or slots is not None:
            raise UsageError(
                f"unexpected {word[:80]!r} after {name} ({where}); expected slots=N, once."
            )
        if _SLOTS.fullmatch(value) is None:
            raise UsageError(
                f"invalid value {value[:80]!r} for slots ({where}): expected a whole number >= 1."
            )
        slots = int(value)
    return HostLine(name, slots, where)


def _checked(hosts: list[HostLine], source: str) -> tuple[HostLine, ...]:
    if not hosts:
        raise UsageError(f"{source} has no host; expected a line HOST slots=N for each.")
    first: dict[str, HostLine] = {}
    for host in hosts:
        before = first.setdefault(host.address, host)
        if before is not host:
            raise UsageError(
                f"{host.where} has {host.name}, and so has {before.where}; expected each host"
                f" once{', with the sum of their slots' if host.slots else ''}."
            )
    return tuple(hosts)
