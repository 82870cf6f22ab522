"""The metrics of a node, from values of several moments."""

import dataclasses
import os
from typing import Any

from ft_run.launcher.history.accounting import Phase
from ft_run.launcher.metrics import catalogue as c
from ft_run.launcher.metrics.catalogue import Samples
from ft_run.launcher.metrics.node_metrics import NodeFold, NodeNow, add_processes
from ft_run.launcher.processes.worker_watch import Progress

MONOTONIC_S, WALL_S = 5_000.0, 1_780_000_000.0


def now(after_s: float = 0.0, **changes: Any) -> NodeNow:
    values: dict[str, Any] = {
        "phases": {Phase.WAITING: 5.0},
        "lost": {},
        "restarts": {},
        "failed_saves": 0,
        "round": 0,
        "node_rank": 1,
        "workers": (),
        "data_wait_s": {},
        "snapshot_step": -1,
        "checkpoint": (None, None),
        "monotonic_s": MONOTONIC_S + after_s,
        "wall_s": WALL_S + after_s,
    }
    return NodeNow(**(values | changes))


def progress(pid: int, steps: int, after_s: float) -> Progress:
    return Progress(pid, steps, steps, MONOTONIC_S + after_s, 1.0)


def scraped(fold: NodeFold, moment: NodeNow) -> Samples:
    samples = Samples()
    fold.add(samples, moment)
    return samples


def test_counters_begin_at_zero() -> None:
    """Prometheus would not see one grow that begins with its first increase."""
    samples = scraped(NodeFold(), now())
    assert set(samples[c.PHASE_SECONDS].values()) == {0.0, 5.0}
    assert len(samples[c.PHASE_SECONDS]) == len(Phase)
    for metric in (c.LOST_SECONDS, c.RESTARTS):
        assert {"worker", "node_lost", "hang"} < {cause for (cause,) in samples[metric]}
        assert set(samples[metric].values()) == {0.0}
    assert samples[c.CHECKPOINT_FAILURES] == {(): 0}


def test_the_wait_for_data() -> None:
    workers = tuple((rank, 10, progress(10, 5, 0.0)) for rank in (0, 1))
    assert scraped(NodeFold(), now(workers=workers))[c.DATA_WAIT] == {(): 0.0}
    slow = dataclasses.replace(workers[1][2], data_wait=0.25)
    moment = now(workers=(workers[0], (1, 10, slow)), data_wait_s={1: 2.5})
    samples = scraped(NodeFold(), moment)
    assert samples[c.DATA_WAIT] == {(): 0.25}
    assert samples[c.RANK_DATA_WAIT] == {("1",): 2.5}


def test_what_is_not_known_has_no_sample() -> None:
    samples = scraped(NodeFold(), now(round=-1, node_rank=-1))
    for metric in (c.ROUND, c.LAST_STEP, c.STEP, c.LAST_SNAPSHOT, c.LAST_CHECKPOINT):
        assert metric not in samples
    assert samples[c.NODE_RANK] == {(): -1}


def test_the_causes_of_what_was_lost() -> None:
    moment = now(lost={"requeue": 7.0, "hang": 2.0}, restarts={"hang": 1.0})
    samples = scraped(NodeFold(), moment)
    assert samples[c.LOST_SECONDS][("requeue",)] == 7
    assert samples[c.LOST_SECONDS][("hang",)] == 2
    assert samples[c.RESTARTS][("hang",)] == 1


def test_the_last_step_stays_while_there_are_no_workers() -> None:
    fold = NodeFold()
    workers = ((2, 70, progress(70, 40, -3)), (3, 71, progress(71, 41, -2)))
    samples = scraped(fold, now(workers=workers))
    assert samples[c.LAST_STEP] == {(): WALL_S - 2}
    assert samples[c.STEP] == {(): 41}
    assert samples[c.RANK_STEPS] == {("2",): 40, ("3",): 41}
    samples = scraped(fold, now(30))
    assert samples[c.LAST_STEP] == {(): WALL_S - 2}
    restarted = ((2, 80, progress(80, 20, 55)), (3, 81, None))
    samples = scraped(fold, now(60, round=1, workers=restarted))
    assert samples[c.LAST_STEP] == {(): WALL_S + 55}
    assert samples[c.STEP] == {(): 20}
    assert samples[c.RANK_STEPS] == {("2",): 60, ("3",): 41}


def test_a_snapshot_is_as_old_as_the_scrape_that_found_it() -> None:
    fold = NodeFold()
    assert c.LAST_SNAPSHOT not in scraped(fold, now())
    assert scraped(fold, now(15, snapshot_step=20))[c.LAST_SNAPSHOT] == {(): WALL_S + 15}
    assert scraped(fold, now(30, snapshot_step=20))[c.LAST_SNAPSHOT] == {(): WALL_S + 15}
    kept = scraped(fold, now(45, snapshot_step=20, round=1))  # all resume from it
    assert kept[c.LAST_SNAPSHOT] == {(): WALL_S + 15}
    assert scraped(fold, now(60, snapshot_step=-1))[c.LAST_SNAPSHOT] == {(): WALL_S + 15}
    # Step 40 is done again in the next round: that is another snapshot.
    assert scraped(fold, now(75, snapshot_step=40, round=1))[c.LAST_SNAPSHOT] == {(): WALL_S + 75}


def test_checkpoints() -> None:
    samples = scraped(NodeFold(), now(checkpoint=(12.5, 600.0), failed_saves=3))
    assert samples[c.LAST_CHECKPOINT] == {(): WALL_S - 12.5}
    assert samples[c.CHECKPOINT_INTERVAL] == {(): 600}
    assert samples[c.CHECKPOINT_FAILURES] == {(): 3}


def test_processes_as_the_kernel_sees_them() -> None:
    samples, gone = Samples(), 2**22 + 1  # above pid_max
    add_processes(samples, now(workers=((0, os.getpid(), None), (1, gone, None))))
    assert samples[c.RANK_CPU].keys() == samples[c.RANK_MEMORY].keys() == {("0",)}
    assert samples[c.RANK_CPU][("0",)] > 0
    assert samples[c.RANK_MEMORY][("0",)] > 1e6
