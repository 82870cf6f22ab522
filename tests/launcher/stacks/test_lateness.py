"""When a worker is late, on a clock that the test moves."""

import pytest
from ft_run.launcher.processes.worker_watch import Progress
from ft_run.launcher.stacks.lateness import Lateness

START_S = 1800.0


def got_on(last_s: float | None, ticks: int = 5, longest_s: float = 1.0) -> Progress:
    return Progress(pid=1, steps=ticks, ticks=ticks, last_s=last_s, longest_s=longest_s)


def not_yet() -> Progress:
    return got_on(None, ticks=0, longest_s=0.0)


def begun(timeout_s: float = 60.0) -> Lateness:
    lateness = Lateness(timeout_s, START_S)
    lateness.begin(1000.0)
    return lateness


def test_a_worker_is_late_when_its_time_is_over_and_is_told_once() -> None:
    lateness = begun()
    look = lateness.look({4: got_on(1010.0), 5: got_on(1012.0)}, 1069.9)
    assert (look.late, look.again_at) == ((), 1070.0)
    look = lateness.look({4: got_on(1010.0), 5: got_on(1012.0)}, 1070.0)
    assert (look.late, look.idle_s, look.again_at) == ((4,), 60.0, 1072.0)
    look = lateness.look({4: got_on(1010.0), 5: got_on(1012.0)}, 1072.0)
    assert (look.late, look.idle_s, look.again_at) == ((5,), 60.0, 1132.0)
    assert lateness.look({4: got_on(1010.0), 5: got_on(1012.0)}, 1132.0).late == ()


def test_of_those_that_are_late_at_once_the_last_to_get_on_counts() -> None:
    look = begun().look({4: got_on(1010.0), 5: got_on(1012.0)}, 1080.0)
    assert (look.late, look.idle_s) == ((4, 5), 68.0)


def test_it_sleeps_until_a_worker_could_be_late() -> None:
    lateness = begun()
    assert lateness.look({4: got_on(1000.0), 5: got_on(1030.0)}, 1030.0).again_at == 1060.0
    assert lateness.look({}, 1030.0).again_at == 1090.0


def test_a_worker_that_got_on_may_be_late_anew() -> None:
    lateness = begun()
    assert lateness.look({4: got_on(1010.0, ticks=5)}, 1070.0).late == (4,)
    assert lateness.look({4: got_on(1075.0, ticks=6)}, 1080.0).again_at == 1135.0
    assert lateness.look({4: got_on(1075.0, ticks=6)}, 1135.0).late == (4,)


def test_until_the_first_step_it_has_the_time_of_the_start() -> None:
    lateness = begun()
    # A worker that begins just now could be late after the shorter time.
    look = lateness.look({4: not_yet()}, 1000.0)
    assert (look.late, look.again_at) == ((), 1060.0)
    assert lateness.look({4: not_yet()}, 2799.0).again_at == 2800.0
    look = lateness.look({4: not_yet()}, 2800.0)
    assert (look.late, look.idle_s) == ((4,), START_S)


def test_those_that_do_not_hang_have_all_their_time_again() -> None:
    lateness = begun()
    assert lateness.look({4: got_on(1010.0)}, 1070.0).late == (4,)
    lateness.excuse(1082.0)
    look = lateness.look({4: got_on(1010.0)}, 1082.0)
    assert (look.late, look.again_at) == ((), 1142.0)
    look = lateness.look({4: got_on(1010.0)}, 1142.0)
    assert (look.late, look.idle_s) == ((4,), 132.0)


def test_another_master_is_told_again() -> None:
    lateness = begun()
    assert lateness.look({4: got_on(1010.0)}, 1070.0).late == (4,)
    lateness.repeat()
    look = lateness.look({4: got_on(1010.0)}, 1071.0)
    assert (look.late, look.idle_s) == ((4,), 61.0)


def test_a_worker_of_which_nothing_is_known_is_not_late() -> None:
    lateness = begun()
    assert lateness.look({4: None}, 99999.0).late == ()


def test_a_new_round_begins_anew() -> None:
    lateness = begun()
    assert lateness.look({4: got_on(1010.0)}, 1070.0).late == (4,)
    lateness.begin(1100.0)
    assert lateness.look({4: not_yet()}, 1100.0).late == ()
    assert lateness.look({4: got_on(1101.0, ticks=5)}, 1161.0).late == (4,)


@pytest.mark.parametrize(("longest_s", "limit_s"), [(1.0, 60.0), (6.0, 60.0), (30.0, 300.0)])
def test_auto_is_ten_times_the_longest_step_and_a_minute_at_least(
    longest_s: float, limit_s: float
) -> None:
    lateness = begun(timeout_s=0.0)
    progress = got_on(1010.0, longest_s=longest_s)
    look = lateness.look({4: progress}, 1010.0)
    assert (look.late, look.again_at) == ((), 1010.0 + limit_s)
    assert lateness.look({4: progress}, 1010.0 + limit_s).late == (4,)


def test_auto_goes_by_the_longest_step_of_all_workers_and_rounds() -> None:
    lateness = begun(timeout_s=0.0)
    workers = {4: got_on(1010.0, longest_s=30.0), 5: got_on(1010.0, longest_s=1.0)}
    assert lateness.look(workers, 1010.0).again_at == 1310.0
    lateness.begin(2000.0)
    assert lateness.look({4: got_on(2010.0, ticks=1, longest_s=0.0)}, 2010.0).again_at == 2310.0


def test_auto_knows_nothing_before_the_second_step() -> None:
    lateness = begun(timeout_s=0.0)
    progress = got_on(1010.0, ticks=1, longest_s=0.0)
    look = lateness.look({4: progress}, 1200.0)
    assert (look.late, look.again_at) == ((), 1260.0)
    assert lateness.look({4: progress}, 1010.0 + START_S).late == (4,)
