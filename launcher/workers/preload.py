"""``--preload``: decides whether workers can be forked here, and starts the fork server."""

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ...errors import UsageError
from ...events.preload import PreloadSource
from ...training.worker.tuned_values import OMP_NUM_THREADS
from ..flags.values import AUTO_PRELOAD, shown
from ..options import LaunchOptions, ScriptMode
from ..spawner.client import SpawnerClient
from .worker_command import WorkerCommands

if TYPE_CHECKING:
    from .tune_file import TuneFile


def start_preload(
    options: LaunchOptions,
    commands: WorkerCommands,
    environ: Mapping[str, str],
    spawner: SpawnerClient,
    tune_file: "TuneFile | None" = None,
) -> str | None:
    """Have the spawner start a fork server, if ``--preload`` was given and it can be used.

    With ``auto`` it is started only if the modules are known from an earlier start.

    Returns:
        Why no fork server is started although ``--preload`` was given; None otherwise.

    Raises:
        UsageError: no worker would find a module.
    """
    if not options.preload:
        return None
    if options.mode is ScriptMode.COMMAND:
        return "--preload is ignored with --no-python: the program is started as it is"
    if remark := other_interpreter(environ):
        return remark
    if options.script.startswith("-"):
        return "--preload is ignored: the script is not a file; falling back to normal worker start"
    if options.preload == AUTO_PRELOAD:
        if modules := remembered(tune_file):
            import_modules(modules, PreloadSource.TUNE_FILE, commands, spawner, tune_file)
        return None
    refuse_missing_modules(options.preload, options.script)
    if not options.only_checks:  # otherwise only check workers are started
        import_modules(options.preload, PreloadSource.OPTION, commands, spawner, tune_file)
    return None


def remembered(tune_file: "TuneFile | None") -> tuple[str, ...]:
    """Return the modules that an earlier start of the job has learnt."""
    return tune_file.values.preload if tune_file is not None else ()


def import_modules(
    modules: Sequence[str],
    source: PreloadSource,
    commands: WorkerCommands,
    spawner: SpawnerClient,
    tune_file: "TuneFile | None",
) -> None:
    """Have the spawner start a fork server for the workers."""
    env, settings = commands.job_env(), tune_file.values.settings if tune_file is not None else ()
    if (threads := dict(settings).get(OMP_NUM_THREADS)) and OMP_NUM_THREADS not in os.environ:
        env[OMP_NUM_THREADS] = str(threads)  # which torch reads when it is imported
    spawner.preload(
        modules,
        commands.argv(0),
        env,
        differing=commands.own_variables,
        source=source,
        count=commands.local_world_size,
    )


def refuse_missing_modules(modules: Sequence[str], script: str = "") -> None:
    """Reject a module that no worker would find, most likely because of a spelling error.

    Only the top-level package is looked up, which imports nothing.

    Args:
        modules: the value of ``--preload``.
        script: the workers' script; modules may be beside it or, if it is an archive, in it.

    Raises:
        UsageError: there is no such package.
    """
    from importlib.machinery import PathFinder
    from importlib.util import find_spec

    if sys.flags.ignore_environment or sys.flags.no_user_site:
        return  # workers search more folders than this process
    folders = [os.getcwd(), script, os.path.dirname(os.path.realpath(script)), *sys.path]
    for module in modules:
        package = module.partition(".")[0]
        if package in sys.modules or PathFinder.find_spec(package, folders) is not None:
            continue
        if find_spec(package) is None:  # not built in, and unknown to all installed finders
            raise UsageError(
                f"--preload was given {shown(module)}, but Python finds no module "
                f"{shown(package)}; expected a module that {sys.executable} can import, e.g. "
                "torch."
            )


def other_interpreter(environ: Mapping[str, str]) -> str | None:
    """Return why workers cannot be forked, if their interpreter is another one."""
    python = environ.get("PYTHON_EXEC")
    if not python or _is_this_interpreter(python):
        return None
    return (
        f"--preload is ignored: PYTHON_EXEC={python} is another interpreter than that of "
        f"ft-run, {sys.executable}; falling back to normal worker start"
    )


def _is_this_interpreter(python: str) -> bool:
    """Return whether ``python`` is the interpreter of ft-run, under any of its names in its folder.

    The folder matters: two virtual environments link to the same file.
    """
    found = os.path.abspath(shutil.which(python) or python)
    same_folder = os.path.samefile(os.path.dirname(found), os.path.dirname(sys.executable))
    return same_folder and os.path.samefile(found, sys.executable)
