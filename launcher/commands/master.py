"""``ft-run master``: a master without an agent, for a separate pod or a login node.

With several endpoints, it is one of the hosts that may lead.
"""

import asyncio
import os
import secrets
import signal
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

from ... import exit_codes
from ...errors import RefusedError, UsageError
from ...events.event import Event, LogMessage, Severity
from ...events.master import EndedElsewhere, MasterListening, MasterSignalled
from ...events.node import JobEnded
from ...events.record import MASTER
from ...rendezvous.group.events import GroupSettings
from ...rendezvous.lease.succession import Succession
from ...rendezvous.master.master import ALONE, Lease, Master
from ...rendezvous.protocol.failure import signal_name
from ...rendezvous.protocol.messages import JobSpec, Verdict
from ...rendezvous.transport.server import MasterServer
from ...rendezvous.trust.credentials import Trust
from ...rendezvous.trust.source import read_trust
from .. import startup
from ..agent.hosting import listed_host, tell_if_open
from ..agent.local_answers import LocalAnswers
from ..agent.local_socket import answering
from ..agent.standalone import new_examiner
from ..cli.master_flags import MasterOptions
from ..history.event_history import EventHistory
from ..history.recorder import Recorder, attempt_of
from ..machine.network import own_endpoints
from ..metrics.job_metrics import JobMetrics
from ..metrics.master_metrics import master_samples
from ..metrics.on_loop import on_loop
from ..metrics.opening import open_metrics
from ..metrics.server import MetricsServer
from ..reporting.display import Display
from ..reporting.event_files import EventFiles
from ..version import VERSION


def run_master(options: MasterOptions) -> int:
    """Serve one job; return its exit code, or 128 + n after signal n."""
    trust = read_trust(options.trust)
    recorder = Recorder("", attempt_of(os.environ))
    recorder.node = MASTER
    display = Display(live=False, recorder=recorder)
    with ExitStack() as closing:
        if options.events is not None:
            files = EventFiles(display, recorder)
            files.open(options.events, None)
            closing.callback(files.close)
        metrics = None
        if options.metrics is not None:
            metrics = open_metrics(options.metrics, options.trust, display.event)
        if metrics is not None:
            closing.callback(metrics.close)
        return startup.run(_LoneMaster(options, trust, display, recorder, metrics).serve())


