"""``ft-run check``: checks this node alone, for an init container, a prolog or a user."""

import asyncio
import os
import signal
import socket
from collections.abc import Callable
from functools import partial
from typing import Final

from ... import defaults, exit_codes
from ...checks.plan import plan
from ...checks.records import Phase, Record
from ...checks.report import report_to_json
from ...checks.results import Answered, Results, Rules
from ...checks.verdict import Verdicts, exit_code, verdict
from ...checks.worker_config import NOT_CARRIED_OUT
from ...errors import UsageError
from ...events.checks import CheckSignalled, ChecksProgressed
from ...events.event import LogMessage, Severity
from ...events.preload import PreloadChanged
from ...rendezvous.protocol.check_messages import CheckOrder, CheckSpec
from ...rendezvous.protocol.failure import signal_name
from ...values import replace
from .. import startup
from ..cli.check_flags import refuse_minimums
from ..logs.log_dir import check_log_dir
from ..machine.worker_count import resolve_worker_count
from ..options import LaunchOptions
from ..preflight.crew import CheckCrew, CrewPlan
from ..preflight.expected_gpus import shown_gpus
from ..preflight.report_file import check_report_path, write_report
from ..preflight.show import print_report
from ..processes.tree import require_own_proc
from ..reporting.display import Display
from ..reporting.live_line import live_line
from ..spawner.client import ForkServerEvent, SpawnerClient
from ..workers.check_workers import crew_plan
from ..workers.preload import other_interpreter, refuse_missing_modules
from ..workers.worker_command import WorkerCommands, check_interpreter, worker_environ

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def run_check(options: LaunchOptions) -> int:
    """Check this node and print the result; return the exit status.

    Raises:
        FtRunError: an error that a user can cause, with an exit code.
    """
    checks = options.checks
    assert checks is not None
    require_own_proc()
    check_report_path(checks.report)
    check_log_dir(checks.log_dir)
    check_interpreter(os.environ)
    display = Display()
    for text in options.warnings:
        display.event(LogMessage(text))
    if options.preload and (warning := other_interpreter(os.environ)):
        display.event(LogMessage(warning, Severity.WARNING))
        options = replace(options, preload=())
    refuse_missing_modules(options.preload)
    workers = _workers(options, checks.spec)
    default_s = defaults.CHECK_TIMEOUT_GPUS_S if workers.has_gpus else defaults.CHECK_TIMEOUT_S
    spec = replace(checks.spec, timeout_s=checks.spec.timeout_s or default_s)
    spawner = SpawnerClient()  # before anything starts a thread
    try:
        verdicts = startup.run(_check(spec, workers, spawner, display))
    finally:
        display.close()
    if isinstance(verdicts, int):
        return exit_codes.SIGNAL_BASE + verdicts
    (node,) = verdicts.nodes
    status = exit_code(node, spec)
    report = report_to_json(verdicts)
    lost = _lost(partial(print_report, verdicts, report if checks.json else None))
    if checks.report is not None:
        lost = _lost(partial(write_report, checks.report, report)) or lost
    if lost is not None:
        # A full disk must not replace the exit status of a faulty node by that of a usage error.
        if status == exit_codes.SUCCESS:
            raise lost
        display.event(LogMessage(lost.sentence, Severity.ERROR))
    return status


def _lost(answer: Callable[[], None]) -> UsageError | None:
    """Write an answer; return the error if it cannot be written."""
    try:
        answer()
    except UsageError as error:
        return error
    return None


def _workers(options: LaunchOptions, spec: CheckSpec) -> CrewPlan:
    count = resolve_worker_count(
        options.nproc_per_node,
        options.accelerator,
        os.environ,
        virtual_local_rank=options.virtual_local_rank,
    ).count
    refuse_minimums(spec, options.accelerator, count)
    commands = WorkerCommands(options, count, worker_environ(options, count))
    return crew_plan(socket.gethostname(), options, commands, shown_gpus(options.accelerator))


async def _check(
    spec: CheckSpec, workers: CrewPlan, spawner: SpawnerClient, display: Display
) -> Verdicts | int:
    """Return the verdict, or the number of the signal that ended the check."""

    def fork_server_changed(event: ForkServerEvent) -> None:
        display.event(PreloadChanged(event.state, workers.preload, event.text, is_of_checks=True))

    crew = CheckCrew(spawner, workers, fork_server_changed)
    climb = _Climb(spec, crew, workers.worker.node, display)
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
        task.cancel()
        await crew.close()


class _Climb:
    """The single-node phases of the checks."""

    def __init__(self, spec: CheckSpec, crew: CheckCrew, node: str, display: Display) -> None:
        self._spec = spec
        self._crew = crew
        self._node = node
        self._display = display
        self._deadline = asyncio.get_running_loop().time() + spec.timeout_s
        self._doing = "starting"

    @property
    def progress(self) -> str:
        """Return the present step, for the live line."""
        return f"ft-run check {self._node} · {self._doing} · {self._remaining_s():.0f} s left"

    async def run(self) -> Verdicts:
        """Execute the plan step by step; return the verdicts."""
        results = Results((self._node,), rules=Rules.of(self._spec))
        while (step := plan(results)) is not None:
            again = any(answered.step.phase is step.phase for answered in results.steps)
            self._doing = step.phase.title + (", again" if again else "")
            self._display.event(ChecksProgressed(self._doing, is_alone=True))
            record = await self._record(len(results.steps), step.phase)
            answered = Answered(step, {self._node: record})
            results = replace(results, steps=(*results.steps, answered))
        return verdict(results)

    async def _record(self, number: int, phase: Phase) -> Record:
        remaining_s = self._remaining_s()
        if remaining_s <= 0:
            time_over = f"--check-timeout {self._spec.timeout_s:g} s exceeded"
            return Record(self._node, phase, failure=f"{NOT_CARRIED_OUT}: {time_over}")
        return await self._crew.run(
            CheckOrder(
                number=number,
                phase=phase.value,
                level=self._spec.level,
                rank_offset=0,
                world_size=1,
                master_addr="",
                master_port=0,
                deadline_s=remaining_s,
            )
        )

    def _remaining_s(self) -> float:
        return max(self._deadline - asyncio.get_running_loop().time(), 0.0)
