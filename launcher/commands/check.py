"""``ft-run check``: this node checked by itself, for an init container, a prolog or a person."""

import asyncio
import os
import signal
import socket
from collections.abc import Callable
from functools import partial
from typing import Final

from ... import defaults, exit_codes
from ...checks.plan import plan
from ...checks.records import Level, Metrics, Order, Phase, Record
from ...checks.report import report_to_json
from ...checks.results import Answered, Results, Rules
from ...checks.verdict import NodeVerdict, Standing, Verdicts, verdict
from ...checks.worker_config import NOT_CARRIED_OUT
from ...errors import UsageError
from ...events.checks import CheckSignalled, ChecksProgressed
from ...events.event import Remark, Severity
from ...events.workers import PreloadChanged
from ...rendezvous.protocol.failure import signal_name
from ...values import replace
from .. import startup
from ..agent.preload import other_interpreter, refuse_missing_modules
from ..agent.worker_command import check_interpreter, virtual_devices, worker_python
from ..cli.floor_flags import refuse_floors
from ..logs.log_dir import check_log_dir
from ..machine.worker_count import omp_num_threads, resolve_worker_count
from ..options import CheckOptions
from ..preflight.crew import CheckCrew, CrewPlan
from ..preflight.expected_gpus import gpus_asked_by, shown_gpus
from ..preflight.report_file import check_report_path, write_report
from ..preflight.show import print_report
from ..processes.tree import require_own_proc
from ..reporting.display import Display
from ..reporting.live_line import live_line
from ..spawner.client import ForkServerEvent, SpawnerClient

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def run_check(options: CheckOptions) -> int:
    """Check this node and print the result; return the exit status.

    Raises:
        FtRunError: what a user can cause: one sentence and an exit code.
    """
    require_own_proc()
    check_report_path(options.report)
    check_log_dir(options.log_dir)
    check_interpreter(os.environ)
    display = Display()
    for text in options.remarks:
        display.event(Remark(text))
    if options.preload and (remark := other_interpreter(os.environ)):
        display.event(Remark(remark, Severity.WARNING))
        options = replace(options, preload=())
    refuse_missing_modules(options.preload)
    plan_of_crew = _crew_plan(options)
    options = replace(options, timeout_s=options.timeout_s or _default_timeout_s(plan_of_crew))
    spawner = SpawnerClient()  # before anything starts a thread
    try:
        verdicts = startup.run(_check(options, plan_of_crew, spawner, display))
    finally:
        display.close()
    if isinstance(verdicts, int):
        return exit_codes.SIGNAL_BASE + verdicts
    (node,) = verdicts.nodes
    status = _exit_code(node, options)
    report = report_to_json(verdicts)
    lost = _lost(partial(print_report, verdicts, report if options.json else None))
    if options.report is not None:
        lost = _lost(partial(write_report, options.report, report)) or lost
    if lost is not None:
        # A full disk must not turn the exit status of a faulty node into that of wrong usage.
        if status == exit_codes.SUCCESS:
            raise lost
        display.event(Remark(lost.sentence, Severity.ERROR))
    return status


def _lost(answer: Callable[[], None]) -> UsageError | None:
    """Give an answer; return why it is lost, if it is."""
    try:
        answer()
    except UsageError as error:
        return error
    return None


def _crew_plan(options: CheckOptions) -> CrewPlan:
    """Return the configuration of the check workers: as many, on the same devices, as train."""
    environ = dict(os.environ)
    count = resolve_worker_count(
        options.nproc_per_node,
        options.accelerator,
        environ,
        virtual_local_rank=options.virtual_local_rank,
    )
    refuse_floors(options.floors, options.accelerator, count.count)
    if options.virtual_local_rank:
        from ..machine.accelerators import name_mig_devices

        environ = name_mig_devices(environ)
    from ..machine.cpu_limit import read_cpu_limit

    threads = omp_num_threads(environ, count.count, read_cpu_limit() if count.count == 1 else None)
    return CrewPlan(
        node=socket.gethostname(),
        local_world_size=count.count,
        python=worker_python(environ),
        accelerator=options.accelerator,
        gpus_asked_by=gpus_asked_by(options.nproc_per_node, options.accelerator),
        gpus_shown=shown_gpus(options.accelerator),
        visible_devices=virtual_devices(options.virtual_local_rank, count.count, environ),
        env={} if threads is None else {"OMP_NUM_THREADS": threads},
        log_dir=options.log_dir,
        preload=options.preload,
    )


