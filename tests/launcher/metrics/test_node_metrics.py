"""The metrics of a node, from values of several moments."""

import asyncio
import os
from types import SimpleNamespace
from typing import Any

from ft_run.events.workers import RoundProgressed, RoundStarted
from ft_run.launcher.history import accounting
from ft_run.launcher.history.event_history import EventHistory
from ft_run.launcher.history.phases import Account, Phase
from ft_run.launcher.history.recorder import Clocks, Recorder
from ft_run.launcher.metrics import catalogue as c
from ft_run.launcher.metrics.catalogue import Samples
from ft_run.launcher.metrics.node_metrics import NodeEndpoint, NodeFold, add_account, add_processes
from ft_run.launcher.processes.worker_watch import Progress

MONOTONIC_S, WALL_S = 5_000.0, 1_780_000_000.0


def worker(rank: int, progress: Progress | None, wait_s: float | None = None) -> Any:
    loading = None if wait_s is None else SimpleNamespace(wait_s=wait_s)
    watch = SimpleNamespace(progress=lambda: progress, loading=lambda: loading)
    return SimpleNamespace(rank=rank, watch=watch)


def progress(pid: int, steps: int, after_s: float) -> Progress:
    return Progress(pid, steps, steps, MONOTONIC_S + after_s, 1.0)


def scraped(fold: NodeFold, after_s: float = 0.0, *workers: Any, **changes: Any) -> Samples:
    values = {"round": 0, "snapshot_step": -1, "checkpoint": (None, None)} | changes
    number = values.pop("round")
    assignment = SimpleNamespace(round=number) if number is not None else None
    agent: Any = SimpleNamespace(running=workers, assignment=assignment, **values)
    samples = Samples()
    fold.add(samples, agent, MONOTONIC_S + after_s, WALL_S + after_s)
    return samples


def test_counters_begin_at_zero() -> None:
    """Prometheus would not see one grow that begins with its first increase."""
    samples = Samples()
    add_account(samples, Account({Phase.WAITING: 5.0}))
    assert set(samples[c.PHASE_SECONDS].values()) == {0.0, 5.0}
    assert len(samples[c.PHASE_SECONDS]) == len(Phase)
    for metric in (c.LOST_SECONDS, c.RESTARTS):
        assert {"worker", "node_lost", "hang"} < {cause for (cause,) in samples[metric]}
        assert set(samples[metric].values()) == {0.0}


def test_the_causes_of_what_was_lost() -> None:
    samples = Samples()
    add_account(samples, Account(lost={"requeue": 7.0, "hang": 2.0}, restarts={"hang": 1.0}))
    assert samples[c.LOST_SECONDS][("requeue",)] == 7
    assert samples[c.LOST_SECONDS][("hang",)] == 2
    assert samples[c.RESTARTS][("hang",)] == 1


def test_the_wait_for_data() -> None:
    first, second = worker(0, progress(10, 5, 0.0)), progress(10, 5, 0.0)
    samples = scraped(NodeFold(), 0.0, first, worker(1, second))
    assert samples[c.DATA_WAIT] == {(): 0.0}
    slow = second._replace(data_wait=0.25)
    samples = scraped(NodeFold(), 0.0, first, worker(1, slow, 2.5))
    assert samples[c.DATA_WAIT] == {(): 0.25}
    assert samples[c.RANK_DATA_WAIT] == {("1",): 2.5}


def test_what_is_not_known_has_no_sample() -> None:
    samples = scraped(NodeFold(), round=None)
    for metric in (c.ROUND, c.LAST_STEP, c.STEP, c.LAST_SNAPSHOT, c.LAST_CHECKPOINT):
        assert metric not in samples


def test_the_last_step_stays_while_there_are_no_workers() -> None:
    fold = NodeFold()
    workers = worker(2, progress(70, 40, -3)), worker(3, progress(71, 41, -2))
    samples = scraped(fold, 0.0, *workers)
    assert samples[c.LAST_STEP] == {(): WALL_S - 2}
    assert samples[c.STEP] == {(): 41}
    assert samples[c.RANK_STEPS] == {("2",): 40, ("3",): 41}
    samples = scraped(fold, 30.0)
    assert samples[c.LAST_STEP] == {(): WALL_S - 2}
    restarted = worker(2, progress(80, 20, 55)), worker(3, None)
    samples = scraped(fold, 60.0, *restarted, round=1)
    assert samples[c.LAST_STEP] == {(): WALL_S + 55}
    assert samples[c.STEP] == {(): 20}
    assert samples[c.RANK_STEPS] == {("2",): 60, ("3",): 41}


