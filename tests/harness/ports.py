"""TCP ports for tests that run beside each other.

A port that the kernel picks for a probe may be given to an outgoing connection of another process,
or to another test's probe, before the test binds it. These lie below the range that the kernel
picks from (32768 up by default), and each pytest-xdist worker has a part of its own. Where it
begins in it depends on the run, since another one beside it may have the same parts.
"""

import itertools
import os
import socket
import zlib

_FIRST, _LAST = 20000, 32000
_PER_WORKER = 1000

_worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_start = _FIRST + _worker * _PER_WORKER % (_LAST - _FIRST)
_run = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
_ports = (_start + n % _PER_WORKER for n in itertools.count(zlib.crc32(_run.encode())))


def free_port(count: int = 1) -> int:
    """Return the first of ``count`` successive TCP ports on which nothing listens.

    Raises:
        RuntimeError: there is none in this worker's part of the range.
    """
    free: list[int] = []
    for _ in range(_PER_WORKER):
        port = next(_ports)
        if not _is_free(port) or (free and port != free[-1] + 1):
            free.clear()
            continue
        free.append(port)
        if len(free) == count:
            return free[0]
    raise RuntimeError(f"no {count} free ports from {_start} to {_start + _PER_WORKER - 1}")


def _is_free(port: int) -> bool:
    for family, host in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
        with socket.socket(family) as probe:
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                probe.bind((host, port))
            except OSError:
                return False
    return True
