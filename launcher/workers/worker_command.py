"""The environment and the command line of each worker, as torchrun defines them."""

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from string import Template

from ...errors import UsageError
from ...rendezvous.protocol.messages import Assignment
from ..machine.accelerators import name_mig_devices
from ..machine.cpu_limit import read_cpu_limit
from ..machine.worker_count import omp_num_threads
from ..options import LaunchOptions, ScriptMode
from ..stacks.flight_recorder import VARIABLES as RECORDER_VARIABLES
from .smaller_parts import environment

_RUN_PATH = (
    "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
)

_OF_WORKER = (
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK"),
    *("WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    *("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_ERROR_FILE"),
)


def worker_python(environ: Mapping[str, str]) -> str:
    """Return the interpreter of the workers: ``PYTHON_EXEC``, else that of this process."""
    return environ.get("PYTHON_EXEC") or sys.executable


def check_interpreter(environ: Mapping[str, str]) -> None:
    """Raise ``UsageError`` if ``PYTHON_EXEC`` cannot start a worker."""
    python = environ.get("PYTHON_EXEC")
    if not python:
        return
    if shutil.which(python) is None:
        raise UsageError(
            f"PYTHON_EXEC was given {python!r}, which is not a program on the PATH or not "
            "executable; expected the path of a Python interpreter."
        )


def worker_environ(options: LaunchOptions, local_world_size: int) -> dict[str, str]:
    """Return the agent's environment with the variables for every worker of this node."""
    environ = dict(os.environ)
    if "OMP_NUM_THREADS" not in environ:
        limit = read_cpu_limit() if local_world_size == 1 else None
        threads = omp_num_threads(environ, local_world_size, limit)
        if threads is not None:
            environ["OMP_NUM_THREADS"] = threads
    if not options.virtual_local_rank:
        return environ
    return name_mig_devices(environ)


class WorkerCommands:
    """Builds the command line and the environment of every worker of this node.

    Raises:
        UsageError: If ``--virtual-local-rank`` has fewer visible devices than workers.
    """

    def __init__(
        self, options: LaunchOptions, local_world_size: int, environ: Mapping[str, str]
    ) -> None:
        self.options = options
        self.local_world_size = local_world_size
        self.environ = environ
        """The environment to which the variables of a worker are added."""
        self.devices = virtual_devices(options.virtual_local_rank, local_world_size, environ)

    def argv(self, local_rank: int) -> tuple[str, ...]:
        """Return the command line of a worker; arguments may contain ``${local_rank}``."""
        options = self.options
        python = worker_python(os.environ)
        match options.mode:
            case ScriptMode.SCRIPT:
                head = [python, "-u", options.script]
            case ScriptMode.MODULE:
                head = [python, "-u", "-m", options.script]
            case ScriptMode.COMMAND:
                head = [options.script]
            case ScriptMode.RUN_PATH:
                head = [python, "-u", "-c", _RUN_PATH, options.script]
        arguments = (
            Template(argument).safe_substitute(local_rank=str(local_rank))
            for argument in options.script_args
        )
        return (*head, *arguments)

    @property
    def capture_errors(self) -> bool:
        """Whether the workers write the exception that ends them to their error files."""
        if not self.options.capture_errors or self.options.mode is ScriptMode.COMMAND:
            return False
        # The command of an interpreter's wrapper, e.g. a profiler, is not changed.
        return os.path.basename(worker_python(os.environ)).startswith(("python", "pypy"))

    def store_argv(self, assignment: Assignment) -> tuple[str, ...]:
        """Return the command line of the store process of a round, for the node of rank 0."""
        python = worker_python(os.environ)
        program = str(Path(__file__).parents[1] / "processes" / "store_process.py")
        return (python, "-u", program, assignment.master_addr, str(assignment.master_port))

    def job_env(self) -> dict[str, str]:
        """Return the variables that are the same for every worker in every round."""
        rendezvous = self.options.rendezvous
        given = {
            "ROLE_NAME": self.options.role,
            "LOCAL_WORLD_SIZE": self.local_world_size,
            "TORCHELASTIC_MAX_RESTARTS": rendezvous.max_restarts,
            "TORCHELASTIC_RUN_ID": rendezvous.job_id,
            # False: rank 0 hosts the store, as under srun. The agent never hosts it: no torch here.
            "TORCHELASTIC_USE_AGENT_STORE": self.options.separate_store,
            # Needed by a worker that starts processes with torch's own PContext.
            "TORCHELASTIC_SIGNALS_TO_HANDLE": ",".join(s.name for s in self.options.signals),
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": self.environ.get(
                "TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"
            ),
        }
        for name in ("OMP_NUM_THREADS", "TORCHELASTIC_TIMER_FILE", *RECORDER_VARIABLES):
            if name in self.environ:
                given[name] = self.environ[name]
        return {name: str(value) for name, value in given.items()}

    @property
    def own_variables(self) -> tuple[str, ...]:
        """The variables that ``env`` adds to ``job_env``."""
        return (*_OF_WORKER, *self.devices[0]) if self.devices else _OF_WORKER

    def env(self, assignment: Assignment, local_rank: int, error_file: str) -> dict[str, str]:
        """Return the variables of a worker that are added to the agent's own environment."""
        given = {
            "RANK": assignment.rank_offset + local_rank,
            "LOCAL_RANK": 0 if self.devices else local_rank,
            "GROUP_RANK": assignment.node_rank,
            "ROLE_RANK": assignment.role_rank_offset + local_rank,
            "WORLD_SIZE": assignment.world_size,
            "GROUP_WORLD_SIZE": assignment.nodes,
            "ROLE_WORLD_SIZE": assignment.role_world_size,
            "MASTER_ADDR": assignment.master_addr,
            "MASTER_PORT": assignment.master_port,
            "TORCHELASTIC_RESTART_COUNT": assignment.restarts,
            "TORCHELASTIC_ERROR_FILE": error_file,
        }
        env = self.job_env() | {name: str(value) for name, value in given.items()}
        env |= environment(assignment.carried)
        if self.devices:
            env |= self.devices[local_rank]
        return env


def virtual_devices(
    virtual_local_rank: bool, local_world_size: int, environ: Mapping[str, str]
) -> tuple[Mapping[str, str], ...]:
    """Return the variables that show each worker one device; empty if not requested.

    The device is the worker's own entry of ``HIP_VISIBLE_DEVICES``, which on ROCm overrides
    ``CUDA_VISIBLE_DEVICES``; if it is not set, the entry of the latter. Each variable that was set
    is set to that entry, and ``CUDA_VISIBLE_DEVICES`` always is. Raises ``UsageError`` if there are
    fewer visible devices than workers.
    """
    if not virtual_local_rank:
        return ()
    names = ["CUDA_VISIBLE_DEVICES"]
    if environ.get("HIP_VISIBLE_DEVICES"):
        names.insert(0, "HIP_VISIBLE_DEVICES")
    visible = environ.get(names[0])
    if visible is None:
        return tuple({names[0]: str(rank)} for rank in range(local_world_size))
    devices = [device.strip() for device in visible.split(",")]
    if len(devices) < local_world_size:
        raise UsageError(
            f"--virtual-local-rank gives each of the {local_world_size} workers one device of "
            f"{names[0]}={visible!r}, which lists {len(devices)}."
        )
    return tuple(dict.fromkeys(names, device) for device in devices[:local_world_size])