def _default_timeout_s(crew_plan: CrewPlan) -> float:
    """Return ``--check-timeout`` where it is not given."""
    has_gpus = crew_plan.gpus_asked_by or crew_plan.gpus_shown
    return defaults.CHECK_TIMEOUT_GPUS_S if has_gpus else defaults.CHECK_TIMEOUT_S


async def _check(
    options: CheckOptions, crew_plan: CrewPlan, spawner: SpawnerClient, display: Display
) -> Verdicts | int:
    """Return the verdict, or the number of the signal that ended the check."""

    def fork_server_changed(event: ForkServerEvent) -> None:
        display.event(PreloadChanged(event.state, options.preload, event.text, is_of_checks=True))

    crew = CheckCrew(spawner, crew_plan, fork_server_changed)
    climb = _Climb(options, crew, crew_plan.node, display)
    task = asyncio.create_task(climb.run())
    received: list[int] = []

    def stop(number: int) -> None:
        if not received:
            received.append(number)
            display.event(CheckSignalled(signal_name(number)))
            task.cancel()

    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, stop, int(number))
    try:
        async with live_line(display, lambda: climb.progress, spawner):
            try:
                return await task
            finally:
                display.suspend()
    except asyncio.CancelledError:
        if not received:
            raise
        return received[0]
    finally:
        await crew.close()


class _Climb:
    """The phases of the checks that a node goes through alone."""

    def __init__(self, options: CheckOptions, crew: CheckCrew, node: str, display: Display) -> None:
        self._options = options
        self._crew = crew
        self._node = node
        self._display = display
        self._deadline = asyncio.get_running_loop().time() + options.timeout_s
        self._doing = "starting"

    @property
    def progress(self) -> str:
        """The present step, for the live line."""
        return f"ft-run check {self._node} · {self._doing} · {self._remaining_s():.0f} s left"

    async def run(self) -> Verdicts:
        """Carry out the plan step by step; return the verdicts."""
        rules = Rules(floors=Metrics(**self._options.floors))
        results = Results((self._node,), rules=rules)
        while (step := plan(results)) is not None:
            again = any(answered.step.phase is step.phase for answered in results.steps)
            self._doing = step.phase.value + (", once more" if again else "")
            self._display.event(ChecksProgressed(self._doing, is_alone=True))
            record = await self._record(len(results.steps), step.phase)
            answered = Answered(step, {self._node: record})
            results = replace(results, steps=(*results.steps, answered))
        return verdict(results)

    async def _record(self, number: int, phase: Phase) -> Record:
        remaining_s = self._remaining_s()
        if remaining_s <= 0:
            time_over = f"the {self._options.timeout_s:g} s of --check-timeout are over"
            return Record(self._node, phase, failure=f"{NOT_CARRIED_OUT}: {time_over}")
        return await self._crew.run(
            Order(
                number=number,
                phase=phase,
                level=Level(self._options.level),
                rank_offset=0,
                world_size=1,
                master_addr="",
                master_port=0,
                deadline_s=remaining_s,
            )
        )

    def _remaining_s(self) -> float:
        return max(self._deadline - asyncio.get_running_loop().time(), 0.0)


def _exit_code(node: NodeVerdict, options: CheckOptions) -> int:
    match node.standing:
        case Standing.SLOW if options.exclude_straggler:
            return exit_codes.NODE_EXCLUDED
        case Standing.PASSED | Standing.SLOW:
            has_warning = node.standing is Standing.SLOW or node.remarks
            return (
                exit_codes.CHECKS_WARNED
                if options.is_strict and has_warning
                else exit_codes.SUCCESS
            )
        case Standing.FAULTY:
            return exit_codes.NODE_EXCLUDED
        case _:
            return exit_codes.CHECKS_FAILED
