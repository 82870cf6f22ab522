"""Where the time went: each second in one phase, whatever happens."""

import math
import time
from datetime import datetime
from typing import Any

import pytest
from ft_run.events.event import Event, HostSuspended
from ft_run.events.node import (
    DrainOrdered,
    JobEnded,
    MasterUnreachable,
    NodeSignalled,
    NodeStarted,
    NodeWaits,
    WorkersAlone,
    WorkersFenced,
)
from ft_run.events.workers import (
    HangDismissed,
    HangSuspected,
    RegroupBegun,
    RestartBegun,
    RoundEnded,
    RoundProgressed,
    RoundStarted,
    TrainingStarted,
    WorkerFailed,
    WorkersStarted,
    WorkersStopped,
    WorkersSucceeded,
)
from ft_run.launcher.history.accounted import NAMES
from ft_run.launcher.history.accounting import Account, Accounting, seconds_of
from ft_run.launcher.history.phases import OTHERS, Activities, Activity, Phase, Spent
from ft_run.launcher.history.recorder import Clocks, Recorder
from ft_run.launcher.reporting.time_report import accounted, table
from ft_run.rendezvous.protocol.failure import Failure, hung, node_lost
from ft_run.rendezvous.protocol.messages import Outcome, Verdict, Waiting
from hypothesis import given
from hypothesis import strategies as st

LOST = node_lost(1, "h", "r", "gone")
HUNG = hung(1, "h", "r", "no step")
VERDICT = Verdict(Outcome.SUCCEEDED, 0, "done", 0, 1, None, (), 0)


class History:
    """The events of a node, made and accounted for as they happen, with a clock set by hand."""

    def __init__(self) -> None:
        self.now, self.round = 1_000_000.0, 0
        self.accounting = Accounting()
        self.begin()

    def begin(self) -> None:
        """A ft-run starts."""
        clocks = Clocks(lambda: self.now, lambda: self.now, lambda: self.now)
        self.recorder = Recorder("job", clocks=clocks)
        self.recorder.add(self.accounting.add, NAMES)

    def happens(self, *events: Event | float) -> None:
        """Add events; a number lets time pass."""
        for event in events:
            if isinstance(event, Event):
                self.recorder.event(event)
            else:
                self.now += event

    def started(self) -> None:
        self.happens(0.5, NodeStarted("job", "vm/0", 1, "s", "m"))

    def trains(self, seconds: float, *, first: int = -1, back_to: int = -1) -> None:
        """A round starts in 1 s, its workers import for 2 s, then train."""
        self.happens(
            RoundStarted(self.round, 0, 2, 2, 0, "r", back_to, is_watched=True), 1.0,
            workers_started(self.round), 2.0, TrainingStarted(self.round, 0, first), seconds,
        )  # fmt: skip

    def fails(self, failure: Failure, *, steps: int = -1) -> None:
        """A worker fails, the round takes 3 s to stop, and the next one 4 s to be formed."""
        self.happens(
            WorkerFailed(self.round, 0, failure), 3.0, RoundEnded(self.round, 0, steps, False), 4.0
        )
        self.round += 1
        self.happens(RestartBegun(self.round, 0, failure, "", False, 1, 3))

    def account(self, *, of_all: bool = False) -> Account:
        return self.accounting.account(self.recorder.uptime_s, of_all=of_all)


def workers_started(number: int) -> WorkersStarted:
    return WorkersStarted(number, 0, 0, (1,), 2, 2, "h", 1, None)


def waits(*, spare: bool = False) -> NodeWaits:
    return NodeWaits(Waiting(1, 2, 2, (), 60.0, spare), is_backoff_given=False)


def test_a_job_with_a_restart() -> None:
    job = History()
    job.started()
    job.happens(waits(), 7.0)
    job.trains(100.0, first=1)
    job.fails(LOST, steps=101)
    job.trains(50.0, first=82, back_to=81)
    job.happens(WorkersSucceeded(1, 0, 1, 2), 0.25, RoundEnded(1, 0, 131, True), 0.25)
    account = job.account()
    assert account.phases == pytest.approx(
        {
            Phase.STARTING: 0.5,
            Phase.WAITING: 7.0 + 4.0,
            Phase.SPAWNING: 2.0,
            Phase.BUILDING: 4.0,
            Phase.TRAINING: 150.0,
            Phase.STOPPING: 3.5,
        }
    )
    assert account.restarts == {"node_lost": 1}
    assert account.restart_phases == pytest.approx(
        {Phase.STOPPING: 3.0, Phase.WAITING: 4.0, Phase.SPAWNING: 1.0, Phase.BUILDING: 2.0}
    )
    assert account.lost == pytest.approx({"node_lost": 20.0})  # 20 of 100 steps
    assert account.goodput == pytest.approx(130.0 / account.seconds)


