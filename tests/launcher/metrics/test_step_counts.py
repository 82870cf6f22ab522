"""Steps of ranks, over the workers of several rounds."""

from ft_run.launcher.metrics.step_counts import StepCounts
from ft_run.launcher.processes.worker_watch import Progress


def at(pid: int, steps: int, *, first: int = -1, ticks: int = 1) -> Progress:
    furthest = steps if first >= 0 else -1
    return Progress(pid, steps, ticks, 1.0, 0.1, furthest=furthest, first=first)


def test_counted_steps_go_on_after_a_restart() -> None:
    counts = StepCounts()
    assert counts.update([(0, at(10, 7)), (1, at(11, 6))]) == {0: 7, 1: 6}
    assert counts.update([(0, at(10, 9)), (1, at(11, 9))]) == {0: 9, 1: 9}
    assert counts.update([]) == {0: 9, 1: 9}
    assert counts.update([(0, at(20, 2))]) == {0: 11, 1: 9}


def test_a_script_that_reports_its_steps_starts_anywhere_and_goes_back() -> None:
    counts = StepCounts()
    assert counts.update([(0, at(10, 1000, first=1000))]) == {0: 1}
    assert counts.update([(0, at(10, 1004, first=1000))]) == {0: 5}
    # After a failure it resumes with step 1,001.
    assert counts.update([(0, at(20, 1002, first=1001))]) == {0: 7}
    assert counts.update([(0, at(20, 1005, first=1001))]) == {0: 10}
    assert counts.update([(0, at(20, 1001, first=1001))]) == {0: 10}


def test_steps_before_the_first_scrape_count() -> None:
    assert StepCounts().update([(0, at(10, 50, first=1)), (1, at(11, 49, first=0))]) == {
        0: 50,
        1: 50,
    }


def test_the_first_report_is_no_jump() -> None:
    counts = StepCounts()
    assert counts.update([(0, at(10, 3))]) == {0: 3}
    assert counts.update([(0, at(10, 5000, first=4999))]) == {0: 4}
    assert counts.update([(0, at(10, 5001, first=4999))]) == {0: 5}


def test_a_rank_without_progress_has_no_steps() -> None:
    assert StepCounts().update([(0, at(10, 0, ticks=0))]) == {}
