"""Which restarts have brought the job no further."""

import pytest
from ft_run.rendezvous.policy.no_progress import ProgressRecord
from ft_run.rendezvous.protocol.claim import PastProgress, Progress

NONE, STEPS = Progress(), Progress(has_stepped=True)


def said(step: int) -> Progress:
    return Progress(step, has_stepped=True)


def record(*rounds: Progress | None) -> ProgressRecord:
    """A job of one node, whose rounds have all failed, after so much progress each."""
    found = ProgressRecord()
    for told in rounds:
        found.round_over([told] if told else [], is_complete=told is not None, has_failed=True)
    return found


@pytest.mark.parametrize(
    ("rounds", "idle"),
    [
        ((NONE,), 0),  # not a restart
        ((NONE, NONE), 1),
        ((NONE, NONE, NONE), 2),
        ((NONE, NONE, STEPS), 0),
        ((NONE, NONE, STEPS, NONE), 1),
        # A script that does not say where it is may have resumed: each step may be a new one.
        ((STEPS, STEPS, STEPS), 0),
        # One that says it is believed, whatever was counted.
        ((said(0), said(0), said(0)), 2),
        ((said(7), said(7), said(7)), 2),
        ((said(7), said(6), said(8)), 0),
        ((said(9), said(5), said(6), said(7)), 3),
        # It died before it said where it is.
        ((said(7), STEPS, NONE), 1),
        ((said(7), STEPS, said(7)), 1),
        ((said(7), NONE, said(7)), 2),
        # Of a round of which nothing is known, the restart is left out.
        ((NONE, None, NONE), 1),
        ((None, NONE), 0),
    ],
)
def test_restarts_without_a_new_step(rounds: tuple[Progress | None, ...], idle: int) -> None:
    past = record(*rounds).past
    assert past is not None
    assert past.idle_restarts == idle


def test_the_furthest_node_counts() -> None:
    found = record(said(3))
    found.round_over([said(2), said(4), NONE], is_complete=True, has_failed=True)
    assert found.past == PastProgress(4, 0)


def test_a_node_that_is_silent_may_have_stepped() -> None:
    found = record(NONE)
    found.round_over([NONE], is_complete=False, has_failed=True)
    assert found.past == PastProgress(-1, 0)
    found.round_over([said(1)], is_complete=False, has_failed=True)
    assert found.past == PastProgress(1, 0)


def test_a_regroup_is_no_restart_but_its_steps_count() -> None:
    found = record(NONE, NONE)
    found.round_over([NONE], is_complete=True, has_failed=False)
    assert found.past == PastProgress(-1, 1)
    found.round_over([STEPS], is_complete=True, has_failed=False)
    assert found.past == PastProgress(-1, 0)


def test_what_an_earlier_master_knew_goes_on() -> None:
    found = ProgressRecord()
    found.past = PastProgress(9, 2)
    found.round_over([said(9)], is_complete=True, has_failed=True)
    assert found.past == PastProgress(9, 3)


def test_the_words() -> None:
    assert record().exhausted(1) == ""
    assert record(NONE, NONE).exhausted(2) == ""
    assert record(NONE, NONE, NONE).exhausted(0) == ""
    assert record(NONE, NONE, NONE).exhausted(2) == (
        "2 consecutive restarts without a step: --max-no-progress 2"
    )
    assert record(said(12), NONE).exhausted(1) == (
        "1 restart without a step beyond step 12: --max-no-progress 1"
    )