def test_going_back_twice_loses_no_step_twice() -> None:
    job = History()
    job.started()
    job.trains(100.0, first=0)
    job.fails(LOST, steps=100)
    job.trains(10.0, first=51, back_to=50)
    job.fails(HUNG, steps=61)
    assert job.account().lost == pytest.approx({"node_lost": 50.0})
    job.trains(10.0, first=41, back_to=40)  # 10 s of the second round, 10 steps of the first
    assert job.account().lost == pytest.approx({"node_lost": 50.0, "hang": 20.0})


def test_a_script_that_counts_its_steps_loses_them_without_a_snapshot_too() -> None:
    job = History()
    job.started()
    job.trains(100.0, first=1000)
    job.fails(LOST, steps=1100)
    assert job.account().lost == {}
    job.trains(1.0, first=1051)
    assert job.account().lost == pytest.approx({"node_lost": 50.0})


def test_the_idle_time_before_a_hang_is_lost() -> None:
    job = History()
    job.started()
    job.trains(100.0)
    job.happens(HangSuspected(0, 0, (0,), 60.0), 5.0, WorkersStopped(0, 0, 1, "hang", False))
    job.fails(HUNG)
    account = job.account()
    assert account.phases[Phase.HANGING] == 5.0
    assert account.lost == {"hang": 60.0}
    assert account.restart_phases[Phase.HANGING] == 5.0


def test_idle_time_is_not_lost_twice_in_whatever_order_events_come() -> None:
    job = History()
    job.started()
    job.trains(100.0, first=0)
    job.happens(HangSuspected(0, 0, (0,), 60.0), RestartBegun(1, 0, HUNG, "", False, 1, 3))
    job.happens(RoundEnded(0, 0, 10, False))
    job.trains(0.0, first=0, back_to=0)
    assert job.account().lost == pytest.approx({"hang": 100.0})


def test_a_hang_that_is_dismissed_is_none() -> None:
    job = History()
    job.started()
    job.trains(100.0)
    job.happens(HangSuspected(0, 0, (0,), 60.0), 5.0, HangDismissed(0, 0, "it moves"), 10.0)
    account = job.account()
    assert account.phases[Phase.TRAINING] == 110.0
    assert account.lost == {}
    assert account.restart_phases == {}


def test_without_the_hook_nothing_but_running_is_known() -> None:
    job = History()
    job.started()
    job.happens(RoundStarted(0, 0, 1, 1, 0, "r"), 1.0, workers_started(0), 30.0)
    job.fails(LOST)
    job.happens(RoundStarted(1, 0, 1, 1, 1, "r"), 1.0, workers_started(1), 20.0)
    account = job.account()
    assert account.phases[Phase.RUNNING] == 50.0
    assert not {Phase.TRAINING, Phase.BUILDING} & {*account.phases}
    assert account.goodput is None
    assert sum(account.restart_phases.values()) == 8.0


def test_a_master_that_is_away_changes_nothing_while_workers_train() -> None:
    job = History()
    job.started()
    job.trains(10.0)
    away = MasterUnreachable("r", "e", WorkersAlone.RUNNING, 600.0, is_again=True)
    job.happens(away, 20.0, WorkersFenced(20.0), 1.0, RoundEnded(0, 0, -1, False), 9.0)
    account = job.account()
    assert (account.phases[Phase.TRAINING], account.phases[Phase.STOPPING]) == (30.0, 1.0)
    assert account.phases[Phase.WAITING] == 9.0


