"""The check workers of this node: as many as will train, on the same devices."""

import os
from collections.abc import Mapping
from typing import Final

from ...checks.worker_config import CheckWorkerConfig
from ..options import LaunchOptions, ScriptMode
from ..preflight.crew import CrewPlan
from ..preflight.expected_gpus import gpus_asked_by
from .worker_command import WorkerCommands

_WITH_FILE: Final = (ScriptMode.SCRIPT, ScriptMode.RUN_PATH)


def crew_plan(
    node: str,
    options: LaunchOptions,
    commands: WorkerCommands,
    gpus_shown: Mapping[str, str],
    cpus: tuple[frozenset[int], ...] | None = None,
) -> CrewPlan:
    """Return the configuration of the check workers.

    Args:
        node: its identity, as records have it.
        options: of the job.
        commands: of the workers that will train.
        gpus_shown: the kinds of GPUs that the machine shows, and how they were counted.
        cpus: the CPUs that each worker is bound to.
    """
    only_checked = options.checks.log_dir if options.checks is not None else None
    log_dir = options.logs.log_dir or only_checked
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
        python=commands.python,
        visible_devices=commands.devices,
        env=commands.omp_threads,
        cpus=cpus,
        preload=options.preload,
    )
