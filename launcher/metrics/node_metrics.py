"""Metrics of one node, from its accounting and its workers at the time of a scrape."""

import asyncio
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, Protocol

from ...events.workers import RoundProgressed
from ...rendezvous.protocol.messages import Assignment
from ..history.event_history import EventHistory
from ..history.phases import Account, Phase
from ..history.recorder import Recorder
from ..stacks.collect import AskedWorker
from ..version import VERSION
from . import catalogue as c
from .catalogue import Samples
from .job_metrics import CAUSES, JobMetrics
from .on_loop import on_loop
from .step_counts import StepCounts

_LOST_BY: Final = (*CAUSES, "regroup")


class Observed(Protocol):
    """The values that metrics read from the agent."""

    def progress(self) -> RoundProgressed | None:
        """Return the current progress of the workers; None if they do not train."""

    @property
    def running(self) -> tuple[AskedWorker, ...]:
        """The workers that have not exited."""

    @property
    def assignment(self) -> Assignment | None:
        """The assignment of the current or last round; None if there was no round."""

    @property
    def snapshot_step(self) -> int:
        """The step of the newest snapshot in memory; -1 if there is none."""

    @property
    def checkpoint(self) -> tuple[float | None, float | None]:
        """Age of the last checkpoint of this node, and the time between the last two; seconds."""


class Server(Protocol):
    """A ``MetricsServer``: ``http.server``, which it needs, would be 15 ms of each start."""

    def serve(self, collect: Callable[[], Samples]) -> None:
        """Answer scrapes."""

    def close(self) -> None:
        """Stop listening."""


class NodeEndpoint:
    """The endpoint of a node. It already listens; call ``serve`` on the loop of the agent."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.job = JobMetrics()
        """Follows the master, if it is in this process."""
        self._fold = NodeFold()

    def serve(self, agent: Observed, recorder: Recorder, history: EventHistory) -> None:
        """Answer scrapes from now on, in their threads."""
        loop = asyncio.get_running_loop()
        read = partial(self._read, agent, recorder, history)

        def collect() -> Samples:
            samples, pids = on_loop(loop, read)
            add_processes(samples, pids)
            return samples

        self._server.serve(collect)

    def close(self) -> None:
        """Stop listening."""
        self._server.close()

    async def _read(
        self, agent: Observed, recorder: Recorder, history: EventHistory
    ) -> tuple[Samples, dict[int, int]]:
        recorder.note_suspension()
        progress = agent.progress()
        folded = history.folded()
        accounting = folded.account(recorder.node)
        if progress is not None:
            accounting.add(recorder.record(progress))  # a scrape is not an event of the job
        samples = self.job.now()
        samples.put(c.JOB_INFO, 1, recorder.job, recorder.attempt, recorder.node, VERSION)
        samples.put(c.NODE_RANK, accounting.node_rank)
        samples.put(c.CHECKPOINT_FAILURES, folded.summary().saves.failed_in_all)
        add_account(samples, accounting.account(recorder.uptime_s))
        self._fold.add(samples, agent, time.monotonic(), time.time())
        return samples, {worker.rank: worker.pid for worker in agent.running}


def add_account(samples: Samples, account: Account) -> None:
    """Add the time per phase, losses and restarts; every cause has a sample (see ``CAUSES``)."""
    for phase in dict.fromkeys((*Phase, *account.phases)):
        samples.put(c.PHASE_SECONDS, account.phases.get(phase, 0.0), phase.value)
    for cause in dict.fromkeys((*_LOST_BY, *account.lost)):
        samples.put(c.LOST_SECONDS, account.lost.get(cause, 0.0), cause)
    for cause in dict.fromkeys((*CAUSES, *account.restarts)):
        samples.put(c.RESTARTS, account.restarts.get(cause, 0), cause)


class NodeFold:
    """Values that depend on several scrapes. No I/O, no clock."""

    def __init__(self) -> None:
        self._steps = StepCounts()
        self._last_step_s: float | None = None
        self._step = -1
        self._snapshot: tuple[int | None, int] = None, -1
        """Round and step of the newest snapshot that was found."""
        self._snapshot_s: float | None = None

    def add(self, samples: Samples, agent: Observed, monotonic_s: float, wall_s: float) -> None:
        """Add the samples of a moment."""
        number = agent.assignment.round if agent.assignment is not None else None
        samples.put(c.ROUND, number)
        self._add_steps(samples, agent, wall_s - monotonic_s)
        snapshot = number, agent.snapshot_step
        if agent.snapshot_step >= 0 and snapshot != self._snapshot:
            is_kept = agent.snapshot_step == self._snapshot[1]  # from the previous round
            self._snapshot = snapshot
            if not is_kept:
                self._snapshot_s = round(wall_s, 3)
        samples.put(c.LAST_SNAPSHOT, self._snapshot_s)
        age_s, interval_s = agent.checkpoint
        samples.put(c.LAST_CHECKPOINT, None if age_s is None else round(wall_s - age_s, 3))
        samples.put(c.CHECKPOINT_INTERVAL, interval_s)

    def _add_steps(self, samples: Samples, agent: Observed, began_s: float) -> None:
        watches = {
            worker.rank: worker.watch for worker in agent.running if worker.watch is not None
        }
        progress = {rank: watch.progress() for rank, watch in watches.items()}
        found = {rank: known for rank, known in progress.items() if known is not None}
        for rank, steps in self._steps.update(found.items()).items():
            samples.put(c.RANK_STEPS, steps, rank)
        last = [known.last_s for known in found.values() if known.last_s is not None]
        if last:
            self._last_step_s = round(began_s + max(last), 3)
            self._step = max(known.steps for known in found.values())
            samples.put(c.DATA_WAIT, max(known.data_wait for known in found.values()))
        for rank, watch in watches.items():
            if (loading := watch.loading()) is not None:
                samples.put(c.RANK_DATA_WAIT, loading.wait_s, rank)
        samples.put(c.LAST_STEP, self._last_step_s)
        samples.put(c.STEP, None if self._step < 0 else self._step)


def add_processes(samples: Samples, pids: Mapping[int, int]) -> None:
    """Add the kernel's values for processes by rank; exited processes get no samples."""
    import psutil  # 15 ms of each start, only for scrapes

    for rank, pid in pids.items():
        try:
            process = psutil.Process(pid)
            times, memory = process.cpu_times(), process.memory_info()
        except psutil.Error:
            continue
        samples.put(c.RANK_CPU, times.user + times.system, rank)
        samples.put(c.RANK_MEMORY, memory.rss, rank)