def test_a_spare_a_drain_and_a_regroup() -> None:
    job = History()
    job.started()
    job.happens(waits(spare=True), 10.0)
    job.trains(5.0)
    job.happens(DrainOrdered("r", 15.0), 2.0, WorkersStopped(0, 0, 1, "r", False), 1.0)
    job.happens(RoundEnded(0, 0, -1, False), 1.0, RegroupBegun(1, 0, 1, "r"))
    job.trains(5.0)
    account = job.account()
    assert (account.phases[Phase.STANDING_BY], account.phases[Phase.DRAINING]) == (10.0, 2.0)
    assert account.restarts == {}
    assert account.restart_phases == {}


def test_a_suspension_of_the_host_is_no_training() -> None:
    job = History()
    job.started()
    job.trains(10.0)
    job.happens(30.0, HostSuspended(25.0), 1.0)
    account = job.account()
    assert (account.phases[Phase.TRAINING], account.phases[Phase.SUSPENDED]) == (16.0, 25.0)


def test_requeues_count_for_the_ratio_since_the_first_start() -> None:
    job = History()
    job.started()
    job.trains(100.0, first=0)
    job.happens(NodeSignalled("SIGTERM", 1), 1.0, RoundEnded(0, 0, 100, True))
    job.happens(60.0)  # in the queue
    job.begin()
    job.started()
    job.trains(50.0, first=91)
    this, all_of_it = job.account(), job.account(of_all=True)
    assert this.phases[Phase.TRAINING] == 50.0
    assert Phase.ENDED not in this.phases
    assert this.seconds == pytest.approx(0.5 + 3.0 + 50.0)
    assert all_of_it.phases[Phase.ENDED] == pytest.approx(60.0)
    assert all_of_it.seconds == pytest.approx(job.now - 1_000_000.0)
    assert all_of_it.lost == pytest.approx({"requeue": 10.0})
    assert all_of_it.goodput == pytest.approx(140.0 / all_of_it.seconds)


def test_an_agent_that_was_killed_has_trained_until_its_last_event() -> None:
    job = History()
    job.started()
    job.trains(60.0, first=0)
    job.happens(RoundProgressed(0, 0, 30, 0.5, 0.0), 5.0)
    job.begin()
    job.happens(100.0, NodeStarted("job", "vm/0", 1, "s", "m"))  # its uptime is larger
    account = job.account(of_all=True)
    assert account.phases[Phase.TRAINING] == 60.0
    assert account.phases[Phase.ENDED] == 5.0
    assert account.phases[Phase.STARTING] == 100.5
    job.trains(1.0, first=21)
    assert job.account(of_all=True).lost == pytest.approx({"requeue": 20.0})


# --- what workers report ------------------------------------------------------------------------


def reports(doing: str = "", idle_s: float = 0.0, steps: int = -1, **spent: float) -> Event:
    """The first worker reports; ``_`` in a name stands for a space."""
    named = {name.replace("_", " "): seconds for name, seconds in spent.items()}
    return RoundProgressed(0, 0, steps, 1.0, idle_s, doing=doing, phases=named)


def idles(idle_s: float, steps: int, **spent: float) -> Event:
    """The first worker reports the training since its last step."""
    return RoundProgressed(
        0, 0, steps, 1.0, 99.0, doing="training", phases=spent, idle_training_s=idle_s
    )


def starts(job: History) -> None:
    job.started()
    job.happens(RoundStarted(0, 0, 1, 1, 0, "r", is_watched=True), 1.0, workers_started(0))


def test_what_workers_do_is_known_to_the_moment_whenever_it_is_reported() -> None:
    job = History()
    starts(job)
    job.happens(
        60.0,
        reports("training", building_=0.0, joining=3.0, restoring=5.0, first_step=40.0,
                training=2.0),
        TrainingStarted(0, 0, -1),
        60.0,
        reports("evaluate", joining=3.0, restoring=5.0, first_step=40.0, training=50.0, saving=4.0,
                evaluate=8.0),
        WorkerFailed(0, 0, LOST), 1.0,
    )  # fmt: skip
    assert job.account().phases == pytest.approx(
        {
            Phase.STARTING: 0.5,
            Phase.SPAWNING: 1.0,
            Phase.BUILDING: 10.0,
            Phase.JOINING: 3.0,
            Phase.RESTORING: 5.0,
            Phase.FIRST_STEP: 40.0,
            Phase.TRAINING: 50.0,
            Phase.SAVING: 4.0,
            Activity("evaluate"): 8.0,
            Phase.STOPPING: 1.0,
        }
    )