class _LoneMaster:
    """A master, or with several endpoints, a host that votes and may lead."""

    def __init__(
        self,
        options: MasterOptions,
        trust: Trust | None,
        display: Display,
        recorder: Recorder,
        metrics: MetricsServer | None,
    ) -> None:
        self._options, self._trust, self._display = options, trust, display
        self._recorder, self._metrics = recorder, metrics
        self._history = EventHistory()
        recorder.add(self._history.add)
        self._changed: Callable[[Master], None] | None = None
        self._outcome: asyncio.Queue[Verdict | int | RefusedError] = asyncio.Queue()
        """The verdict of this master, or the exit code or error that ends it otherwise."""
        self._master: Master | None = None
        """The last master, of this or an earlier term."""
        self._verdict: Verdict | None = None

    async def serve(self) -> int:
        name = f"master-{secrets.token_hex(8)}"
        async with answering(name, self._answers, self._display.event):
            return await self._serve()

    async def _serve(self) -> int:
        display = self._display
        for warning in self._options.warnings:
            display.event(LogMessage(warning))
        if self._metrics is not None:
            self._changed = _serve_metrics(self._metrics)
        server, succession = await self._listen()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            if signal.getsignal(number) is not signal.SIG_IGN:
                asyncio.get_running_loop().add_signal_handler(number, self._signalled, number)
                startup.unblock([number])
        try:
            first = await self._outcome.get()
            if isinstance(first, RefusedError):
                raise first
            if not isinstance(first, Verdict):
                return first
            self._verdict = first
            display.event(JobEnded(first))
            return first.exit_code
        finally:
            if succession is not None:
                await succession.stop(self._verdict)
            await server.stop()
            display.close()

    async def _listen(self) -> tuple[MasterServer, Succession | None]:
        endpoint, endpoints = self._options.endpoint, self._options.endpoints
        timeouts, note = self._options.timeouts, self._display.event
        settings = GroupSettings.of(timeouts, rescale_delay_s=self._options.rescale_delay_s)
        if not endpoints:
            master = self._new_master(settings)
            server = MasterServer(master, VERSION, timeouts.silence_s, self._trust)
            server.report = self._history.report
            note(MasterListening(str(endpoint), await server.start(endpoint)))
            tell_if_open(endpoint, self._trust, note)
            return server, None
        places, _ = own_endpoints(endpoints)
        listed = await listed_host(endpoints, places, settings, self._new_master, note, self._trust)
        if listed is None:
            raise UsageError(
                f"none of the endpoints {', '.join(map(str, endpoints))} is of this host and "
                "free; expected the list of the hosts on which ft-run master runs."
            )
        succession, server = listed
        server.report = self._history.report
        own = endpoints[succession.own]
        note(MasterListening(str(own), own.port))
        succession.over.add_done_callback(self._over)
        succession.refused.add_done_callback(
            lambda refused: self._outcome.put_nowait(RefusedError(refused.result()))
        )
        return server, succession

    def _new_master(self, settings: GroupSettings, lease: Lease = ALONE) -> Master:
        self._master = master = Master(
            settings,
            self._note,
            examiner=new_examiner(),
            lease=lease,
            ended=self._outcome.put_nowait,
            changed=self._changed,
        )
        return master

    def _note(self, event: Event) -> None:
        job = self._job
        self._recorder.job = job.job_id if job is not None else self._recorder.job
        self._display.event(event, Severity.INFO)

    @property
    def _job(self) -> JobSpec | None:
        return self._master.group.job if self._master is not None else None

    def _answers(self) -> LocalAnswers:
        options = self._options
        return LocalAnswers(
            self._about,
            options.endpoints or (options.endpoint,),
            self._leading,
            self._history.report,
            lambda: self._verdict is not None,
        )

    def _leading(self) -> Master | None:
        master = self._master
        if master is not None and master.is_closed and self._verdict is None:
            return None  # from an earlier term
        return master

    def _about(self) -> dict[str, Any]:
        master, job = self._master, self._job
        return {
            "job_id": job.job_id if job is not None else "",
            "script": "ft-run master",
            "node_id": "-",
            "phase": master.group.phase.value if master is not None else "no leader",
            "round": master.group.round if master is not None else -1,
            "nodes": len(master.group.roster) if master is not None else 0,
            "min_nodes": job.min_nodes if job is not None else 0,
            "max_nodes": job.max_nodes if job is not None else 0,
            "restarts": master.group.state.restarts_in_budget if master is not None else 0,
            "max_restarts": job.max_restarts if job is not None else 0,
            **dict.fromkeys(("steps", "steps_per_s", "idle_s")),
            "uptime_s": master.uptime_s()[0] if master is not None else 0.0,
        }

    def _over(self, over: "asyncio.Future[int]") -> None:
        """Record that the job has ended under another leader."""
        self._display.event(EndedElsewhere(over.result()))
        self._outcome.put_nowait(over.result())

    def _signalled(self, number: int) -> None:
        master = self._master
        has_nodes = master is not None and any(n.link is not None for n in master.group.roster)
        self._display.event(MasterSignalled(signal_name(number), has_nodes))
        self._outcome.put_nowait(exit_codes.SIGNAL_BASE + number)


def _serve_metrics(server: MetricsServer) -> Callable[[Master], None]:
    job, loop = JobMetrics(), asyncio.get_running_loop()
    read = partial(master_samples, job, attempt_of(os.environ))
    server.serve(lambda: on_loop(loop, read))
    return job.changed
