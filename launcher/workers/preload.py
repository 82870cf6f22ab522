"""``--preload``: whether workers can be forked here, from which modules, and the result."""

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from functools import reduce
from importlib.machinery import PathFinder
from importlib.util import find_spec
from operator import and_

from ...errors import UsageError
from ...events.event import Event
from ...events.preload import NothingToPreload, PreloadChanged, PreloadSource, PreloadState
from ...training.worker.imported import names_of
from ..flags.values import AUTO_PRELOAD, shown
from ..options import LaunchOptions, ScriptMode
from ..spawner.messages import ForkServerEvent
from .worker_group import WorkerGroup
from .worker_starter import WorkerStarter


def start_preload(
    options: LaunchOptions, starter: WorkerStarter, remembered: Sequence[str]
) -> str | None:
    """Have the spawner start a fork server, if ``--preload`` was given and it can be used.

    With ``auto`` it is started only if the modules are known from an earlier start. Returns why it
    is not started although ``--preload`` was given; None otherwise.

    Raises:
        UsageError: If no worker would find a module.
    """
    if not options.preload:
        return None
    if options.mode is ScriptMode.COMMAND:
        return "--preload is ignored with --no-python: the program is started as it is"
    if remark := _other_interpreter():
        return remark
    if options.script.startswith("-"):
        return "--preload is ignored: the script is not a file; falling back to normal worker start"
    if options.preload == AUTO_PRELOAD:
        if remembered:
            import_modules(remembered, PreloadSource.TUNE_FILE, starter)
        return None
    _refuse_missing_modules(options.preload, options.script)
    if not options.only_checks:  # else only check workers are started
        import_modules(options.preload, PreloadSource.OPTION, starter)
    return None


def import_modules(modules: Sequence[str], source: PreloadSource, starter: WorkerStarter) -> None:
    """Have the spawner start a fork server for the workers."""
    commands = starter.commands
    starter.spawner.preload(
        modules,
        commands.argv(0),
        commands.job_env(),
        differing=commands.own_variables,
        source=source,
    )


def _refuse_missing_modules(modules: Sequence[str], script: str) -> None:
    """Raise ``UsageError`` for a module that no worker would find, e.g. a misspelled one.

    Only the top-level package is looked up, which imports nothing. Modules may be next to the
    script or, if it is an archive, in it.
    """
    if sys.flags.ignore_environment or sys.flags.no_user_site:
        return  # workers search more directories than this process
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


def _other_interpreter() -> str | None:
    """Return why workers cannot be forked, if they have a different interpreter."""
    python = os.environ.get("PYTHON_EXEC")
    if not python or _is_this_interpreter(python):
        return None
    return (
        f"--preload is ignored: PYTHON_EXEC={python} is another interpreter than that of "
        f"ft-run, {sys.executable}; falling back to normal worker start"
    )


def _is_this_interpreter(python: str) -> bool:
    """Return whether ``python`` is a name of ft-run's interpreter in the same directory.

    The directory matters: two virtual environments link to the same file.
    """
    found = os.path.abspath(shutil.which(python) or python)
    same_folder = os.path.samefile(os.path.dirname(found), os.path.dirname(sys.executable))
    return same_folder and os.path.samefile(found, sys.executable)


class Preload:
    """The modules that the fork server imports, and its reports."""

    def __init__(
        self,
        options: LaunchOptions,
        starter: WorkerStarter,
        note: Callable[[Event], None],
        keep: Callable[[tuple[str, ...]], None],
        remembered: tuple[str, ...],
    ) -> None:
        self._starter, self._note, self._keep = starter, note, keep
        self._source, self._modules = PreloadSource.OPTION, options.preload
        self._may_learn = False
        if options.preload == AUTO_PRELOAD:
            self._source, self._modules = PreloadSource.TUNE_FILE, remembered
            self._may_learn = not self._modules

    def learn(self, group: WorkerGroup) -> None:
        """Preload the modules that all workers here had imported by their first step, once."""
        if not self._may_learn:
            return
        self._may_learn = False
        found = [watch.imported() for watch in group.watches if watch is not None]
        self._source = PreloadSource.WORKERS
        self._modules = names_of(reduce(and_, filter(None, found), -1) if any(found) else 0)
        if self._modules:
            import_modules(self._modules, self._source, self._starter)
        else:
            self._note(NothingToPreload(group.assignment.round, group.assignment.node_rank))

    def changed(self, event: ForkServerEvent) -> None:
        """Report a change of the fork server."""
        self._note(PreloadChanged(event.state, self._modules, event.text, source=self._source))
        if self._source is not PreloadSource.OPTION:
            if event.state is PreloadState.READY:
                self._keep(self._modules)
            elif event.state is PreloadState.FAILED:
                self._keep(())