def test_a_restart_lasts_until_the_first_step() -> None:
    job = History()
    job.started()
    job.trains(10.0)
    job.fails(LOST)
    job.happens(
        RoundStarted(1, 0, 2, 2, 1, "r", is_watched=True), 1.0, workers_started(1), 6.0,
        reports("training", joining=1.0, first_step=3.0, training=0.5), TrainingStarted(1, 0, -1),
        5.0,
    )  # fmt: skip
    account = job.account()
    assert account.phases[Phase.TRAINING] == pytest.approx(15.5)
    assert account.restart_phases == pytest.approx(
        {
            Phase.STOPPING: 3.0,
            Phase.WAITING: 4.0,
            Phase.SPAWNING: 1.0,
            Phase.BUILDING: 1.5,
            Phase.JOINING: 1.0,
            Phase.FIRST_STEP: 3.0,
        }
    )


def test_only_training_is_lost() -> None:
    job = History()
    starts(job)
    job.happens(2.0, reports("training", first_step=2.0), TrainingStarted(0, 0, 0))
    job.happens(100.0, reports("training", steps=60, first_step=2.0, training=60.0, evaluate=40.0))
    job.fails(LOST, steps=60)
    job.trains(1.0, first=31)
    assert job.account().lost == pytest.approx({"node_lost": 30.0})


def test_the_idle_time_of_a_hang_is_lost_when_it_is_reported_with_the_steps() -> None:
    job = History()
    job.started()
    job.trains(100.0, first=0)
    job.happens(idles(60.0, 40, training=100.0), HangSuspected(0, 0, (0,), 60.0), 5.0)
    job.fails(HUNG, steps=40)
    assert job.account().lost == pytest.approx({"hang": 60.0})
    job.trains(1.0, first=21, back_to=20)
    assert job.account().lost == pytest.approx({"hang": 60.0 + 20.0})


def test_an_activity_does_not_change_the_training_that_is_lost() -> None:
    job = History()
    job.started()
    job.trains(92.0, first=0)
    # 20 steps in 80 s, with an activity between them, and another one in the unfinished step.
    job.happens(idles(5.0, 20, training=85.0, evaluate=7.0))
    job.fails(LOST, steps=20)
    job.trains(1.0, first=11)
    assert job.account().lost == pytest.approx({"node_lost": 40.0 + 5.0})


def test_without_the_number_of_steps_what_a_failure_loses_is_not_known() -> None:
    job = History()
    job.started()
    job.trains(10.0)
    job.happens(idles(5.0, -1, training=10.0))
    job.fails(LOST)
    assert job.account().lost == {}


def test_the_exit_of_a_worker_is_no_training_and_a_part_of_the_restart() -> None:
    job = History()
    training(job)
    job.happens(10.0, reports("", training=7.0, stopping=3.0))
    job.fails(LOST)
    account = job.account()
    assert (account.phases[Phase.TRAINING], account.phases[Phase.STOPPING]) == (7.0, 6.0)
    assert account.restart_phases[Phase.STOPPING] == 6.0


def test_what_is_reported_from_before_the_exit_of_a_worker_is_no_part_of_the_restart() -> None:
    job = History()
    training(job)
    job.happens(10.0, reports("", stopping=3.0, saving=2.0, training=5.0))
    job.fails(LOST)
    assert job.account().restart_phases == {Phase.STOPPING: 6.0, Phase.WAITING: 4.0}


def test_a_hang_in_an_activity_loses_no_training() -> None:
    job = History()
    job.started()
    job.trains(100.0)
    job.happens(reports("evaluate", 80.0, training=30.0, evaluate=70.0))
    job.happens(HangSuspected(0, 0, (0,), 80.0), 5.0)
    job.fails(HUNG)
    assert job.account().lost == {}
    assert job.account().phases[Activity("evaluate")] == 70.0


def test_what_was_shown_stays() -> None:
    job = History()
    starts(job)
    job.happens(2.0, reports("training", first_step=2.0), TrainingStarted(0, 0, 0), 30.0)
    assert job.account().phases[Phase.TRAINING] == 30.0
    job.happens(10.0, reports("training", first_step=2.0, training=20.0, evaluate=20.0))
    phases = job.account().phases
    assert (phases[Phase.TRAINING], phases[Activity("evaluate")]) == (30.0, 10.0)


