"""Starting a job from Python, with the names of ``torch.distributed.launcher.api``.

    from ft_run.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=2)
    results = elastic_launch(config, train)(0.1)      # a function: {rank: what it returned}
    elastic_launch(config, "train.py")("--lr", "0.1")  # a script or a program: {}

The agent is a separate process, so the calling program may have threads, torch and gRPC loaded; it
ends with the caller. Importing this module does not import torch. A function and its results are
passed through files that only this user can read, on this node, never over the network
(``exchange``).
"""

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NoReturn

from ... import exit_codes
from ...errors import (
    FtRunError,
    RefusedError,
    RendezvousError,
    SpawnerLostError,
    UsageError,
)
from ..processes import RUN_MODULE
from .config import LaunchConfig, command_line
from .exchange import read_outcome, read_results, write_call

Entrypoint = Callable[..., Any] | str


@dataclass(frozen=True, slots=True)
class ProcessFailure:
    """One failure of the last round, with the names of torch's class and additional ones."""

    local_rank: int
    pid: int
    exitcode: int
    """As in ``subprocess``: the exit code, or minus the signal number."""
    error_file: str
    """Path of the ``@record`` file on the worker's host; empty if there is none."""
    message: str
    """Node, rank and reason, in one phrase."""
    timestamp: int
    """Unix time of the failure by the clock of its host, in seconds."""
    rank: int
    """-1 for a lost node."""
    node_rank: int
    host: str
    error_file_data: dict[str, Any] = field(
        default_factory=lambda: {"message": "<NONE>"}, compare=False
    )
    """The content of the ``@record`` file, with a long traceback shortened; without a file, the
    same as in torch."""

    def signal_name(self) -> str:
        """Return the name of the signal that ended the worker; ``<N/A>`` if none did."""
        with suppress(ValueError):
            return signal.Signals(-self.exitcode).name
        return "<N/A>"

    def timestamp_isoformat(self) -> str:
        """Return the time in torch's format, ``YYYY-MM-DD_HH:MM:SS``."""
        return datetime.fromtimestamp(self.timestamp).isoformat(sep="_")


class ChildFailedError(FtRunError):
    """Raised if workers failed and no restart is left, or none would help.

    ``failures`` contains the failures of the last round on all nodes by rank, the root cause first;
    the key of a lost node is -1 minus its node rank. It is the same on every node.
    """

    exit_code = exit_codes.WORKERS_FAILED

    def __init__(self, name: str, failures: Mapping[int, ProcessFailure], why: str) -> None:
        super().__init__(f"{name} failed: {why}")
        self.name = name
        self.failures = dict(failures)

    def get_first_failure(self) -> tuple[int, ProcessFailure]:
        """Return the root cause with its rank.

        Raises:
            LookupError: If the job failed before any worker did.
        """
        for rank, failure in self.failures.items():
            return rank, failure
        raise LookupError(str(self))


class JobInterruptedError(FtRunError):
    """Raised if a signal ended the agent; ``exit_code`` is 128 plus the signal number."""

    def __init__(self, number: int) -> None:
        self.exit_code = exit_codes.SIGNAL_BASE + number
        name = signal.Signals(number).name
        super().__init__(f"{name} ended the workers of this node before the job was over.")


class elastic_launch:  # noqa: N801 - torch's name
    """Starts a job's workers on this node; call it with the arguments of the entry point."""

    def __init__(self, config: LaunchConfig, entrypoint: Entrypoint) -> None:
        """Initialize.

        Args:
            config: the same on every node.
            entrypoint: a function that can be pickled (from a module, or from a program that starts
                under ``if __name__ == "__main__"``); the path of a Python file, run as ``python -u
                FILE``; or any other program, run as it is.
        """
        self._config = config
        self._entrypoint = entrypoint

    def __call__(self, *args: Any) -> dict[int, Any]:
        """Run the job until it is over; see ``launch_agent``."""
        return launch_agent(self._config, self._entrypoint, list(args))


