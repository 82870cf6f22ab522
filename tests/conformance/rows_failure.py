"""Failure and signals."""

import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from ft_run.tests.conformance.launchers import Launcher
from ft_run.tests.conformance.row import PAIR, Row

if TYPE_CHECKING:
    from ft_run.tests.conformance.row import Act
    from ft_run.tests.e2e.conftest import Command

_WAIT: Final = """
import threading
def told(number, frame):
    say(f"{rank} got {signal.Signals(number).name}")
    os._exit(0)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
    signal.signal(number, told)
for number in (signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, lambda number, frame: say(f"{rank} got {signal.Signals(number).name}"))
say(f"{rank} ready")
while True:
    signal.pause()
"""


def _send(number: int) -> "Act":
    def act(launcher: Launcher, commands: "Sequence[Command]") -> None:
        commands[0].expect("@@[01] ready", 2)
        commands[0].send(number)

    return act


def _user_signal(launcher: Launcher, commands: "Sequence[Command]") -> None:
    commands[0].expect("@@[01] ready", 2)
    commands[0].send(signal.SIGUSR1)
    if launcher.name == "ft-run":
        commands[0].expect("@@[01] got SIGUSR1", 2)
        commands[0].send(signal.SIGTERM)


SIGNALS: Final = [
    *(
        Row(
            name,
            f"signals {name}",
            PAIR,
            script=_WAIT,
            act=_send(signal.Signals[name]),
            differs=("signal",),
        )
        for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")
    ),
    Row(
        "SIGUSR1 to handle",
        "signals SIGUSR1 signals-to-handle",
        PAIR + "--signals-to-handle SIGUSR1,SIGTERM",
        script=_WAIT.replace("(signal.SIGTERM,", "(signal.SIGUSR1, signal.SIGTERM,").replace(
            "in (signal.SIGUSR1, signal.SIGUSR2)", "in (signal.SIGUSR2,)"
        ),
        act=_send(signal.SIGUSR1),
        differs=("signal",),
    ),
    Row(
        "SIGUSR1",
        "signals SIGUSR1",
        PAIR,
        script=_WAIT,
        act=_user_signal,
        differs=("user signal",),
    ),
]


_FAIL_ONCE: Final = """
say(f"attempt {attempt} of {rank}")
say(f"attempt {attempt} of {rank}", sys.stderr)
together()
raise SystemExit(attempt < "2" and rank == "1")
"""

_FAILS_LATER: Final = """
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
together()
if rank == "1":
    say("leaving")
    raise SystemExit(7)
while True:
    signal.pause()
"""

_ERROR_FILE: Final = """
with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
    json.dump({"message": {"message": "ValueError: a fish", "extraInfo": {
        "py_callstack": "Traceback (most recent call last):\\n  in a pond\\nValueError: a fish\\n",
        "timestamp": "1700000000"}}}, file)
raise SystemExit(1)
"""

FAILURES: Final = [
    Row("an exit status", "failure", "--standalone", script="raise SystemExit(7)"),
    Row("one of two fails", "failure", PAIR, script=_FAILS_LATER),
    Row("a signal", "failure", "--standalone", script="os.kill(os.getpid(), signal.SIGSEGV)"),
    Row("an exception", "failure", "--standalone -t 3 --log-dir {logs}",
        script="raise ValueError('@@ a fish')", differs=("captured exception",)),
    Row("restarts", "max-restarts log-dir", PAIR + "--max-restarts 2 -t 3 --log-dir {logs}",
        script=_FAIL_ONCE),
    Row("restarts spent", "max-restarts failure", "--standalone --max-restarts 1",
        script="raise SystemExit(3)"),
    Row("an error file", "error-file TORCHELASTIC_ERROR_FILE", "--standalone --log-dir {logs}",
        script=_ERROR_FILE, env={"TORCHELASTIC_ERROR_FILE": "{logs}/error.json"}),
    Row("@record", "record", "--standalone --log-dir {logs}", script="""
from torch.distributed.elastic.multiprocessing.errors import record
@record
def main():
    raise KeyError("fish")
main()
"""),
]  # fmt: skip