def training(job: History) -> None:
    """A watched worker trains from its start."""
    starts(job)
    job.happens(TrainingStarted(0, 0, 0))


def test_a_sum_that_falls_adds_no_time() -> None:
    job = History()
    training(job)
    job.happens(10.0, reports("training", training=5.0, evaluate=5.0))
    job.happens(10.0, reports("training", training=3.0, evaluate=1.0))  # another process
    account = job.account()
    assert account.phases[Phase.TRAINING] == pytest.approx(15.0)
    assert account.seconds == pytest.approx(job.now - 1_000_000.0)


def test_no_more_training_is_lost_than_there_was() -> None:
    job = History()
    job.started()
    job.trains(10.0, first=0)
    job.happens(HangSuspected(0, 0, (0,), 100.0))
    job.fails(HUNG)
    assert job.account().lost == pytest.approx({"hang": 10.0})


def test_no_more_training_is_lost_than_this_node_has_seen() -> None:
    job = History()
    job.started()
    job.trains(100.0, first=0)
    job.happens(idles(500.0, 40, training=100.0))
    job.fails(LOST, steps=40)
    assert job.account().lost == pytest.approx({"node_lost": 100.0})


def test_the_idle_time_before_a_regroup_is_not_lost_in_the_round_after_it() -> None:
    job = History()
    job.started()
    job.trains(100.0, first=0)
    job.happens(idles(60.0, 40, training=100.0))
    job.happens(RoundEnded(0, 0, 40, False), RegroupBegun(1, 0, 1, "r"))
    job.round = 1
    job.trains(1.0, first=41, back_to=40)
    job.fails(LOST)
    assert job.account().lost == {}


def test_a_suspension_does_not_decide_what_workers_did_before_it() -> None:
    job = History()
    training(job)
    job.happens(30.0, HostSuspended(25.0), 5.0, reports("evaluate", evaluate=10.0))
    account = job.account()
    assert (account.phases[Activity("evaluate")], account.phases[Phase.SUSPENDED]) == (10.0, 25.0)
    assert Phase.TRAINING not in account.phases


def test_the_time_before_a_kill_is_that_of_its_phase() -> None:
    job = History()
    training(job)
    job.happens(10.0, HostSuspended(4.0))
    job.begin()
    job.started()
    assert job.account(of_all=True).phases[Phase.TRAINING] == pytest.approx(6.0)


def test_a_restart_that_lasts_is_shown_and_ends_with_ft_run() -> None:
    job = History()
    job.started()
    job.trains(10.0)
    job.fails(LOST)
    job.happens(5.0)
    assert job.account().restart_phases[Phase.WAITING] == pytest.approx(9.0)
    job.begin()
    job.started()
    assert Phase.STARTING not in job.account().restart_phases


def test_a_hang_that_is_dismissed_before_the_first_step_does_not_end_a_restart() -> None:
    job = History()
    job.started()
    job.trains(10.0)
    job.fails(LOST)
    job.happens(
        RoundStarted(1, 0, 2, 2, 1, "r", is_watched=True), workers_started(1), 2.0,
        HangSuspected(1, 0, (0,), 2.0), 5.0, HangDismissed(1, 0, "it compiles"), 3.0,
        TrainingStarted(1, 0, 0),
    )  # fmt: skip
    restart = job.account().restart_phases
    assert (restart[Phase.BUILDING], restart[Phase.HANGING]) == pytest.approx((5.0, 5.0))


def test_the_wait_for_data_is_that_of_all_rounds_and_slow_steps_are_shown() -> None:
    job = History()
    for number, wait_s in enumerate((5.0, 3.0)):
        starts(job)
        job.happens(TrainingStarted(number, 0, -1))
        for minute in range(1, 41):
            steps = 600 * minute if minute < 20 else 600 * 20 + 300 * (minute - 20)
            job.happens(
                60.0,
                RoundProgressed(
                    number, 0, -1, 1.0, 0.0, doing="training", counted_steps=steps,
                    phases={"training": 60.0 * minute}, data_wait_s=(wait_s,),
                ),
            )  # fmt: skip
    overlapping = job.account(of_all=True).overlapping
    assert overlapping["data wait"] == pytest.approx(8.0)
    assert overlapping["slow steps"] > 60.0


