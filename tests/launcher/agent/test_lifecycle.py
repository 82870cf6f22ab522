"""What may still happen to a node: each state, each event, what follows, and the next state."""

import itertools
import signal
from collections.abc import Sequence
from typing import Any

import pytest
from ft_run.errors import FtRunError
from ft_run.events.node import (
    KilledOnRequest,
    MasterAwaitedToLeave,
    NodePreempted,
    NodeSignalled,
    ThisNodeLeaves,
)
from ft_run.launcher.agent.lifecycle import (
    MASTER_WAIT_S,
    NEXT,
    EndWorkers,
    Judged,
    KillWorkers,
    Lifecycle,
    LifeEvent,
    LifeOrder,
    Signalled,
    Situation,
    Stage,
    StopWorkers,
    TimeIsUp,
    Wake,
    WorkersGone,
)
from ft_run.launcher.options import LaunchOptions, RendezvousOptions
from ft_run.launcher.preemption.notice import PreemptionNotice
from ft_run.rendezvous.master.link import LinkUp
from ft_run.rendezvous.protocol.drain_messages import MayLeave, Notice
from ft_run.rendezvous.protocol.messages import Heard, Leave, Outcome, Stop, Verdict
from ft_run.tests.harness.scene import worker_failure

LIMIT_S = 10.0
SIGTERM, SIGINT = Signalled(signal.SIGTERM), Signalled(signal.SIGINT)
GCP, LATER = PreemptionNotice("notice of gcp", 30.0), PreemptionNotice("notice of aws", 120.0)
SOONER = PreemptionNotice("notice of azure", 8.0)
GONE, TIME, UP, STOP = WorkersGone(), TimeIsUp(), LinkUp(again=True), Stop(3, "a worker failed")
SAVED = MayLeave(3, 7)
BAD, WORSE = FtRunError("unhealthy"), FtRunError("the master is away")
WON = Verdict(Outcome.SUCCEEDED, 0, "", 0, 4, None, (), 0)
LOST = Verdict(Outcome.WORKERS_FAILED, 1, "", 0, 4, None, (), 0)

TRAINING = Situation(100.0, workers=2, may_save=True)
ASKING = Situation(100.0, workers=2, may_save=True, asks_for_notices=True)
STOPPING = Situation(100.0, workers=2)
IDLE = Situation(100.0)
ALONE = Situation(100.0, is_master_missed=True)
"""Nothing is left of the workers, and the master is absent."""
LATE = Situation(100.0 + LIMIT_S - 2, is_master_missed=True)
TOO_LATE = Situation(100.0 + LIMIT_S, is_master_missed=True)

IS_PREEMPTED, LEAVES, WAITS = [(GCP, TRAINING)], [(SIGTERM, TRAINING)], [(SIGTERM, ALONE)]
NOTIFIES = [
    NodePreempted("notice of gcp", 30.0, 20.0),
    Wake(20.0),
    Notice("notice of gcp", 20),
]
"""The ranks have all of it but what the workers need to end."""

Events = Sequence[tuple[Any, Situation]]


def leaves(reason: str, workers: int = 2, step: int = -1) -> list[LifeOrder]:
    return [ThisNodeLeaves(reason, workers, step), Leave(reason)]


def signalled(name: str, workers: int = 2) -> list[LifeOrder]:
    return [NodeSignalled(name, workers), Leave(name)]


def after(events: Events, shutdown_timeout_s: float = LIMIT_S, **options: Any) -> Lifecycle:
    life = Lifecycle(
        LaunchOptions(
            "", RendezvousOptions(job_id="j"), shutdown_timeout_s=shutdown_timeout_s, **options
        )
    )
    for event, at in events:
        life.handle(event, at)
    return life


