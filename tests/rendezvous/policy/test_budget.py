"""The restart budget and the ledger of nodes: windows, delays, exclusions."""

import pytest
from ft_run.rendezvous.group.ending import span
from ft_run.rendezvous.policy.blame import Ledger
from ft_run.rendezvous.policy.budget import RestartBudget
from ft_run.rendezvous.protocol.messages import PolicySpec

DAY = PolicySpec(restart_window_s=86400.0)


def test_without_a_window_all_restarts_count() -> None:
    budget = RestartBudget()
    budget.count(PolicySpec(), 0.0)
    assert budget.used(7, PolicySpec(), 1e9) == 7
    assert budget.ages_s(PolicySpec(), 1.0) == ()


def test_with_a_window_restarts_are_forgotten() -> None:
    budget = RestartBudget()
    for now in (0.0, 10.0, 86399.0):
        budget.count(DAY, now)
    assert budget.used(3, DAY, 86399.9) == 3
    assert budget.ages_s(DAY, 86399.9) == (86399, 86389, 0)
    assert budget.used(3, DAY, 86400.0) == 2
    assert budget.used(3, DAY, 86410.0) == 1


@pytest.mark.parametrize(
    ("first", "longest", "delays"),
    [
        (0.0, 60.0, [0, 1, 2, 4, 8, 16, 32, 60, 60]),
        (5.0, 60.0, [5, 10, 20, 40, 60, 60]),
        (5.0, 5.0, [5, 5, 5]),
        (0.0, 0.0, [0, 0, 0]),
    ],
)
def test_delays_double_up_to_the_longest(first: float, longest: float, delays: list[float]) -> None:
    budget, policy = RestartBudget(), PolicySpec(backoff_first_s=first, backoff_max_s=longest)
    assert [budget.delay_s(policy, 1.0, is_free=False) for _ in delays] == delays


def test_delays_begin_anew_after_a_round_that_ran_twice_the_longest() -> None:
    budget, policy = RestartBudget(), PolicySpec(backoff_max_s=60.0)
    ran = (1.0, 1.0, None, 120.0, 120.1, 1.0)
    assert [budget.delay_s(policy, s, is_free=False) for s in ran] == [0, 1, 2, 4, 0, 1]


def test_restarts_that_no_budget_ends_are_spaced_by_default() -> None:
    budget = RestartBudget()
    assert [budget.delay_s(PolicySpec(), 0.1, is_free=True) for _ in range(4)] == [0, 1, 2, 4]
    given = PolicySpec(backoff_first_s=3.0, backoff_max_s=3.0)
    assert budget.delay_s(given, 0.1, is_free=True) == 3


def test_failures_of_a_node_count_within_the_window() -> None:
    ledger = Ledger()
    assert [ledger.blame("a", 100.0, now) for now in (0.0, 50.0, 99.0, 150.0)] == [1, 2, 3, 2]
    assert ledger.blame("b", 100.0, 150.0) == 1
    assert [ledger.blame("c", 0.0, now) for now in (0.0, 1e9)] == [1, 2]


def test_an_exclusion_says_why_and_stays() -> None:
    ledger = Ledger()
    assert ledger.sentence("a") is None
    ledger.exclude("a", "it burns")
    ledger.exclude("a", "it floods")
    assert ledger.learn(["a", "b"]) == ["b"]
    assert ledger.excluded == ("a", "b")
    assert ledger.sentence("a") == (
        "node 'a' is excluded from this job and may not rejoin it: it burns."
    )
    assert "an earlier master" in str(ledger.sentence("b"))


@pytest.mark.parametrize(
    ("seconds", "words"), [(86400, "24 h"), (604800, "7 d"), (90, "90 s"), (5400, "90 min")]
)
def test_times_are_said_as_a_person_would(seconds: float, words: str) -> None:
    assert span(seconds) == words
