"""The metrics of one node: from its accounting and its workers, when they are scraped."""

import asyncio
import time
from typing import Final, Protocol

from ...events.checkpoints import CheckpointFailed
from ...events.record import Record
from ...rendezvous.protocol.messages import Assignment
from ...values import dataclass
from ..history.phases import Phase, Spent
from ..history.recorder import Recorder
from ..processes.worker_watch import Progress
from ..reporting.time_report import TimeReport
from ..stacks.collect import AskedWorker
from ..version import VERSION
from . import catalogue as c
from .catalogue import Samples
from .gpus import Gpus
from .job_metrics import CAUSES, JobMetrics
from .server import MetricsServer, on_loop
from .step_counts import StepCounts

_LOST_BY: Final = (*CAUSES, "regroup")


class Observed(Protocol):
    """What is read of the agent."""

    def report_phases(self) -> None:
        """Have the time of this node's phases known up to now."""

    @property
    def running(self) -> tuple[AskedWorker, ...]:
        """The workers that have not exited."""

    @property
    def assignment(self) -> Assignment | None:
        """Of the current or last round; None: there was none."""

    @property
    def snapshot_step(self) -> int:
        """Of the newest snapshot in memory; -1: there is none."""

    @property
    def checkpoint(self) -> tuple[float | None, float | None]:
        """Age of the last checkpoint of this node, and the time between the last two; seconds."""


@dataclass(frozen=True, slots=True)
class NodeNow:
    """The values of one moment."""

    phases: dict[Spent, float]
    lost: dict[str, float]
    restarts: dict[str, float]
    failed_saves: int
    round: int
    node_rank: int
    workers: tuple[tuple[int, int, Progress | None], ...]
    """Rank, process id and progress."""
    data_wait_s: dict[int, float]
    """By rank, of workers that use torch's ``DataLoader``."""
    snapshot_step: int
    checkpoint: tuple[float | None, float | None]
    monotonic_s: float
    wall_s: float


class NodeMetrics:
    """Reads the values of a node, in the thread of a scrape."""

    def __init__(
        self,
        agent: Observed,
        recorder: Recorder,
        time_report: TimeReport,
        job: JobMetrics,
        gpus: Gpus,
    ) -> None:
        """Create it on the loop of the agent.

        Args:
            agent: its workers and snapshots.
            recorder: has the events of this node from now on.
            time_report: has its accounting.
            job: the metrics of the master, if it is in this process.
            gpus: the metrics of the GPUs.
        """
        self._agent, self._recorder, self._time_report = agent, recorder, time_report
        self._job, self._gpus = job, gpus
        self._loop = asyncio.get_running_loop()
        self._fold = NodeFold()
        self._failed_saves = 0
        recorder.add(self._save_failed, frozenset({CheckpointFailed.name}))

    def _save_failed(self, _: Record) -> None:
        self._failed_saves += 1

    def collect(self) -> Samples:
        """Return the samples of now; called in the thread of a scrape.

        Raises:
            NotReadyError: the agent does not answer.
        """
        now, samples = on_loop(self._loop, self._read)
        self._fold.add(samples, now)
        add_processes(samples, now)
        self._gpus.add(samples)
        return samples

    async def _read(self) -> tuple[NodeNow, Samples]:
        self._agent.report_phases()
        accounting, recorder = self._time_report.folded(), self._recorder
        account, at = accounting.account(recorder.uptime_s), self._agent.assignment
        workers = tuple(
            (worker.rank, worker.pid, worker.watch.progress() if worker.watch is not None else None)
            for worker in self._agent.running
        )
        waits = {
            worker.rank: loading.wait_s
            for worker in self._agent.running
            if worker.watch is not None and (loading := worker.watch.loading()) is not None
        }
        samples = self._job.now()
        samples.put(c.JOB_INFO, 1, recorder.job, recorder.attempt, recorder.node, VERSION)
        return (
            NodeNow(
                account.phases,
                account.lost,
                account.restarts,
                self._failed_saves,
                -1 if at is None else at.round,
                accounting.node_rank,
                workers,
                waits,
                self._agent.snapshot_step,
                self._agent.checkpoint,
                time.monotonic(),
                time.time(),
            ),
            samples,
        )


