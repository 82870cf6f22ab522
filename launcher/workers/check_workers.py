"""The check workers of this node: the same number as training workers, on the same devices."""

import os
import sys
from collections.abc import Mapping
from typing import Final

from ...checks.worker_config import CheckWorkerConfig
from ...events.event import Severity
from ...events.preload import PreloadChanged
from ..flags.values import AUTO_PRELOAD
from ..machine.accelerators import gpus_asked_by
from ..options import LaunchOptions, ScriptMode
from ..preflight.crew import CheckCrew, CrewPlan
from ..reporting.display import Display
from ..spawner.client import SpawnerClient
from ..spawner.messages import ForkServerEvent
from .worker_command import worker_python
from .worker_starter import WorkerStarter

_WITH_FILE: Final = (ScriptMode.SCRIPT, ScriptMode.RUN_PATH)


def crew_plan(
    node: str,
    options: LaunchOptions,
    starter: WorkerStarter,
    gpus_shown: Mapping[str, str],
) -> CrewPlan:
    """Return the configuration of the check workers."""
    commands = starter.commands
    threads = commands.environ.get("OMP_NUM_THREADS")
    is_program = options.mode is ScriptMode.COMMAND
    only_checked = options.checks.log_dir if options.checks is not None else None
    log_dir = only_checked or options.logs.log_dir
    config = CheckWorkerConfig(
        node=node,
        local_world_size=commands.local_world_size,
        accelerator=options.accelerator,
        gpus_asked_by=gpus_asked_by(options.nproc_per_node, options.accelerator),
        gpus_shown=gpus_shown,
        log_dir=log_dir if log_dir != os.devnull else None,
        script=(options.script or None) if options.mode in _WITH_FILE else None,
    )
    return CrewPlan(
        config,
        python=sys.executable if is_program else worker_python(os.environ),
        visible_devices=commands.devices,
        env={"OMP_NUM_THREADS": threads} if threads is not None else {},
        cpus=starter.cpus,
        preload=options.preload if options.preload != AUTO_PRELOAD else (),
    )


def check_crew(
    options: LaunchOptions,
    display: Display,
    spawner: SpawnerClient,
    starter: WorkerStarter,
    gpus_shown: Mapping[str, str],
    node: str,
) -> CheckCrew:
    """Return the check workers, which are not started yet. ``spawner`` must start no others."""

    def fork_server_changed(event: ForkServerEvent) -> None:
        # A preload that fails also fails for the training workers: it is reported once.
        changed = PreloadChanged(event.state, options.preload, event.text, is_of_checks=True)
        display.event(changed, None if options.only_checks else Severity.DEBUG)

    plan = crew_plan(node, options, starter, gpus_shown)
    return CheckCrew(spawner, plan, fork_server_changed)
