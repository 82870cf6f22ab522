"""Hosts for tests: network namespaces with addresses, names and links of their own.

    with Network() as network:
        a, b = network.add("a"), network.add("b")
        subprocess.Popen([*a.enter, "ft-run", …])
        b.cut()

A host shares the machine's file systems and process table. It has an interface, an ``/etc/hosts``
and a host name of its own, and does not see the abstract Unix sockets of others. The wires run to
a bridge in a namespace that has nothing else in it, so that networks of tests that run beside
each other may use the same addresses.

It takes root and what Debian has in ``iproute2``, ``util-linux`` and ``mount``, and of the kernel
only veth, bridge and, to shape a link, ``tbf``.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

_NAMESPACES = Path("/run/netns")
_PREFIX = "ft-run-test"
_NEEDED = ("ip", "tc", "nsenter", "unshare", "mount")
_WAIT_S = 30.0
_LATENCY = "400ms"

# $0 is the host's name, $1 its /etc/hosts; the rest is the command, which takes the place of all.
_MOVE_IN = (
    'echo "$0" > /proc/sys/kernel/hostname && mount --bind "$1" /etc/hosts && shift && exec "$@"'
)


def unavailable() -> str | None:
    """Return why there can be no hosts on this machine; None where there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [program for program in _NEEDED if shutil.which(program) is None]
    if missing:
        return f"network namespaces need the programs {', '.join(missing)}"
    name = f"{_PREFIX}-{os.getpid()}-probe-{uuid.uuid4().hex[:8]}"
    added = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if added.returncode:
        return f"no network namespace can be made here: {added.stderr.strip()}"
    _run("ip", "netns", "delete", name)
    return None