# Each line: what happened before; the event; what is known; what follows; the next state.
TABLE: list[tuple[Events, LifeEvent, Situation, list[Any], Stage]] = [
    # a signal
    ([], SIGTERM, TRAINING, [*signalled("SIGTERM"), StopWorkers(15)], Stage.LEAVING),
    ([], SIGTERM, STOPPING, [*signalled("SIGTERM"), StopWorkers(15)], Stage.LEAVING),
    ([], SIGINT, ASKING, [*signalled("SIGINT"), StopWorkers(2)], Stage.LEAVING),
    ([], SIGTERM, IDLE, signalled("SIGTERM", 0), Stage.LEFT),
    ([], SIGTERM, ALONE,
     [*signalled("SIGTERM", 0), MasterAwaitedToLeave(5.0), Wake(MASTER_WAIT_S)],
     Stage.AWAITING_MASTER),
    ([], SIGINT, ALONE, signalled("SIGINT", 0), Stage.LEFT),
    (LEAVES, SIGINT, STOPPING, [KilledOnRequest(), KillWorkers()], Stage.LEAVING),
    (LEAVES, SIGTERM, STOPPING, [], Stage.LEAVING),
    (WAITS, SIGTERM, ALONE, [], Stage.LEFT),
    (WAITS, SIGINT, ALONE, [], Stage.LEFT),
    ([(Judged(LOST), STOPPING)], SIGTERM, STOPPING, [], Stage.JOB_OVER),
    ([(Judged(LOST), STOPPING)], SIGINT, STOPPING, [KilledOnRequest(), KillWorkers()],
     Stage.JOB_OVER),
    ([(BAD, STOPPING)], SIGINT, STOPPING, [*signalled("SIGINT"), StopWorkers(2)], Stage.LEAVING),
    # workers that ask for notices save first on SIGTERM: half of --shutdown-timeout is theirs
    ([], SIGTERM, ASKING,
     [NodePreempted("SIGTERM", 10.0, 5.0), Wake(5.0), Notice("SIGTERM", 5.0)],
     Stage.PREEMPTED),
    ([(SIGTERM, ASKING)], SIGTERM, ASKING, [*signalled("SIGTERM"), StopWorkers(15)], Stage.LEAVING),
    (IS_PREEMPTED, SIGTERM, ASKING, [Wake(5.0), Notice("notice of gcp", 5.0)],
     Stage.PREEMPTED),
    (IS_PREEMPTED, SIGINT, ASKING, [*signalled("SIGINT"), StopWorkers(2)], Stage.LEAVING),
    ([], SIGTERM, Situation(100.0, workers=2, asks_for_notices=True),
     [*leaves("SIGTERM"), StopWorkers(15, patience_s=1.0)], Stage.LEAVING),
    # a notice
    ([], GCP, TRAINING, NOTIFIES, Stage.PREEMPTED),
    ([], GCP, STOPPING, [*leaves("notice of gcp"), StopWorkers(15, patience_s=1.0)], Stage.LEAVING),
    ([], GCP, IDLE, leaves("notice of gcp", 0), Stage.LEFT),
    (IS_PREEMPTED, LATER, TRAINING, [], Stage.PREEMPTED),
    (IS_PREEMPTED, SOONER, TRAINING, [Wake(4.0), Notice("notice of gcp", 4.0)],
     Stage.PREEMPTED),
    (IS_PREEMPTED, LATER, STOPPING, [*leaves("notice of aws"), StopWorkers(15, patience_s=30.0)],
     Stage.LEAVING),
    (LEAVES, GCP, STOPPING, [], Stage.LEAVING),
    ([(Judged(WON), TRAINING)], GCP, TRAINING, [], Stage.JOB_OVER),
    # the ranks have saved, or have had their time, or stop anyway
    (IS_PREEMPTED, SAVED, TRAINING,
     [*leaves("notice of gcp", step=7), StopWorkers(15, patience_s=30.0)], Stage.LEAVING),
    (IS_PREEMPTED, TIME, Situation(120.0, workers=2, may_save=True),
     [*leaves("notice of gcp"), StopWorkers(15, patience_s=10.0)], Stage.LEAVING),
    (IS_PREEMPTED, TIME, Situation(131.0, workers=1),
     [*leaves("notice of gcp", 1), StopWorkers(15, patience_s=1.0)], Stage.LEAVING),
    (IS_PREEMPTED, STOP, STOPPING, [*leaves("notice of gcp"), StopWorkers(15, patience_s=30.0)],
     Stage.LEAVING),
    (IS_PREEMPTED, STOP, IDLE, leaves("notice of gcp", 0), Stage.LEFT),
    ([], STOP, TRAINING, [], Stage.RUNNING),
    ([], SAVED, TRAINING, [], Stage.RUNNING),
    ([], TIME, TRAINING, [], Stage.RUNNING),
    (LEAVES, TIME, STOPPING, [], Stage.LEAVING),
    ([*IS_PREEMPTED, (BAD, TRAINING)], TIME, STOPPING,
     [*leaves("notice of gcp"), StopWorkers(15, patience_s=30.0)], Stage.LEAVING),
    # the workers are gone
    (LEAVES, GONE, IDLE, [], Stage.LEFT),
    (LEAVES, GONE, ALONE, [MasterAwaitedToLeave(5.0), Wake(5.0)], Stage.AWAITING_MASTER),
    (LEAVES, GONE, LATE, [MasterAwaitedToLeave(2.0), Wake(2.0)], Stage.AWAITING_MASTER),
    (LEAVES, GONE, TOO_LATE, [], Stage.LEFT),
    ([(SIGINT, TRAINING)], GONE, ALONE, [], Stage.LEFT),
    ([(BAD, STOPPING), (SIGTERM, STOPPING)], GONE, ALONE, [], Stage.LEFT),
    ([], GONE, ALONE, [], Stage.RUNNING),
    (WAITS, TIME, ALONE, [], Stage.LEFT),
    # the master is there
    (WAITS, UP, IDLE, [], Stage.LEFT),
    (LEAVES, UP, STOPPING, [], Stage.LEAVING),
    ([], UP, TRAINING, [], Stage.RUNNING),
    (IS_PREEMPTED, UP, Situation(105.0), [Notice("notice of gcp", 15.0)], Stage.PREEMPTED),
    (IS_PREEMPTED, UP, Situation(125.0), [Notice("notice of gcp", 0.0)], Stage.PREEMPTED),
    # it fails
    ([], BAD, TRAINING, [EndWorkers(gently=False)], Stage.FAILED),
    (IS_PREEMPTED, BAD, TRAINING, [EndWorkers(gently=False)], Stage.FAILED),
    (LEAVES, BAD, STOPPING, [EndWorkers(gently=False)], Stage.LEFT),
    (WAITS, BAD, ALONE, [EndWorkers(gently=False)], Stage.LEFT),
    ([(Judged(LOST), STOPPING)], BAD, STOPPING, [EndWorkers(gently=False)], Stage.JOB_OVER),
    # the verdict
    ([], Judged(WON), TRAINING, [Heard(), EndWorkers(gently=True)], Stage.JOB_OVER),
    ([], Judged(LOST), TRAINING, [Heard(), EndWorkers(gently=False)], Stage.JOB_OVER),
    ([], Judged(WON, BAD), IDLE, [Heard(), EndWorkers(gently=True)], Stage.FAILED),
    ([(BAD, STOPPING)], Judged(LOST), STOPPING, [Heard(), EndWorkers(gently=False)],
     Stage.JOB_OVER),
    (LEAVES, Judged(LOST), STOPPING, [Heard(), EndWorkers(gently=False)], Stage.LEAVING),
    (WAITS, Judged(WON), IDLE, [Heard(), EndWorkers(gently=True)], Stage.AWAITING_MASTER),
]  # fmt: skip


