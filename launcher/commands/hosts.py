"""``ft-run hosts``: one job on several hosts over the system's ssh."""

import contextlib
import json
import os
import queue
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from typing import IO, Final

from ... import exit_codes
from ...errors import RendezvousError, UsageError
from ...printable import printable
from ..hosts_options import HostsOptions, NodeCommand
from ..processes.typed_messages import as_json
from ..startup import unblock
from .hosts_node import BEAT_S, CONNECTED, LOST, HostOrder

_SSH_OPTIONS: Final = (
    "-oBatchMode=yes",
    "-oConnectTimeout=20",
    "-oServerAliveInterval=10",
    "-oServerAliveCountMax=3",
    "-oControlMaster=no",
    "-T",
)
"""No prompts, no terminal; a lost connection is detected within 30 s. An existing shared connection
is used, but none is started, which would keep the output open. The user's own options override."""

_NOT_IN_THE_JOB: Final = (LOST, exit_codes.USAGE, exit_codes.REFUSED, 126, 127)
"""Exit codes of a host without a node: no connection, usage error, no such program."""

_TICK_S: Final = 0.2
"""Maximum delay of a signal while the main thread waits for hosts."""

_CHUNK = 1 << 16
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _Host:
    """One host: its ssh process, whether that has connected, and its exit code."""

    def __init__(self, command: NodeCommand, options: HostsOptions) -> None:
        self.name = command.host
        self.is_connected = False
        self.status: int | None = None
        on_host = shlex.join([options.program, "hosts-node"])  # a shell parses it there
        start = [*options.ssh, *_SSH_OPTIONS, "--", command.host, on_host]
        try:
            self._process = subprocess.Popen(
                start,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # this process handles and forwards Ctrl-C
            )
        except OSError as error:
            raise UsageError(
                f"{start[0]} cannot be started here: {error.strerror}; set --ssh to a program of "
                "this host."
            ) from error
        environ = dict(options.environ)
        order = HostOrder(options.program, [*command.argv], options.folder, environ)
        self.send(json.dumps(as_json(order)))

    def send(self, line: str) -> None:
        stream = self._process.stdin
        assert stream is not None
        with contextlib.suppress(OSError, ValueError):
            stream.write(line.encode() + b"\n")
            stream.flush()

    def attend(self, console: "_Console", ended: "queue.SimpleQueue[tuple[_Host, int]]") -> None:
        out, err = self._process.stdout, self._process.stderr
        assert out is not None
        assert err is not None
        reader = threading.Thread(
            target=console.copy, args=(self.name, _lines(err), sys.stderr.fileno()), daemon=True
        )
        reader.start()
        console.copy(self.name, self._lines_of_job(out), sys.stdout.fileno())
        reader.join()
        status = self._process.wait()
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # unread input
            self._process.stdin.close()
        ended.put((self, LOST if status < 0 else status))  # below 0: ssh itself was killed

    def _lines_of_job(self, stream: IO[bytes]) -> Iterator[bytes]:
        for line in _lines(stream):
            if self.is_connected or line != CONNECTED:
                yield line
            else:
                self.is_connected = True


class _Console:
    """The two output streams; lines of several hosts are not interleaved."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def copy(self, name: str, lines: Iterable[bytes], target: int) -> None:
        prefix = f"[{name}] ".encode()
        for line in lines:
            self.write(target, prefix + line)

    def write(self, target: int, data: bytes) -> None:
        """Write all data; drop it if there is no reader any more, so that no host blocks."""
        view = memoryview(data)
        with self._lock, contextlib.suppress(OSError):
            while view:
                view = view[os.write(target, view) :]


def run_hosts(options: HostsOptions) -> int:
    """Run a job on all hosts; return its exit code."""
    console = _Console()
    ended: queue.SimpleQueue[tuple[_Host, int]] = queue.SimpleQueue()
    asked: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in _FORWARDED:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, lambda number, _: asked.put(number))
            unblock([number])
    hosts = [_Host(command, options) for command in options.nodes]
    for host in hosts:
        threading.Thread(target=host.attend, args=(console, ended), daemon=True).start()
    is_stopping = False
    since_beat = 0.0
    while any(host.status is None for host in hosts):
        with contextlib.suppress(queue.Empty):
            # Exit codes are set only here, so that no host that has ended is missed.
            host, host.status = ended.get(timeout=_TICK_S)
            _report_end(host, console)
            if _too_few(hosts, options.least) and not is_stopping:
                is_stopping = True
                asked.put(signal.SIGTERM)
        since_beat += _TICK_S
        words = [signal.Signals(number).name for number in _drain(asked)]
        if since_beat >= BEAT_S:
            words.append("beat")
            since_beat = 0.0
        for word in words:
            for host in hosts:
                host.send(word)
    statuses = {host.status for host in hosts}
    if (lost := _too_few(hosts, options.least)) and (len(statuses) > 1 or LOST in statuses):
        raise RendezvousError(
            f"{len(lost)} of {len(hosts)} hosts have not joined the job or have left it"
            f" ({', '.join(lost)}), and it needs {options.least}; expected hosts that ssh reaches"
            " without a prompt, with ft-run and the script installed."
        )
    return _status(hosts)


def _too_few(hosts: list[_Host], least: int) -> list[str]:
    """Return the hosts without a node, if fewer than the job needs are left."""
    lost = [host.name for host in hosts if host.status in _NOT_IN_THE_JOB]
    return lost if len(hosts) - len(lost) < least else []


def _drain(numbers: "queue.SimpleQueue[int]") -> Iterator[int]:
    with contextlib.suppress(queue.Empty):
        while True:
            yield numbers.get_nowait()


def _lines(stream: IO[bytes]) -> Iterator[bytes]:
    """Yield lines with their newlines; a very long line is split."""
    with stream:
        while line := stream.readline(_CHUNK):
            yield line if line.endswith(b"\n") else line + b"\n"


def _report_end(host: _Host, console: _Console) -> None:
    if host.status in (exit_codes.SUCCESS, None):
        return
    what = f"exit code {host.status}"
    if host.status == LOST:
        what = "the connection is lost" if host.is_connected else "ssh has not connected"
    line = printable(f"ft-run hosts: {host.name}: {what}")
    console.write(sys.stderr.fileno(), line.encode() + b"\n")


def _status(hosts: list[_Host]) -> int:
    """Return the job's exit code, from the first host that was not lost or excluded."""
    statuses = [host.status for host in hosts if host.status not in (LOST, None)]
    of_the_job = [status for status in statuses if status != exit_codes.NODE_EXCLUDED]
    first = next(iter(of_the_job or statuses), exit_codes.RENDEZVOUS_FAILED)
    assert first is not None
    return first