def test_the_goodput_is_a_share_or_not_known() -> None:
    assert Account().goodput is None
    assert Account(phases={Phase.TRAINING: 1.0}, lost={"hang": 5.0}).goodput == 0.0


def test_the_names_of_activities_are_bounded() -> None:
    activities = Activities()
    names = [activities.find(f"epoch {number}") for number in range(100)]
    assert names[31:33] == [Activity("epoch 31"), OTHERS]
    assert activities.find("epoch 3") == Activity("epoch 3")
    assert activities.find("saving") is Phase.SAVING
    assert Activities().find("running") == Activity("running")


WORK: Any = st.tuples(
    st.sampled_from([Phase.TRAINING, Phase.SAVING, Activity("evaluate"), Activity("draining")]),
    st.floats(0.0, 100.0),
    st.booleans(),
)


@given(
    st.lists(
        st.tuples(
            st.sampled_from([Phase.BUILDING, Phase.JOINING, Phase.FIRST_STEP, Activity("warm")]),
            st.floats(0.0, 100.0), st.booleans(),
        )
    ),
    st.lists(WORK, min_size=1),
)  # fmt: skip
def test_each_second_of_a_worker_is_counted_as_what_it_did(
    start: list[tuple[Spent, float, bool]], work: list[tuple[Spent, float, bool]]
) -> None:
    job = History()
    starts(job)
    spent: dict[Spent, float] = {}

    def report(doing: Spent) -> None:
        named = {phase.value: seconds for phase, seconds in spent.items()}
        job.happens(RoundProgressed(0, 0, -1, 1.0, 0.0, doing=doing.value, phases=named))

    for number, (doing, seconds, is_reported) in enumerate([*start, *work]):
        if number == len(start):
            report(doing)
            job.happens(TrainingStarted(0, 0, -1))
        spent[doing] = spent.get(doing, 0.0) + seconds
        job.happens(seconds)
        if is_reported:
            report(doing)
    report(work[-1][0])
    account = job.account()
    for phase, seconds in spent.items():
        if seconds > 0.01:
            assert account.phases[phase] == pytest.approx(seconds, abs=1e-3), phase
    assert account.seconds == pytest.approx(job.now - 1_000_000.0, abs=1e-3)
    assert Phase.DRAINING not in account.phases


EVENTS: Any = st.one_of(
    st.builds(waits, spare=st.booleans()),
    st.builds(
        RoundStarted,
        *(st.integers(0, 3), st.just(0), st.just(1), st.just(1), st.just(0), st.just("r")),
        resumes_from=st.integers(-1, 50), is_watched=st.booleans(),
    ),
    st.builds(workers_started, st.integers(0, 3)),
    st.builds(TrainingStarted, st.just(0), st.just(0), st.integers(-1, 50)),
    st.builds(RoundProgressed, st.just(0), st.just(0), st.integers(-1, 50), st.just(1.0),
              st.floats(0.0, 50.0), doing=st.sampled_from(["", "training", "saving", "evaluate"]),
              phases=st.dictionaries(st.sampled_from(["training", "saving", "evaluate"]),
                                     st.floats(0.0, 100.0)),
              idle_training_s=st.floats(0.0, 50.0)),
    st.builds(HangSuspected, *map(st.just, (0, 0, (1,))), st.floats(0, 100)),
    st.builds(RoundEnded, st.just(0), st.just(0), st.integers(-1, 100), st.booleans()),
    st.builds(RestartBegun, st.just(0), st.just(0), st.sampled_from([LOST, HUNG]),
              *map(st.just, ("", False, 1, 3))),
    st.builds(HostSuspended, st.floats(0.0, 20.0)),
    st.sampled_from([
        HangDismissed(0, 0, "x"), WorkerFailed(0, 0, LOST), WorkersSucceeded(0, 0, 1, 1),
        WorkersStopped(0, 0, 1, "r", False), DrainOrdered("r", 1.0), NodeSignalled("SIGTERM", 1),
        RegroupBegun(1, 0, 1, "r"), WorkersFenced(1.0), JobEnded(VERDICT),
    ]),
)  # fmt: skip
"""Any event with any content: what a node reports after its master was lost follows no order."""


