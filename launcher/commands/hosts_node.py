"""``ft-run hosts-node``: the command that ``ft-run hosts`` runs on each host over ssh.

The first line of standard input contains the command; the following lines are signals to forward,
and heartbeats. Without heartbeats (end of file, or silence) the job gets SIGTERM, because sshd does
not terminate the processes of a lost connection. The first line of output is ``CONNECTED``.
"""

import os
import select
import signal
import subprocess
import sys
from typing import Final

from msgspec import Struct

from ... import exit_codes
from ...errors import UsageError
from ..processes.prctl import die_with_parent
from ..processes.typed_messages import reader
from ..startup import unblock

SILENCE_S: Final = 60.0
"""Maximum time without a heartbeat, even if ``ft-run hosts`` is suspended."""

BEAT_S: Final = 5.0
"""Interval of the heartbeats of ``ft-run hosts``."""

LOST: Final = 255
"""ssh's exit code if there is no connection; a job with this exit code exits with 254 here."""

CONNECTED: Final = b"\0ft-run hosts-node\n"
"""The first line of output."""


class HostOrder(Struct, frozen=True):
    """The command to start on a host."""

    program: str
    argv: list[str]
    folder: str
    environ: dict[str, str]


def run_hosts_node() -> int:
    """Start ft-run as specified on the standard input; return its exit code."""
    orders = sys.stdin.fileno()
    os.write(sys.stdout.fileno(), CONNECTED)
    first, rest = _first_line(orders)
    try:
        order: HostOrder = reader(HostOrder)(first)
    except ValueError as error:
        raise UsageError(
            f"ft-run hosts-node cannot read its order: {error}; use the same release of ft-run on "
            "all hosts."
        ) from None
    try:
        os.chdir(order.folder)
    except OSError as error:
        raise UsageError(
            f"the working directory {order.folder} cannot be used here: {error.strerror}; set "
            "--chdir to a directory that exists on every host."
        ) from error
    command = [order.program, *order.argv]
    own = os.getpid()
    try:
        job = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            env=os.environ | order.environ,
            preexec_fn=lambda: die_with_parent(own, signal.SIGTERM),
        )
    except OSError as error:
        raise UsageError(
            f"{command[0]} cannot be started here: {error.strerror}; set --ft-run to the path of "
            "ft-run on the hosts."
        ) from error
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: job.send_signal(number))
        unblock([number])
    _attend(job, orders, rest)
    status = job.wait()
    status = exit_codes.SIGNAL_BASE - status if status < 0 else status
    return LOST - 1 if status == LOST else status


def _first_line(orders: int) -> tuple[bytes, bytes]:
    """Return the first line, and the rest of the data: a signal may follow immediately."""
    text = b""
    while b"\n" not in text:
        read = os.read(orders, 65536)
        if not read:
            raise UsageError("ft-run hosts-node is internal; use ft-run hosts.")
        text += read
    line, _, rest = text.partition(b"\n")
    return line, rest


def _attend(job: "subprocess.Popen[bytes]", orders: int, rest: bytes) -> None:
    ended = os.pidfd_open(job.pid)
    while True:
        *lines, rest = rest.split(b"\n")
        for line in lines:
            if line in (b"SIGINT", b"SIGTERM", b"SIGHUP"):
                job.send_signal(signal.Signals[line.decode()])
        ready, _, _ = select.select([ended, orders], [], [], SILENCE_S)
        if ended in ready:
            break
        read = os.read(orders, 4096) if ready else b""
        if not read:
            job.terminate()
            break
        rest += read
    os.close(ended)