@pytest.mark.parametrize(("before", "event", "at", "orders", "stage"), TABLE)
def test_what_follows(
    before: Events, event: LifeEvent, at: Situation, orders: list[Any], stage: Stage
) -> None:
    life = after(before)
    assert life.handle(event, at) == orders
    assert life.stage is stage


def test_every_legal_transition_happens_and_no_other() -> None:
    events: list[LifeEvent] = [SIGTERM, SIGINT, GCP, SAVED, STOP, TIME, GONE, UP, BAD, Judged(WON),
              Judged(WON, BAD)]  # fmt: skip
    situations = [TRAINING, ASKING, STOPPING, IDLE, ALONE]
    seen: set[tuple[Stage, Stage]] = set()
    for history in itertools.product(events, repeat=3):
        for at in itertools.product(situations, repeat=3):
            life = after(())
            for event, situation in zip(history, at, strict=True):
                # A node that has failed has had its workers stopped.
                was, is_ending = life.stage, life.stage in (Stage.FAILED, Stage.LEAVING)
                life.handle(event, STOPPING if is_ending and situation.may_save else situation)
                seen.add((was, life.stage))
    # A node that has no workers goes through LEAVING at once.
    at_once = {(stage, to) for stage in NEXT for to in NEXT[Stage.LEAVING]
               if Stage.LEAVING in NEXT[stage]}  # fmt: skip
    legal = {(stage, to) for stage, following in NEXT.items() for to in following}
    assert {(was, to) for was, to in seen if was is not to} - at_once == legal