def launch_agent(config: LaunchConfig, entrypoint: Entrypoint, args: list[Any]) -> dict[int, Any]:
    """Run a job's workers on this node until the job is over.

    Returns:
        The function's return values by rank, for the workers of this node; empty for a script, a
        program, or a node that was a spare at the end.

    Raises:
        UsageError: If the configuration or the entry point is invalid.
        ChildFailedError: If workers failed and no restart is left.
        RendezvousError: If there is no master, or there are too few nodes in time.
        RefusedError: If the master refuses this node.
        SpawnerLostError: If the process that starts the workers was killed.
        JobInterruptedError: If a signal ended the agent.
        KeyboardInterrupt: on Ctrl-C, after the workers have been stopped in order.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise RuntimeError(
            "a worker imports the program that launched it, and ran elastic_launch again;"
            ' expected the launch under `if __name__ == "__main__":`.'
        )
    folder = tempfile.mkdtemp(prefix="ft-run-api-")
    try:
        words = [*command_line(config), *_program(folder, entrypoint, args)]
        name = _name(entrypoint)
        status = _run([folder, str(os.getpid()), name, *words])
        outcome = read_outcome(folder)
        if outcome is None:
            _raise_without_outcome(status)
        if status != exit_codes.SUCCESS:
            _raise(status, outcome, name)
        if isinstance(entrypoint, str):
            return {}
        return read_results(folder, {int(r): pid for r, pid in outcome["workers"].items()})
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _program(folder: str, entrypoint: Entrypoint, args: list[Any]) -> list[str]:
    if isinstance(entrypoint, str):
        how = [] if entrypoint.endswith(".py") else ["--no-python"]
        return [*how, "--", entrypoint, *map(_word, args)]
    _write_call(folder, entrypoint, args)
    # Not PYTHON_EXEC: the interpreter that wrote the pickle has to read it.
    worker = [sys.executable, "-u", RUN_MODULE, "api.worker_main", folder]
    return ["--no-python", "--", *worker]


def _word(argument: Any) -> str:
    """Return an argument of a script as text; torch's API accepts numbers too."""
    return os.fsdecode(argument) if isinstance(argument, bytes | os.PathLike) else str(argument)


def _write_call(folder: str, function: Callable[..., Any], args: list[Any]) -> None:
    name = _name(function)
    main = sys.modules["__main__"]
    home = getattr(main, "__spec__", None) or getattr(main, "__file__", None)
    if getattr(function, "__module__", None) == "__main__" and home is None:
        raise UsageError(
            f"the function {name} was typed into an interpreter or a notebook, where no worker can"
            " import it from; expected a function of a module."
        )
    try:
        write_call(folder, function, args)
    except Exception as error:
        raise UsageError(
            f"the function {name} with its arguments cannot be pickled for the workers ({error});"
            " expected a function at the top level of a module, and plain arguments."
        ) from error


def _run(words: list[str]) -> int:
    command = [sys.executable, RUN_MODULE, "api.agent_main", *words]
    with subprocess.Popen(command) as agent:
        try:
            return agent.wait()
        except BaseException:
            # A terminal's Ctrl-C has reached the agent too; a SIGTERM after it changes nothing.
            agent.terminate()
            try:
                agent.wait()
            except BaseException:  # a second Ctrl-C: the workers must not be left either
                agent.kill()
            raise


def _raise(status: int, outcome: dict[str, Any], name: str) -> NoReturn:
    sentence = outcome.get("sentence", "")
    match status:
        case exit_codes.USAGE:
            raise UsageError(sentence)
        case exit_codes.RENDEZVOUS_FAILED:
            raise RendezvousError(sentence)
        case exit_codes.REFUSED:
            raise RefusedError(sentence)
        case exit_codes.WORKERS_FAILED if not outcome["failures"]:
            raise SpawnerLostError(sentence)
    if status > exit_codes.SIGNAL_BASE:
        raise JobInterruptedError(status - exit_codes.SIGNAL_BASE)
    error = ChildFailedError(name, dict(map(_failure, outcome["failures"])), sentence)
    error.exit_code = status
    raise error


def _raise_without_outcome(status: int) -> NoReturn:
    if status < 0:
        raise JobInterruptedError(-status)
    raise SpawnerLostError(f"the agent failed with exit code {status}; its traceback is above.")


def _failure(record: dict[str, Any]) -> tuple[int, ProcessFailure]:
    rank, node_rank = record["rank"], record["node_rank"]
    failure = ProcessFailure(
        local_rank=record["local_rank"],
        pid=record["pid"],
        exitcode=record["exit_code"],
        error_file=record["error_file"],
        message=record["summary"],
        timestamp=record["time_s"],
        rank=rank,
        node_rank=node_rank,
        host=record["host"],
        **_error_file_data(record["error_json"]),
    )
    return (rank if rank >= 0 else -1 - node_rank), failure


def _error_file_data(error_json: str) -> dict[str, Any]:
    return {"error_file_data": json.loads(error_json)} if error_json else {}


def _name(entrypoint: Entrypoint) -> str:
    if isinstance(entrypoint, str):
        return entrypoint
    return str(getattr(entrypoint, "__qualname__", type(entrypoint).__name__))
