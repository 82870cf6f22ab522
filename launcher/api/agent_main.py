"""The agent of ``elastic_launch``, in a separate process.

Command: ``python run_module.py api.agent_main FOLDER PID NAME [OPTIONS] SCRIPT [ARGS]...``.
The calling program may have threads and have loaded torch and gRPC; the agent forks, so it must not
have any of them. When the caller dies, the agent stops the job in order. It writes the outcome of
the job to the directory.
"""

import os
import shutil
import signal
from collections.abc import Sequence
from typing import Any

from msgspec.structs import asdict, replace

from ... import exit_codes
from ...errors import FtRunError
from ...rendezvous.protocol.failure import Failure
from ..agent.agent import Agent
from ..cli.parse import parse
from ..commands.launch import launch
from ..options import LaunchOptions
from ..processes.prctl import PR_SET_PDEATHSIG, prctl
from ..startup import forget_token, open_standard_streams
from .exchange import write_outcome

_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


def main(words: Sequence[str]) -> int:
    """Run a job on this node; return the exit code.

    Args:
        words: the directory of the call, the caller's process ID, the entry point's name for the
            report, and arguments of ``ft-run``. ``PET_*`` variables are ignored, as in torch's API.
    """
    folder, pid, name, *argv = words
    caller = int(pid)
    open_standard_streams()
    _end_with(caller)
    outcome: dict[str, Any] = {"failures": [], "workers": {}}
    try:
        status = _launch(name, argv, outcome)
    except FtRunError as error:
        status, outcome["sentence"] = error.exit_code, error.sentence
    except KeyboardInterrupt:  # before the agent has taken over the signals
        status = exit_codes.SIGNAL_BASE + signal.SIGINT
    outcome["exit_code"] = status
    if os.getppid() == caller:
        write_outcome(folder, outcome)
    else:  # the caller cannot read it or clean up any more
        shutil.rmtree(folder, ignore_errors=True)
    return status


def _launch(name: str, argv: Sequence[str], outcome: dict[str, Any]) -> int:
    environ = {key: text for key, text in os.environ.items() if not key.startswith("PET_")}
    options = parse(argv, environ)
    forget_token()
    assert isinstance(options, LaunchOptions)

    def conclude(agent: Agent) -> None:
        outcome["workers"] = agent.last_workers
        verdict = agent.verdict
        if verdict is not None:
            outcome["sentence"] = verdict.sentence
            outcome["failures"] = [_plain(failure) for failure in verdict.failures]

    return launch(replace(options, name=name), conclude)


def _plain(failure: Failure) -> dict[str, Any]:
    return {**asdict(failure), "kind": failure.kind.name, "summary": failure.summary()}


def _end_with(caller: int) -> None:
    """Receive SIGTERM when the calling thread ends, even if it blocked or ignored this signal."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
    if signal.getsignal(signal.SIGTERM) is signal.SIG_IGN:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != caller:  # it died before the line above
        os.kill(os.getpid(), signal.SIGTERM)
