"""``ft-run script.py``: from the options to the exit status of this node."""

import gc
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from ... import exit_codes
from ...errors import NoProcessError
from ...events.event import Remark, Severity
from ...rendezvous.trust.source import read_trust
from ...values import replace
from ..agent.parts import NodeParts
from ..agent.preload import start_preload
from ..agent.signals import ignore
from ..agent.worker_command import WorkerCommands, check_interpreter, worker_environ
from ..logs.log_dir import LogDir, check_log_dir
from ..logs.relay_client import RelayClient
from ..machine.shortage import too_few_files
from ..machine.worker_count import WorkerCount, resolve_worker_count
from ..options import LaunchOptions, ScriptMode
from ..processes.tree import require_own_proc
from ..reporting.display import Display
from ..spawner.client import SpawnerClient

if TYPE_CHECKING:
    from ..agent.agent import Agent
    from ..agent.file_timers import FileTimers


def launch(options: LaunchOptions, conclude: "Callable[[Agent], None] | None" = None) -> int:
    """Run a job's workers on this node; return the exit status.

    Args:
        options: what to run.
        conclude: is called with the agent when the job is over for this node.

    Raises:
        FtRunError: what a user can cause: one sentence and an exit code.
    """
    require_own_proc()
    if options.checks is not None:
        from ..preflight.report_file import check_report_path

        check_report_path(options.checks.report)
        check_log_dir(options.checks.log_dir)
    parts = _parts(options)
    status = exit_codes.WORKERS_FAILED
    try:
        status = _run(_preloaded(parts), conclude)
    finally:
        _close(parts, status)
    return status


def _parts(options: LaunchOptions) -> NodeParts:
    """Find out what to start, and fork the processes that must exist before the event loop."""
    if (too_few := too_few_files()) is not None:
        raise NoProcessError(f"{too_few}.")
    rendezvous = options.rendezvous
    # A node by itself opens no port.
    trust = read_trust(rendezvous.trust) if rendezvous.endpoint is not None else None
    display = Display()
    environ = dict(os.environ)
    count = resolve_worker_count(
        options.nproc_per_node,
        options.accelerator,
        environ,
        virtual_local_rank=options.virtual_local_rank,
    )
    if options.checks is not None and options.checks.spec.floors:
        # The number of workers that ``--nproc-per-node gpu`` means is known from here on.
        from ..cli.check_flags import refuse_floors

        refuse_floors(options.checks.spec, options.accelerator, count.count)
    if options.mode is not ScriptMode.COMMAND:
        check_interpreter(environ)
    environ = worker_environ(options, count.count)
    timers = _file_timers(environ)
    commands = WorkerCommands(options, count.count, environ)
    cpus, gpus_shown = _numa_cpus(options, count), _gpus_shown(options)
    log_dir = LogDir.create(options.logs, options.rendezvous.job_id)
    # Fork before anything starts a thread or loads gRPC, and share what is loaded so far.
    gc.freeze()
    try:
        spawner = SpawnerClient()
        check_spawner = SpawnerClient() if options.checks is not None else None
        relay = RelayClient(display.event) if log_dir.needs_relay else None
    except NoProcessError:
        log_dir.remove_if_unused()
        if timers is not None:
            timers.close()
        raise
    return NodeParts(
        options=options,
        count=count,
        commands=commands,
        cpus=cpus,
        log_dir=log_dir,
        spawner=spawner,
        check_spawner=check_spawner,
        relay=relay,
        display=display,
        timers=timers,
        gpus_shown=gpus_shown,
        trust=trust,
    )


def _gpus_shown(options: LaunchOptions) -> dict[str, str]:
    """Return what checks should find; asked before the event loop, which must not hang."""
    if options.checks is None:
        return {}
    from ..preflight.expected_gpus import shown_gpus

    return shown_gpus(options.accelerator)


def _preloaded(parts: NodeParts) -> NodeParts:
    """Start a fork server if one was asked for; return the parts without it if it is of no use."""
    remark = start_preload(parts.options, parts.commands, os.environ, parts.spawner)
    if remark is None:
        return parts
    parts.display.event(Remark(remark, Severity.WARNING))
    return replace(parts, options=replace(parts.options, preload=()))


def _close(parts: NodeParts, status: int) -> None:
    """End the processes that were forked; keep log files that the user may look for."""
    parts.display.close()
    ignore(parts.options.signals)
    if parts.check_spawner is not None:
        parts.check_spawner.close()
    parts.spawner.close()
    if parts.timers is not None:
        parts.timers.close()
    if status == exit_codes.SUCCESS:
        parts.log_dir.remove_if_temporary()
    parts.log_dir.remove_if_unused()


def _run(parts: NodeParts, conclude: "Callable[[Agent], None] | None") -> int:
    from .. import startup

    with startup.loading():
        from ..agent.run import run_node

    startup.quiet_grpc()
    return startup.run(run_node(parts, conclude))


def _file_timers(environ: dict[str, str]) -> "FileTimers | None":
    if environ.get("TORCHELASTIC_ENABLE_FILE_TIMER") != "1":
        return None  # nor is anything loaded for it
    from ..agent.file_timers import make_file_timers

    return make_file_timers(environ)


def _numa_cpus(options: LaunchOptions, count: WorkerCount) -> tuple[frozenset[int], ...] | None:
    if options.numa_binding is None:
        return None
    from ..machine.accelerators import find_devices
    from ..machine.numa import plan_numa_binding

    is_xpu = options.nproc_per_node == "xpu"
    devices = find_devices("xpu" if is_xpu else options.accelerator, os.environ)
    return plan_numa_binding(options.numa_binding, devices, count.count)