def test_a_snapshot_is_as_old_as_the_scrape_that_found_it() -> None:
    fold = NodeFold()
    assert c.LAST_SNAPSHOT not in scraped(fold)
    assert scraped(fold, 15, snapshot_step=20)[c.LAST_SNAPSHOT] == {(): WALL_S + 15}
    assert scraped(fold, 30, snapshot_step=20)[c.LAST_SNAPSHOT] == {(): WALL_S + 15}
    kept = scraped(fold, 45, snapshot_step=20, round=1)  # all resume from it
    assert kept[c.LAST_SNAPSHOT] == {(): WALL_S + 15}
    assert scraped(fold, 60, snapshot_step=-1)[c.LAST_SNAPSHOT] == {(): WALL_S + 15}
    # Step 40 is done again in the next round: that is another snapshot.
    assert scraped(fold, 75, snapshot_step=40, round=1)[c.LAST_SNAPSHOT] == {(): WALL_S + 75}


def test_checkpoints() -> None:
    samples = scraped(NodeFold(), checkpoint=(12.5, 600.0))
    assert samples[c.LAST_CHECKPOINT] == {(): WALL_S - 12.5}
    assert samples[c.CHECKPOINT_INTERVAL] == {(): 600}


def test_processes_as_the_kernel_sees_them() -> None:
    samples, gone = Samples(), 2**22 + 1  # above pid_max
    add_processes(samples, {0: os.getpid(), 1: gone})
    assert samples[c.RANK_CPU].keys() == samples[c.RANK_MEMORY].keys() == {("0",)}
    assert samples[c.RANK_CPU][("0",)] > 0
    assert samples[c.RANK_MEMORY][("0",)] > 1e6


class Job:
    """A node whose workers train, with a clock set by hand."""

    def __init__(self) -> None:
        self.now = 0.0
        clocks = Clocks(lambda: WALL_S + self.now, lambda: self.now, lambda: self.now)
        self.recorder = Recorder("job", clocks=clocks)
        self.history, self.written = EventHistory(), list[Any]()
        self.recorder.add(self.history.add)
        self.recorder.add(self.written.append)
        self.is_training = False
        self.endpoint = NodeEndpoint(SimpleNamespace())

    def scrape(self) -> Samples:
        agent: Any = SimpleNamespace(
            progress=self.progress, running=(), assignment=None, snapshot_step=-1,
            checkpoint=(None, None),
        )  # fmt: skip
        samples, _ = asyncio.run(self.endpoint._read(agent, self.recorder, self.history))
        return samples

    def progress(self) -> RoundProgressed | None:
        step = int(self.now) if self.is_training else -1
        phases = {"importing and building": 10.0} | ({"training": self.now} if step >= 0 else {})
        return RoundProgressed(0, 0, step, 1.0, 0.0, -1, -1, "", phases)


def test_a_scrape_is_not_an_event_and_leaves_nothing() -> None:
    job = Job()
    job.recorder.event(RoundStarted(0, 0, 1, 1, 0, "r", is_watched=True))
    for _ in range(40):
        job.now += 1
        job.scrape()
    assert [record["name"] for record in job.written] == ["round.started"]
    known = job.history.folded().account(job.recorder.node)
    job.is_training, known.phase = True, Phase.TRAINING
    for _ in range(3 * accounting._STRETCHES_MAX):
        job.now += 1
        job.scrape()
    assert len(job.written) == 1
    assert len(known._kept._stretches) <= accounting._STRETCHES_MAX
    assert job.scrape()[c.PHASE_SECONDS][(Phase.TRAINING.value,)] == 3.0 * accounting._STRETCHES_MAX


def test_a_host_that_was_suspended_before_a_scrape() -> None:
    """That is an event, from which the time counts as suspended."""
    job = Job()
    job.recorder._suspended_s -= 50.0
    job.now += 60.0
    assert job.scrape()[c.PHASE_SECONDS][(Phase.SUSPENDED.value,)] == 50.0
    assert [record["name"] for record in job.written] == ["host.suspended"]
