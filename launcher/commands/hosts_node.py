"""``ft-run hosts-node``: what ``ft-run hosts`` runs on each host, at the other end of ssh.

The first line of the standard input says what to start; the following ones are signals to pass on,
and beats. When they cease (the end of the input, or silence), the job is ended in order: sshd ends
no process of a connection that is gone.
"""

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
from typing import Final

from ... import exit_codes
from ...errors import UsageError

SILENCE_S: Final = 60.0
"""How long without a beat a connection counts as alive: that of a stopped ``ft-run hosts`` too."""

BEAT_S: Final = 5.0
"""How often ``ft-run hosts`` sends one."""

LOST: Final = 255
"""What ssh exits with when it has no connection; a job that ends so exits with 254 here."""

_PR_SET_PDEATHSIG = 1


def run_hosts_node() -> int:
    """Start ft-run as the standard input says; return its exit status.

    Raises:
        UsageError: the folder or ft-run cannot be used.
    """
    orders = sys.stdin.fileno()
    first, rest = _first_line(orders)
    order = json.loads(first)
    try:
        os.chdir(order["folder"])
    except OSError as error:
        raise UsageError(
            f"the working directory {order['folder']} cannot be used here: {error.strerror}; set "
            "--chdir to a directory that exists on every host."
        ) from error
    command = [order["program"], *order["argv"]]
    own = os.getpid()
    try:
        job = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            env=os.environ | order["environ"],
            preexec_fn=lambda: _end_with_parent(own),
        )
    except OSError as error:
        raise UsageError(
            f"{command[0]} cannot be started here: {error.strerror}; set --ft-run to the path of "
            "ft-run on the hosts."
        ) from error
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: job.send_signal(number))
    _attend(job, orders, rest)
    status = job.wait()
    status = exit_codes.SIGNAL_BASE - status if status < 0 else status
    return LOST - 1 if status == LOST else status


def _first_line(orders: int) -> tuple[bytes, bytes]:
    """Return the first line, and what has come with it: a signal may follow at once.

    Raises:
        UsageError: the input ends before.
    """
    text = b""
    while b"\n" not in text:
        read = os.read(orders, 65536)
        if not read:
            raise UsageError("ft-run hosts-node is internal; use ft-run hosts.")
        text += read
    line, _, rest = text.partition(b"\n")
    return line, rest


def _attend(job: "subprocess.Popen[bytes]", orders: int, rest: bytes) -> None:
    """Pass signals on until the job has ended or its launcher is gone."""
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


def _end_with_parent(parent: int) -> None:
    """Have the kernel end the job, in order, when this process is killed, or has been by now."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os._exit(exit_codes.SIGNAL_BASE + signal.SIGTERM)
