"""``ft-run script.py``: from the options to the exit code of this node."""

import gc
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from ... import exit_codes
from ...errors import FtRunError, NoProcessError
from ...events.event import LogMessage, Severity
from ...rendezvous.trust.source import read_trust
from .. import startup
from ..agent.agent import Agent
from ..agent.run import run_node
from ..agent.signals import ignore
from ..cli.check_flags import refuse_minimums
from ..history.recorder import Recorder, attempt_of, line_of
from ..logs.log_dir import LogDir, check_log_dir
from ..logs.relay_client import RelayClient
from ..machine.accelerators import find_devices, nvlink_domain, shown_gpus
from ..machine.cpu_limit import allowed_cpus
from ..machine.numa import NumaBinding, bind_workers, find_gpu_node, read_topology
from ..machine.nvml import has_driver
from ..machine.shortage import require_grpc_threads, too_few_files
from ..machine.worker_count import WorkerCount, resolve_worker_count
from ..metrics.node_metrics import NodeEndpoint
from ..options import LaunchOptions, ScriptMode
from ..preflight.report_file import check_report_path
from ..processes.tree import require_own_proc
from ..reporting.display import Display
from ..reporting.event_files import EventFiles
from ..reporting.event_log import EventLog
from ..reporting.standard_output import say_last
from ..spawner.client import SpawnerClient
from ..stacks.flight_recorder import record_collectives
from ..tuning.job_values import Tuning
from ..workers.check_workers import check_crew
from ..workers.file_timers import FileTimers, make_file_timers
from ..workers.preload import start_preload
from ..workers.worker_command import WorkerCommands, check_interpreter, worker_environ
from ..workers.worker_starter import WorkerStarter


def run_launch(options: LaunchOptions) -> int:
    """Launch; with JSON on the console, the error that ends it is a record as well."""
    if not options.logs.is_json:
        return launch(options)
    try:
        return launch(options)
    except FtRunError as error:
        recorder = Recorder(options.rendezvous.job_id, attempt_of(os.environ))
        record = recorder.record(LogMessage(error.sentence, Severity.ERROR))
        say_last(line_of({**record, "severity": "error"}).decode().removesuffix("\n"))
        return error.exit_code


def launch(options: LaunchOptions, conclude: Callable[[Agent], None] | None = None) -> int:
    """Run a job's workers on this node; return the exit code.

    All information is collected and all processes are forked before the event loop starts.
    """
    _check_host(options)
    rendezvous = options.rendezvous
    # A single node opens no port.
    trust = read_trust(rendezvous.trust) if rendezvous.endpoint is not None else None
    recorder = Recorder(rendezvous.job_id, attempt_of(os.environ))
    display = Display(recorder=recorder, level=options.logs.level, is_json=options.logs.is_json)
    plan, options = _plan(options), _in_segment(options)
    with (
        ExitStack() as after_all,
        _forked(plan, display, with_checks=options.checks is not None) as (starter, check_spawner),
        _outputs(options, plan, display, recorder) as metrics,
    ):
        if recordings := _recordings(options, plan.environ):
            after_all.callback(shutil.rmtree, recordings, ignore_errors=True)
        options = _preloaded(options, starter, display, plan.tuning.preload)
        new_crew = None
        if check_spawner is not None:
            new_crew = partial(
                check_crew, options, display, check_spawner, starter, plan.gpus_shown
            )
        startup.quiet_grpc()
        if rendezvous.endpoint is not None:
            require_grpc_threads()
        node = run_node(
            options,
            plan.count,
            starter,
            display,
            tuning=plan.tuning,
            new_crew=new_crew,
            trust=trust,
            conclude=conclude,
            metrics=metrics,
        )
        status = startup.run(node)
    # Otherwise keep them: output that a killed relay has not printed is only there.
    if status == exit_codes.SUCCESS and not (starter.relay and starter.relay.was_killed):
        plan.log_dir.remove_if_temporary()
    return status


class _Plan(Struct, frozen=True):
    """Values that are determined before processes are forked."""

    count: WorkerCount
    environ: dict[str, str]
    """The environment of all workers; ``commands`` refers to it."""
    commands: WorkerCommands
    timers: FileTimers | None
    cpus: tuple[frozenset[int], ...] | None
    gpus_shown: dict[str, str]
    tuning: Tuning
    log_dir: LogDir


def _check_host(options: LaunchOptions) -> None:
    require_own_proc()
    if options.checks is not None:
        check_report_path(options.checks.report)
        check_log_dir(options.checks.log_dir)
    if (too_few := too_few_files()) is not None:
        raise NoProcessError(f"{too_few}.")


def _plan(options: LaunchOptions) -> _Plan:
    environ = dict(os.environ)
    count = _worker_count(options, environ)
    if options.mode is not ScriptMode.COMMAND:
        check_interpreter(environ)
    environ = worker_environ(options, count.count)
    return _Plan(
        count=count,
        environ=environ,
        timers=_file_timers(environ),  # which adds a variable
        commands=WorkerCommands(options, count.count, environ),
        cpus=_numa_cpus(options, count),
        gpus_shown=_gpus_shown(options),
        tuning=Tuning.of(options, count.count, environ),
        log_dir=LogDir.create(options.logs, options.rendezvous.job_id),
    )


