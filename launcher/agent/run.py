"""Runs one node on the event loop: the agent, the live line, and the master if hosted here."""

import contextlib
import errno
import json
import os
from collections.abc import AsyncIterator, Callable
from functools import partial

from ... import exit_codes
from ...errors import NodeExcludedError
from ...events.event import Event, LogMessage
from ...events.master import MasterKept
from ...events.node import ForeignAddressAdvertised, JobEnded, LogsKept, NodeStarted
from ...rendezvous.protocol.failure import Failure, signal_name
from ...rendezvous.protocol.messages import Outcome, Verdict
from ...rendezvous.trust.credentials import Trust
from ..flags.values import shown
from ..history.event_history import EventHistory
from ..history.recorded_error import recorded
from ..logs.log_dir import LogDir
from ..machine.network import (
    AdvertisedAddress,
    PortReservation,
    is_local_address,
    names_all_hosts,
    resolve,
)
from ..machine.worker_count import WorkerCount
from ..metrics.node_metrics import NodeEndpoint
from ..options import LaunchOptions, RendezvousOptions
from ..preflight.crew import CheckCrew
from ..reporting.display import Display
from ..reporting.failure_report import final_report
from ..reporting.live_line import live_line
from ..reporting.standard_output import say_last
from ..reporting.termination_message import write_termination_message
from ..reporting.time_report import report_time
from ..tuning.job_values import Tuning
from ..version import VERSION
from ..workers.worker_starter import WorkerStarter
from .agent import Agent
from .identity import NodeIdentity, machine_id
from .local_answers import LocalAnswers
from .local_socket import answering
from .signals import hurry_on, unless_asked
from .standalone import Standalone

_REGROUP_S = 5.0
"""Time from the end of the workers to the next round: kills, reaping, device memory."""


async def run_node(
    options: LaunchOptions,
    count: WorkerCount,
    starter: WorkerStarter,
    display: Display,
    *,
    tuning: Tuning,
    new_crew: Callable[[str], CheckCrew] | None,
    trust: Trust | None,
    conclude: Callable[[Agent], None] | None = None,
    metrics: NodeEndpoint | None = None,
) -> int:
    """Run this node until the job is over for it; return the exit code, or raise an ``FtRunError``.

    ``new_crew`` returns the check workers of a node with this ID. ``trust`` is None for plain text,
    or for a single node without a network. ``conclude`` is called with the agent when the job is
    over.
    """
    rendezvous, recorder = options.rendezvous, display.recorder
    assert recorder is not None
    for warning in options.warnings:
        display.event(LogMessage(warning))
    identity = NodeIdentity(rendezvous.job_id)
    history = EventHistory()
    recorder.add(history.add)
    recorder.node = identity.node_id
    address = advertised(rendezvous, display.event)
    port = PortReservation(address.find, rendezvous.worker_ports, rendezvous.worker_ports_flag)
    changed = metrics.job.changed if metrics is not None else None
    hosting = Standalone(rendezvous, display.event, changed, address.meet)
    if rendezvous.endpoint is not None:
        from .hosting import Hosting  # gRPC: after the fork, and 10 MB

        hosting = Hosting(rendezvous, display.event, trust, changed, history.report, address.meet)
    crew = new_crew(identity.node_id) if new_crew is not None else None
    agent = Agent(options, display, starter, identity=identity, port=port, crew=crew, tuning=tuning)
    if metrics is not None:
        metrics.serve(agent, recorder, history)
    new_answers = partial(_new_answers, agent, hosting, identity, rendezvous, history.report)
    try:
        async with _hosted(hosting, agent, options, display):
            started = NodeStarted(
                rendezvous.job_id,
                identity.node_id,
                count.count,
                count.source,
                hosting.where,
                host=identity.host,
                address=port.offer.address,
                machine_id=machine_id(),
                release=VERSION,
            )
            display.event(started)
            async with (
                answering(identity.incarnation, new_answers, display.event),
                live_line(display, agent.status.text, starter.spawner),
                _shown_in_trainjob(agent, display),
            ):
                status = await agent.run(hosting.connect)
    finally:
        if crew is not None:
            await crew.rest()
        report_time(display, recorder, history)
        hurry_on(options.signals, display.hurry)
        display.close()
        port.close()
        identity.close(is_over=agent.verdict is not None)
    if agent.verdict is not None:
        _show_verdict(agent.verdict, options, display, starter.log_dir)
    if conclude is not None:
        conclude(agent)
    if status != exit_codes.SUCCESS:
        verdict = agent.verdict
        if verdict is not None and verdict.cause is not None:
            pass_on_error_file(verdict.cause)
        left = f"this node was asked to leave ({_signal_of(status)})"
        write_termination_message(str(JobEnded(verdict)) if verdict is not None else left, status)
    return status


def _signal_of(status: int) -> str:
    return signal_name(status - exit_codes.SIGNAL_BASE)