class Host:
    """One host of a network. ``Network.add`` makes it."""

    def __init__(
        self, network: "Network", name: str, number: int, hosts_file: Path, host_name: str
    ) -> None:
        self.name = name
        self.address = f"10.77.{number // 250}.{number % 250 + 1}"
        self.namespace = network.namespace(name)
        self.enter = (
            "nsenter", f"--net={_NAMESPACES / self.namespace}", "--",
            "unshare", "--uts", "--mount", "--", "sh", "-c", _MOVE_IN, host_name, str(hosts_file),
        )  # fmt: skip
        """What a command is put behind to run in this host; its process id stays that of the
        command."""
        self._network = network
        self._port = f"port{number}"
        _run("ip", "netns", "add", self.namespace)
        self._inode = (_NAMESPACES / self.namespace).stat().st_ino
        self._ip("link", "set", "lo", "up")
        network.switch("link", "add", self._port, "type", "veth", "peer", "name", "eth0",
                       "netns", self.namespace)  # fmt: skip
        network.switch("link", "set", self._port, "master", "bridge", "up")
        self._ip("address", "add", f"{self.address}/16", "dev", "eth0")
        self._ip("link", "set", "eth0", "up")

    def run(self, *command: object) -> str:
        """Run a short command in this host; return its output."""
        return _run(*self.enter, *map(str, command))

    # --- the link ----------------------------------------------------------------------------

    def cut(self) -> None:
        """Pull the network cable: nothing arrives any more, and no host is told."""
        self._network.switch("link", "set", self._port, "down")

    def mend(self) -> None:
        """Put the cable back."""
        self._network.switch("link", "set", self._port, "up")

    def move(self, address: str) -> None:
        """Give the host another address in place of its own, as DHCP or a failover may."""
        self._ip("address", "delete", f"{self.address}/16", "dev", "eth0")
        self._ip("address", "add", f"{address}/16", "dev", "eth0")
        self.address = address

    def shape(self, rate: str, burst: str = "64kb") -> None:
        """Make the link slow in both directions.

        Args:
            rate: as ``tc`` has it: ``"20mbit"``.
            burst: how much may pass at once.
        """
        bucket = ("root", "tbf", "rate", rate, "burst", burst, "latency", _LATENCY)
        self._tc("qdisc", "replace", "dev", "eth0", *bucket)
        self._network.switch_tc("qdisc", "replace", "dev", self._port, *bucket)

    # --- processes ---------------------------------------------------------------------------

    def pids(self) -> set[int]:
        """Return the processes that run in this host; zombies are none."""
        # Once the namespace is gone its inode may be another's.
        exists = (_NAMESPACES / self.namespace).exists()
        return _pids_in(self._inode) if exists else set()

    def freeze(self) -> None:
        """Stop every process, as when the host itself is stopped; return when all of them are.

        What the kernel does goes on: connections stay open, and what arrives is acknowledged.
        """
        _signal_all(self.pids, signal.SIGSTOP, lambda pid: _state(pid) not in "Tt")

    def thaw(self) -> None:
        """Let every process go on."""
        for pid in self.pids():
            _kill(pid, signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL every process, as when the power goes; return when all of them are gone.

        They are stopped before, so that none sees another one end and acts on it: an agent would
        leave the job in order, or tell of a worker. The kernel closes their connections and says so
        to the peers; after ``cut`` it cannot.
        """
        for pid in self.pids():
            _kill(pid, signal.SIGSTOP)
        _signal_all(self.pids, signal.SIGKILL, lambda _: True)

    def add_nat(self) -> None:
        """Give the host a second network with the default route and the same address as elsewhere.

        Virtual machines often have one, by which no other host reaches them.
        """
        self._ip("link", "add", "nat", "type", "veth", "peer", "name", "router")
        self._ip("address", "add", "10.0.2.15/24", "dev", "nat")
        self._ip("link", "set", "router", "up")
        self._ip("link", "set", "nat", "up")
        self._ip("route", "add", "default", "via", "10.0.2.2")
        for line in Path("/etc/resolv.conf").read_text().splitlines():
            if line.startswith("nameserver ") and "." in line:
                self._ip("route", "add", "unreachable", line.split()[1])

    def _ip(self, *arguments: str) -> None:
        _run("ip", "-n", self.namespace, *arguments)

    def _tc(self, *arguments: str) -> None:
        _run("tc", "-n", self.namespace, *arguments)

    def blackhole(self, peer: "Host", *, add: bool) -> None:
        """Throw away what this host sends to another, or cease to. See ``Network.separate``."""
        self._ip("route", "add" if add else "delete", "blackhole", peer.address)


class Network:
    """Hosts that reach each other by address and by name. A context manager."""

    def __init__(self) -> None:
        _remove_what_is_left()
        self._mark = f"{_PREFIX}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}-"))
        self._switch = self.namespace("switch")
        self._aliases: dict[str, Host] = {}
        self._hidden: set[str] = set()
        self.own_names_are_loopback = False
        """Whether each host maps its own name to 127.0.1.1, as Debian's installer writes it."""
        self.hosts: dict[str, Host] = {}
        """By name, in the order in which they were added."""
        try:
            _run("ip", "netns", "add", self._switch)
            self.switch("link", "add", "bridge", "type", "bridge")
            self.switch("link", "set", "bridge", "up")
        except BaseException:
            self.close()
            raise

    def add(self, name: str, *, host_name: str = "") -> Host:
        """Add a host. Its address follows from how many there are before it.

        Args:
            name: by which others and the test know it.
            host_name: what it calls itself, where that is not its name.
        """
        host = Host(self, name, len(self.hosts), self._hosts_file(name), host_name or name)
        self.hosts[name] = host
        self._write_names()
        return host

    def alias(self, name: str, host: Host) -> None:
        """Let every host know one by another name; a name that is known moves, as in the DNS."""
        self._aliases[name] = host
        self._write_names()

    def hide(self, name: str) -> None:
        """Let no host resolve a name, as before the DNS has that of a pod."""
        self._hidden.add(name)
        self._write_names()

    def show(self, name: str) -> None:
        """Undo ``hide``."""
        self._hidden.remove(name)
        self._write_names()

    def separate(self, one: Host, other: Host) -> None:
        """Lose what two hosts send to each other; both still reach all the others."""
        one.blackhole(other, add=True)
        other.blackhole(one, add=True)

    def join(self, one: Host, other: Host) -> None:
        """Undo ``separate``."""
        one.blackhole(other, add=False)
        other.blackhole(one, add=False)

    def close(self) -> None:
        """End every process in every host, and remove all of it."""
        for host in self.hosts.values():
            host.kill()
        # A host whose set-up failed is not among ``hosts``.
        for namespace in _NAMESPACES.glob(f"{self._mark}-*"):
            _run("ip", "netns", "delete", namespace.name)
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> "Network":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # --- for ``Host`` ------------------------------------------------------------------------

    def namespace(self, name: str) -> str:
        """Return the name of a host's namespace: no other network's, and its owner is known."""
        return f"{self._mark}-{name}"

    def switch(self, *arguments: str) -> None:
        """Run ``ip`` where the bridge is."""
        _run("ip", "-n", self._switch, *arguments)

    def switch_tc(self, *arguments: str) -> None:
        """Run ``tc`` where the bridge is."""
        _run("tc", "-n", self._switch, *arguments)

    def _hosts_file(self, name: str) -> Path:
        path = self._folder / f"hosts-{name}"
        path.touch()
        return path

    def _write_names(self) -> None:
        names = {**self.hosts, **self._aliases}
        for own in self.hosts:
            lines = ["127.0.0.1 localhost\n", "::1 localhost\n"]
            for name, host in names.items():
                is_loopback = self.own_names_are_loopback and name == own
                if name not in self._hidden:
                    lines.append(f"{'127.0.1.1' if is_loopback else host.address} {name}\n")
            # In place: a running host has this very file mounted.
            self._hosts_file(own).write_text("".join(lines))


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
    return done.stdout


def _pids_in(inode: int) -> set[int]:
    pids = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):  # it has ended, or is a zombie
                if (entry / "ns" / "net").stat().st_ino == inode:
                    pids.add(int(entry.name))
    return pids


def _state(pid: int) -> str:
    """Return the kernel's letter for what a process does; ``T`` for one that is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return "T"
    return stat.rpartition(b")")[2].split()[0].decode()


def _signal_all(
    pids: Callable[[], set[int]], number: signal.Signals, is_left: Callable[[int], bool]
) -> None:
    """Signal all processes until none is left, also those that are started meanwhile."""
    deadline = time.monotonic() + _WAIT_S
    while left := {pid for pid in pids() if is_left(pid)}:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{number.name} has no effect on {sorted(left)}")
        for pid in left:
            _kill(pid, number)
        threading.Event().wait(0.002)


def _kill(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _remove_what_is_left() -> None:
    """Remove the namespaces of test runs that were killed."""
    for namespace in _NAMESPACES.glob(f"{_PREFIX}-*"):
        owner = re.match(rf"{_PREFIX}-(\d+)-", namespace.name)
        if owner is not None and not Path(f"/proc/{owner[1]}").exists():
            with contextlib.suppress(RuntimeError):  # another test removes it as well
                _run("ip", "netns", "delete", namespace.name)