def _recordings(options: LaunchOptions, environ: dict[str, str]) -> str:
    if options.hang is not None and has_driver():
        with suppress(OSError):  # no space: verdicts rely on stacks alone
            return record_collectives(environ)
    return ""


def _preloaded(
    options: LaunchOptions, starter: WorkerStarter, display: Display, remembered: Sequence[str]
) -> LaunchOptions:
    """Start the fork server of ``--preload``; return the options, without it if it is unusable."""
    remark = start_preload(options, starter, remembered)
    if remark is None:
        return options
    display.event(LogMessage(remark, Severity.WARNING))
    return replace(options, preload=())


@contextmanager
def _forked(
    plan: _Plan, display: Display, *, with_checks: bool
) -> Iterator[tuple[WorkerStarter, SpawnerClient | None]]:
    """Fork the starter of workers, and the spawner of check workers; at the end, close them.

    An unused log directory is removed as well. Raises ``NoProcessError`` if the kernel refuses
    another process.
    """
    with ExitStack() as closing:
        closing.callback(plan.log_dir.remove_if_unused)
        if plan.timers is not None:
            closing.callback(plan.timers.close)
        # Fork before anything starts a thread or loads gRPC, and share the memory of the modules
        # that are loaded by now.
        gc.freeze()
        spawner = SpawnerClient()
        closing.callback(spawner.close)
        check_spawner = None
        if with_checks:
            check_spawner = SpawnerClient()
            closing.callback(check_spawner.close)
        relay = RelayClient(display.event) if plan.log_dir.needs_relay else None
        yield (
            WorkerStarter(
                plan.commands,
                plan.cpus,
                plan.log_dir,
                spawner,
                relay,
                plan.timers,
            ),
            check_spawner,
        )


@contextmanager
def _outputs(
    options: LaunchOptions, plan: _Plan, display: Display, recorder: Recorder
) -> Iterator[NodeEndpoint | None]:
    """Open the agent's outputs besides the console; yield the endpoint of ``--metrics``.

    At the end, also close the console and ignore signals: processes are still to be stopped.
    """
    with ExitStack() as closing:
        if options.event_log_handler == "console":
            log = EventLog(options, plan.commands.argv(0)[0], display.line)
            recorder.add(log.add, log.NAMES)
        closing.callback(ignore, options.signals)
        closing.callback(display.close)
        files = _event_files(options, plan.log_dir, display, recorder)
        if files is not None:
            closing.callback(files.close)
        metrics = _metrics(options, display)
        if metrics is not None:
            closing.callback(metrics.close)
        yield metrics


def _event_files(
    options: LaunchOptions, log_dir: LogDir, display: Display, recorder: Recorder
) -> EventFiles | None:
    folder = log_dir.path if log_dir.keeps_files else None
    if options.logs.events is None and folder is None:
        return None
    files = EventFiles(display, recorder)
    files.open(options.logs.events, folder)
    return files


def _metrics(options: LaunchOptions, display: Display) -> NodeEndpoint | None:
    if options.logs.metrics is None:
        return None
    from ..metrics.opening import open_metrics  # http.server is 15 ms of each start

    server = open_metrics(options.logs.metrics, options.rendezvous.trust, display.event)
    return NodeEndpoint(server) if server is not None else None


def _worker_count(options: LaunchOptions, environ: dict[str, str]) -> WorkerCount:
    count = resolve_worker_count(
        options.nproc_per_node,
        options.accelerator,
        environ,
        virtual_local_rank=options.virtual_local_rank,
    )
    if options.checks is not None and options.checks.spec.minimums:
        # From here on, the number of workers that ``--nproc-per-node gpu`` means is known.
        refuse_minimums(options.checks.spec, options.accelerator, count.count)
    return count


def _in_segment(options: LaunchOptions) -> LaunchOptions:
    """Return the options with the segment of this node; called early because NVML may block."""
    rendezvous = options.rendezvous
    if rendezvous.segment is not None or rendezvous.node_unit == 1 or not has_driver():
        return options
    return replace(options, rendezvous=replace(rendezvous, segment=nvlink_domain()))


def _gpus_shown(options: LaunchOptions) -> dict[str, str]:
    """Return the GPUs that checks should find; called before the event loop, as it may block."""
    if options.checks is None:
        return {}
    return shown_gpus(options.accelerator, os.environ)


def _file_timers(environ: dict[str, str]) -> FileTimers | None:
    if environ.get("TORCHELASTIC_ENABLE_FILE_TIMER") != "1":
        return None
    return make_file_timers(environ)


def _numa_cpus(options: LaunchOptions, count: WorkerCount) -> tuple[frozenset[int], ...] | None:
    if options.numa_binding is None:
        return None
    is_xpu = options.nproc_per_node == "xpu"
    devices = find_devices("xpu" if is_xpu else options.accelerator, os.environ)
    nodes = [find_gpu_node(device.pci_address) for device in devices]
    binding, topology = NumaBinding(options.numa_binding), read_topology()
    return bind_workers(binding, topology, nodes, allowed_cpus(), count.count)