def _new_answers(
    agent: Agent,
    hosting: Standalone,
    identity: NodeIdentity,
    rendezvous: RendezvousOptions,
    report: Callable[[], str],
) -> LocalAnswers:
    only = (rendezvous.endpoint,) if rendezvous.endpoint is not None else ()
    return LocalAnswers(
        lambda: agent.status.summary() | {"node_id": identity.node_id},
        rendezvous.endpoints or only,
        lambda: hosting.master,
        report,
        lambda: agent.verdict is not None,
    )


@contextlib.asynccontextmanager
async def _hosted(
    hosting: Standalone, agent: Agent, options: LaunchOptions, display: Display
) -> AsyncIterator[None]:
    """Host the master, if it belongs here, while the agent runs and as long as others need it."""
    try:
        await hosting.start()
        yield
        if agent.verdict is None:
            await _hand_over(hosting, options, display)
        await hosting.stop(wait=agent.verdict is not None)
    except NodeExcludedError:
        # The job continues without this node's workers, but not without the master.
        await _host_on(hosting, options, display)
        raise
    except BaseException:
        await hosting.stop(wait=False)
        raise


@contextlib.asynccontextmanager
async def _shown_in_trainjob(agent: Agent, display: Display) -> AsyncIterator[None]:
    if "KUBEFLOW_TRAINER_SERVER_URL" not in os.environ:
        yield
        return
    from ..metrics.trainjob import trainjob_progress  # urllib is 10 ms of each start

    progress = trainjob_progress(os.environ, agent, display.event)
    try:
        yield
    finally:
        verdict = agent.verdict
        if progress is not None:
            await progress.close(
                has_succeeded=verdict is not None and verdict.outcome is Outcome.SUCCEEDED
            )


def advertised(rendezvous: RendezvousOptions, note: Callable[[Event], None]) -> AdvertisedAddress:
    """Return the address that this node advertises."""
    endpoint, name = rendezvous.endpoint, rendezvous.master_addr
    is_only = endpoint is None and rendezvous.local_addr is None
    if is_only and name is not None and any(map(is_local_address, resolve(name))):
        return AdvertisedAddress.named(name)  # no other host needs to resolve it
    towards = name if endpoint is None else endpoint.host
    others = [other.host for other in rendezvous.endpoints]
    is_open = rendezvous.max_nodes > 1 and endpoint is not None and names_all_hosts(endpoint.host)
    address = AdvertisedAddress(towards, rendezvous.local_addr, others, is_open=is_open)
    found = address.find()
    if rendezvous.local_addr is not None and not is_local_address(found):
        note(ForeignAddressAdvertised(found))
    return address


async def _host_on(hosting: Standalone, options: LaunchOptions, display: Display) -> None:
    if hosting.serves_others:
        display.event(MasterKept(is_excluded=True))
        await unless_asked(hosting.stop(wait=True), options.signals)
    await hosting.stop(wait=False)


async def _hand_over(hosting: Standalone, options: LaunchOptions, display: Display) -> None:
    """Host the master until the other nodes run without this node, which is leaving.

    They were ordered to stop at the same time, with the same time limit. A second signal or SIGKILL
    ends the wait; the other nodes are then no worse off than without it.
    """
    if hosting.is_needed:
        display.event(MasterKept(is_excluded=False))
        limit_s = options.shutdown_timeout_s + _REGROUP_S
        await unless_asked(hosting.settled(), options.signals, limit_s)


def _show_verdict(
    verdict: Verdict, options: LaunchOptions, display: Display, log_dir: LogDir
) -> None:
    ended = JobEnded(verdict)
    display.record(ended)
    if verdict.outcome in (Outcome.WORKERS_FAILED, Outcome.POLICY_ENDED):
        display.report(final_report(verdict, options.name or options.script))
        if log_dir.keeps_files:
            display.event(LogsKept(str(log_dir.path)))
    display.show(ended)


def pass_on_error_file(cause: Failure) -> None:
    """Copy the root cause's error file to the path where the scheduler of this agent expects it.

    Like torchrun, but with the exit code added, which a killed worker could not write.
    """
    path, error = os.environ.get("TORCHELASTIC_ERROR_FILE"), recorded(cause)
    if not path or error is None:
        return
    if isinstance(error["message"], dict):
        error["message"]["errorCode"] = cause.exit_code
    try:
        # The path may be a FIFO: opening and writing it would block until there is a reader.
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK | os.O_CLOEXEC
        with open(os.open(path, flags, 0o666), "w") as file:
            json.dump(error, file)
    except RecursionError:  # another node may send any nesting
        return
    except OSError as failed:
        is_unread = failed.errno == errno.ENXIO
        why = "a FIFO that nothing reads, or a socket" if is_unread else failed.strerror
        say_last(f"ft-run: TORCHELASTIC_ERROR_FILE cannot be written: {shown(path)}: {why}")
