"""What the live line says of steps."""

import pytest
from ft_run.launcher.history.steps import rate
from ft_run.launcher.options import LaunchOptions, RendezvousOptions
from ft_run.launcher.reporting.live_status import LiveStatus
from ft_run.rendezvous.protocol.steps import RankSteps


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ([], ""),
        ([(5, 0.0, 1.0)], " · step 5"),
        ([(1204, 12.5, 0.0)], " · step 1204 · 12.5 steps/s"),
        # The furthest; another one may do no step by design.
        ([(0, 0.0, 99.0), (7, 2.0, 0.0)], " · step 7 · 2 steps/s"),
        # Late is what takes longer than some steps, and than a moment.
        ([(7, 2.0, 9.0)], " · step 7 · 2 steps/s"),
        ([(7, 0.1, 29.0)], " · step 7 · 0.1 steps/s"),
        ([(7, 0.1, 31.0)], " · step 7 · no step for 0:00:31"),
        ([(1, 0.0, 70.0)], " · step 1 · no step for 0:01:10"),
    ],
)
def test_the_step_of_the_furthest_rank(steps: list[tuple[int, float, float]], words: str) -> None:
    ranks = [RankSteps(rank, *values) for rank, values in enumerate(steps)]
    line = LiveStatus(
        LaunchOptions("train.py", RendezvousOptions(job_id="run1")), lambda: ranks
    ).text()
    assert line == f"ft-run run1{words} · up 0:00:00"


@pytest.mark.parametrize(
    ("given", "text"), [(0.01234, "0.0123"), (12.5, "12.5"), (100.4, "100"), (12345.6, "12346")]
)
def test_rates(given: float, text: str) -> None:
    assert rate(given) == text