class NodeFold:
    """What follows from several scrapes. Pure."""

    def __init__(self) -> None:
        self._steps = StepCounts()
        self._last_step_s: float | None = None
        self._step = -1
        self._snapshot: tuple[int, int] = (-1, -1)
        """Round and step of the newest snapshot that was found."""
        self._snapshot_s: float | None = None

    def add(self, samples: Samples, now: NodeNow) -> None:
        """Add the samples of a moment."""
        for phase in dict.fromkeys((*Phase, *now.phases)):
            samples.put(c.PHASE_SECONDS, now.phases.get(phase, 0.0), phase.value)
        for cause in dict.fromkeys((*_LOST_BY, *now.lost)):
            samples.put(c.LOST_SECONDS, now.lost.get(cause, 0.0), cause)
        for cause in dict.fromkeys((*CAUSES, *now.restarts)):
            samples.put(c.RESTARTS, now.restarts.get(cause, 0), cause)
        samples.put(c.CHECKPOINT_FAILURES, now.failed_saves)
        samples.put(c.ROUND, None if now.round < 0 else now.round)
        samples.put(c.NODE_RANK, now.node_rank)
        self._add_steps(samples, now)
        self._add_saves(samples, now)

    def _add_steps(self, samples: Samples, now: NodeNow) -> None:
        found = [(rank, progress) for rank, _, progress in now.workers if progress is not None]
        for rank, steps in self._steps.update(found).items():
            samples.put(c.RANK_STEPS, steps, rank)
        last = [progress.last_s for _, progress in found if progress.last_s is not None]
        if last:
            self._last_step_s = round(now.wall_s - (now.monotonic_s - max(last)), 3)
            self._step = max(progress.steps for _, progress in found)
            samples.put(c.DATA_WAIT, max(progress.data_wait for _, progress in found))
        for rank, wait_s in now.data_wait_s.items():
            samples.put(c.RANK_DATA_WAIT, wait_s, rank)
        samples.put(c.LAST_STEP, self._last_step_s)
        samples.put(c.STEP, None if self._step < 0 else self._step)

    def _add_saves(self, samples: Samples, now: NodeNow) -> None:
        snapshot = now.round, now.snapshot_step
        if now.snapshot_step >= 0 and snapshot != self._snapshot:
            is_kept = now.snapshot_step == self._snapshot[1]  # from the round before
            self._snapshot = snapshot
            if not is_kept:
                self._snapshot_s = round(now.wall_s, 3)
        samples.put(c.LAST_SNAPSHOT, self._snapshot_s)
        age_s, interval_s = now.checkpoint
        samples.put(c.LAST_CHECKPOINT, None if age_s is None else round(now.wall_s - age_s, 3))
        samples.put(c.CHECKPOINT_INTERVAL, interval_s)


def add_processes(samples: Samples, now: NodeNow) -> None:
    """Add the kernel's figures of the workers; one that has exited meanwhile has no samples."""
    import psutil

    for rank, pid, _ in now.workers:
        try:
            process = psutil.Process(pid)
            times, memory = process.cpu_times(), process.memory_info()
        except psutil.Error:
            continue
        samples.put(c.RANK_CPU, times.user + times.system, rank)
        samples.put(c.RANK_MEMORY, memory.rss, rank)


class NodeEndpoint:
    """Listens already; ``serve`` on the loop of the agent, and ``close`` it."""

    def __init__(self, server: MetricsServer) -> None:
        self._server = server
        self._gpus = Gpus()
        self.job = JobMetrics()
        """Follows the master, if it is in this process."""

    def serve(self, agent: Observed, recorder: Recorder, time_report: TimeReport) -> None:
        """Answer scrapes from now on."""
        metrics = NodeMetrics(agent, recorder, time_report, self.job, self._gpus)
        self._server.serve(metrics.collect)

    def close(self) -> None:
        """Stop listening, and end the process that reads the GPUs."""
        self._server.close()
        self._gpus.close()
