"""Steps of ranks, over the workers of several rounds."""

from ft_run.launcher.metrics.step_counts import StepCounts
from ft_run.launcher.processes.worker_watch import Progress


def at(pid: int, steps: int, *, reports: bool = False, ticks: int = 1) -> Progress:
    return Progress(pid, steps, ticks, 1.0, 0.1, furthest=steps if reports else -1)


def test_counted_steps_go_on_after_a_restart() -> None:
    counts = StepCounts()
    assert counts.update([(0, at(10, 7)), (1, at(11, 6))]) == {0: 7, 1: 6}
    assert counts.update([(0, at(10, 9)), (1, at(11, 9))]) == {0: 9, 1: 9}
    assert counts.update([]) == {0: 9, 1: 9}
    assert counts.update([(0, at(20, 2))]) == {0: 11, 1: 9}


def test_a_script_that_reports_its_steps_begins_anywhere_and_goes_back() -> None:
    counts = StepCounts()
    assert counts.update([(0, at(10, 1000, reports=True))]) == {0: 0}
    assert counts.update([(0, at(10, 1004, reports=True))]) == {0: 4}
    # After a failure it resumes from step 1,001.
    assert counts.update([(0, at(20, 1002, reports=True))]) == {0: 4}
    assert counts.update([(0, at(20, 1005, reports=True))]) == {0: 7}


def test_the_first_report_is_no_jump() -> None:
    counts = StepCounts()
    assert counts.update([(0, at(10, 3))]) == {0: 3}
    assert counts.update([(0, at(10, 5000, reports=True))]) == {0: 3}
    assert counts.update([(0, at(10, 5001, reports=True))]) == {0: 4}


def test_a_rank_without_progress_has_no_steps() -> None:
    assert StepCounts().update([(0, at(10, 0, ticks=0))]) == {}
