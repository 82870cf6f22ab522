"""The time that slow steps took, and the wait for data."""

import random
from typing import Any

import pytest
from ft_run.launcher.history.overlaps import Overlaps, SlowSteps


def minutes(steps: SlowSteps, *step_times: float) -> None:
    for step_s in step_times:
        steps.add(60.0, round(60.0 / step_s))


def test_a_steady_job_has_no_slow_steps() -> None:
    steps, random_ = SlowSteps(), random.Random(1)
    minutes(steps, *(0.1 * random_.uniform(0.99, 1.01) for _ in range(600)))
    assert steps.seconds is not None
    assert steps.seconds < 0.01 * 600 * 60


def test_too_short_a_job_says_nothing() -> None:
    steps = SlowSteps()
    minutes(steps, *[0.1] * 9)
    assert steps.seconds is None


def test_a_job_that_becomes_slower() -> None:
    steps = SlowSteps()
    minutes(steps, *[0.1] * 60, *[0.15] * 60)
    # In the second hour each step takes a third less than it could.
    assert steps.seconds == pytest.approx(3600 / 3, rel=0.01)


def test_a_job_that_was_slow_at_first() -> None:
    steps = SlowSteps()
    minutes(steps, *[0.2] * 60)
    assert steps.seconds == pytest.approx(0.0)
    minutes(steps, *[0.1] * 60)
    assert steps.seconds == pytest.approx(1800, rel=0.01)


def test_slow_minutes_within_the_hour() -> None:
    steps = SlowSteps()
    minutes(steps, *([0.1] * 9 + [0.4]) * 6)
    assert steps.seconds == pytest.approx(6 * 60 * 0.75, rel=0.01)


def test_short_intervals_are_put_together_and_those_without_a_step_count() -> None:
    steps = SlowSteps()
    for _ in range(20 * 6):
        steps.add(10.0, 100)
    steps.add(600.0, 0)
    assert steps.seconds == pytest.approx(0.0)
    steps.add(10.0, 100)
    assert steps.seconds == pytest.approx(600.0)


def report(training_s: float, steps: int, waits: tuple[float, ...] = (), *, said: int = -1) -> Any:
    phases = {"training": training_s, "evaluate": 3.0}
    return {
        "steps": said, "counted_steps": steps, "phases": phases, "data_wait_s": list(waits),
    }  # fmt: skip


def test_the_longest_wait_of_a_rank_counts_in_each_round() -> None:
    overlaps = Overlaps()
    overlaps.begin()
    assert overlaps.add(report(60.0, 10, (1.0, 3.0))) == 3.0
    assert overlaps.add(report(120.0, 20, (5.0, 4.0))) == 2.0
    overlaps.begin()
    assert overlaps.add(report(60.0, 10, (0.5, 0.0))) == 0.5
    assert overlaps.add({"steps": -1}) == 0.0  # of an older version


def test_steps_are_those_of_a_round_whether_the_script_counts_them_or_not() -> None:
    overlaps = Overlaps()
    for _ in range(2):
        overlaps.begin()
        overlaps.add(report(0.0, 1))
        overlaps.add(report(0.1, 10_000, said=10_000))  # not 9,999 steps in 0.1 s
        for minute in range(1, 20):
            overlaps.add(report(60.0 * minute, 10_000 + 100 * minute, said=10_000 + 100 * minute))
    assert overlaps.slow_s == pytest.approx(0.0)


def test_steps_count_between_two_reports_of_a_round_that_count_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    added: list[tuple[float, int, int]] = []
    monkeypatch.setattr(SlowSteps, "add", lambda _, *more: added.append(more))
    overlaps = Overlaps()
    overlaps.begin()
    overlaps.add(report(60.0, 10))
    overlaps.add(report(120.0, 30))
    overlaps.add(report(180.0, 500, said=500))  # the script counts from now on
    overlaps.add(report(240.0, 400, said=500))  # it counts back
    overlaps.add(report(230.0, 410, said=500))  # another process
    overlaps.begin()
    overlaps.add(report(300.0, 420, said=500))
    assert added == [(60.0, 20, 1), (0.0, 10, 1)]