@given(st.lists(st.tuples(st.floats(0.0, 30.0), st.one_of(EVENTS, st.none())), max_size=60))
def test_each_second_is_in_one_phase_and_nothing_ever_falls(steps: list[Any]) -> None:
    job, before = History(), Account()
    first = job.now
    job.started()
    for seconds, event in steps:
        job.happens(seconds)
        looked = job.account(of_all=True)
        for key, amount in before.phases.items():
            assert looked.phases.get(key, 0.0) >= amount - 1e-6
        if event is None:  # the agent is killed, and the scheduler starts another
            job.begin()
            job.started()
        else:
            job.happens(event)
            assert job.account(of_all=True).seconds == pytest.approx(looked.seconds)
            for key, amount in looked.phases.items():
                assert job.account(of_all=True).phases.get(key, 0.0) >= amount - 1e-6
        account = job.account(of_all=True)
        for name in ("phases", "restarts", "restart_phases", "lost"):
            for key, amount in getattr(before, name).items():
                assert getattr(account, name).get(key, 0.0) >= amount - 1e-6, (name, key)
        assert sum(account.lost.values()) <= account.phases.get(Phase.TRAINING, 0.0) + 1e-6
        for phase, spent in account.restart_phases.items():
            assert spent <= account.phases[phase] + 1e-6
        assert account.seconds == pytest.approx(job.now - first, abs=1e-3)
        before = account if event is not None else job.accounting.account(of_all=True)


LARGEST = 24 * 3600.0


@given(
    st.dictionaries(st.sampled_from(Phase), st.floats(0.001, LARGEST), min_size=1),
    st.integers(0, 3), st.floats(0.0, 1.0),
)  # fmt: skip
def test_the_table_has_at_most_12_lines(
    phases: dict[Spent, float], restarts: int, share: float
) -> None:
    accounting = Accounting()
    total = accounting._total
    total.phases |= phases
    total.restarts |= {"worker": restarts} if restarts else {}
    total.lost |= {"worker": phases.get(Phase.TRAINING, 0.0) * share}
    event = accounted(accounting.account())
    lines = table(event).splitlines()
    assert len(lines) <= 12
    assert all(len(line) <= 100 for line in lines if line.startswith("  "))
    assert math.isclose(sum(event.phases.values()), event.seconds, abs_tol=1e-3)


def test_the_table_of_a_job() -> None:
    job = History()
    job.started()
    job.happens(waits(), 67.0)
    job.trains(7200.0, first=0)
    job.fails(LOST, steps=7200)
    job.trains(80.0, first=7171, back_to=7170)
    assert table(accounted(job.account())) == (
        "Where the time went:\n"
        "  training                     2:01:20    98.9%\n"
        "  waiting for nodes               1:11     1.0%\n"
        "  importing and building         4.0 s     0.1%\n"
        "  stopping                       3.0 s     0.0%\n"
        "  starting workers               2.0 s     0.0%\n"
        "  starting ft-run               500 ms     0.0%\n"
        "  total                        2:02:40   100.0%\n"
        "1 restart (node_lost: 1), 10.0 s: waiting for nodes 4.0 s, stopping 3.0 s, importing and "
        "building 2.0 s, starting workers 1.0 s\n"
        "Goodput 98.5%, training lost: node_lost 30.0 s"
    )


def test_the_time_of_a_record_is_read_back() -> None:
    at = 1_795_588_708.123456
    record = Recorder("job", clocks=Clocks(wall=lambda: at)).record(JobEnded(VERDICT))
    assert seconds_of(record["time"]) == pytest.approx(at, abs=1e-6)
    assert seconds_of("1970-01-02T00:00:00.500000Z") == 86_400.5
    for day in ("2000-02-29", "2024-03-01", "2027-12-31", "2100-02-28", "2100-03-01"):
        expected = datetime.fromisoformat(f"{day}T01:02:03+00:00").timestamp()
        assert seconds_of(f"{day}T01:02:03.000000Z") == expected
    assert abs(seconds_of(Recorder("job").record(JobEnded(VERDICT))["time"]) - time.time()) < 60