@pytest.mark.parametrize(
    ("events", "status"),
    [
        ([(SIGTERM, IDLE)], 143),
        ([(SIGINT, IDLE), (Judged(LOST), IDLE)], 130),
        ([*IS_PREEMPTED, (TIME, TRAINING), (GONE, IDLE)], 143),
        ([(Judged(LOST), IDLE), (SIGTERM, IDLE)], 1),
        ([(Judged(WON), IDLE), (BAD, IDLE)], 0),
    ],
)
def test_the_first_of_several_reasons_gives_the_exit_status(events: Events, status: int) -> None:
    life = after(events)
    assert life.is_decided
    assert life.status() == status


@pytest.mark.parametrize("second", [WORSE, Judged(LOST), Judged(LOST, WORSE), SIGTERM])
def test_an_error_stays_what_ends_the_node(second: LifeEvent) -> None:
    life = after([(BAD, STOPPING), (second, STOPPING)])
    assert life.is_decided
    with pytest.raises(FtRunError, match="unhealthy"):
        life.status()


@pytest.mark.parametrize(("propagates", "status"), [(False, 1), (True, 9)])
def test_the_exit_status_may_be_that_of_the_root_cause(propagates: bool, status: int) -> None:
    cause = worker_failure(1, exit_code=9)
    verdict = Verdict(Outcome.WORKERS_FAILED, 1, "", 0, 4, cause, (cause,), 1)
    life = after([(Judged(verdict), IDLE)], propagate_exit_code=propagates)
    assert life.status() == status


@pytest.mark.parametrize(
    ("events", "left_s"),
    [
        ([(Judged(LOST), IDLE)], 10.0),
        (LEAVES, 7.0),  # it counts from the signal
        ([(PreemptionNotice("notice of gcp", 5.0), TRAINING), (Judged(LOST), TRAINING)], 2.0),
        ([(PreemptionNotice("notice of gcp", 1.0), TRAINING), (Judged(LOST), TRAINING)], 1.0),
        ([(GCP, IDLE)], 7.0),
    ],
)
def test_what_remains_has_the_rest_of_the_time(events: Events, left_s: float) -> None:
    assert after(events).time_left_s(103.0) == left_s


def test_workers_are_started_only_while_the_node_goes_on() -> None:
    assert [after(events).goes_on for events in ([], IS_PREEMPTED, LEAVES, WAITS)] == [
        *(True, True),
        *(False, False),
    ]
    assert not after([(BAD, STOPPING)]).goes_on
    assert not after([(Judged(WON), STOPPING)]).goes_on
