"""What is tried, in which order, when, and what holds when a round ends."""

from collections.abc import Mapping

import pytest
from ft_run.launcher.tuning.trial import Order, Values
from ft_run.launcher.tuning.tuner import Tuner, of_loader
from ft_run.tests.harness.tuned_machine import NOISES, Noise, TunedMachine, quiet

USERS = {"num_workers": 2, "prefetch_factor": 2}
DAY_S = 86400


def starved(values: Mapping[str, int]) -> float:
    """Return the time of a step that waits for data until there are six processes."""
    return max(1.0, 6 / values.get("num_workers", 6))


def run(
    tuner: Tuner,
    machine: TunedMachine,
    until_s: float = DAY_S,
    *,
    until_trial: bool = False,
    waits: float = 0.2,
) -> Order | None:
    """Let a machine train; return the last order, None: nothing is left to try."""
    while True:
        now = machine.reading()
        order = tuner.read(now._replace(waited_s=waits * now.now_s))
        spent_s, trained_s = tuner.budget.spent_s, tuner.budget.trained_s
        assert spent_s <= 0.01 * trained_s
        if order is None or now.now_s > until_s or (until_trial and order.values != now.values):
            return order
        machine.follow(order)


def names(tuner: Tuner) -> list[tuple[str, int, int, bool]]:
    return [(one.name, one.old, one.new, one.outcome.is_accepted) for one in tuner.tried]


def test_one_value_after_the_other_each_once() -> None:
    tuner = Tuner(of_loader(cpus=32, workers=4), {})
    machine = TunedMachine(1, quiet, starved, USERS)
    assert run(tuner, machine) is None
    assert names(tuner) == [
        ("num_workers", 2, 4, True),
        ("num_workers", 4, 8, True),
        ("prefetch_factor", 2, 4, False),
        ("prefetch_factor", 2, 1, False),
    ]
    assert tuner.kept == {"num_workers": 8}
    assert machine.reading().values == {"num_workers": 8, "prefetch_factor": 2}
    assert tuner.tried[0].outcome.gain == pytest.approx(1.0, abs=0.1)


def test_loaders_get_no_more_processes_than_there_are_cpus() -> None:
    tuner = Tuner(of_loader(cpus=13.5, workers=4), {})
    machine = TunedMachine(1, quiet, starved, {"num_workers": 2})
    run(tuner, machine)
    assert names(tuner) == [("num_workers", 2, 3, True), ("num_workers", 3, 1, False)]
    tuner = Tuner(of_loader(cpus=4, workers=1), {})
    run(tuner, TunedMachine(1, quiet, starved, {"num_workers": 2}))
    assert names(tuner) == [("num_workers", 2, 4, True)]  # 2 is known
    tuner = Tuner(of_loader(cpus=2, workers=4), {})
    assert run(tuner, TunedMachine(1, quiet, starved, {"num_workers": 1})) is None
    assert tuner.tried == []


def test_at_most_twelve_trials() -> None:
    tuner = Tuner(of_loader(cpus=10**9, workers=1), {})
    run(tuner, TunedMachine(1, quiet, lambda values: 1 / values["num_workers"], USERS))
    assert len(tuner.tried) == 12
    assert tuner.kept == {"num_workers": 2**13}


def test_training_that_does_not_wait_for_data_stays_as_it_is() -> None:
    tuner, machine = Tuner(of_loader(32, 4), {}), TunedMachine(1, quiet, starved, USERS)
    assert run(tuner, machine, waits=0.049) is not None
    assert tuner.tried == []
    assert machine.reading().values == USERS
    run(tuner, machine, 2 * DAY_S, waits=0.051)
    assert len(tuner.tried) == 4


def test_a_trial_begins_when_its_switches_fit_into_the_budget() -> None:
    machine = TunedMachine(1, quiet, starved, USERS, switch_s=0.5)
    order = run(Tuner(of_loader(32, 4), {}), machine, until_trial=True)
    assert order is not None
    assert order.values["num_workers"] == 4
    assert 700 < machine.reading().now_s < 1400
    machine = TunedMachine(1, quiet, starved, USERS, switch_s=50)
    assert run(Tuner(of_loader(32, 4), {}), machine, 60_000) is not None
    assert machine.reading().values == USERS


def test_without_a_loader_nothing_is_tried() -> None:
    tuner, machine = Tuner(of_loader(32, 4), {}), TunedMachine(1, quiet, starved, {})
    assert run(tuner, machine) is not None
    assert tuner.tried == []


@pytest.mark.parametrize("noise", NOISES.values(), ids=NOISES)
@pytest.mark.parametrize("slowness", [0.9, 1.0, 1.3, 100.0])
def test_tuning_costs_no_more_than_its_share(noise: Noise, slowness: float) -> None:
    def times(values: Values) -> float:
        return 1.0 if values == USERS else slowness

    for seed in range(3):
        tuner, machine = Tuner(of_loader(32, 4), {}), TunedMachine(seed, noise, times, USERS)
        run(tuner, machine)  # which compares it with the tuner's own account at each moment
        if noise is quiet:
            assert machine.lost_s <= 0.01 * machine.reading().now_s
        assert tuner.tried


def test_a_value_at_which_workers_fail_is_not_tried_again() -> None:
    tuner, machine = Tuner(of_loader(32, 4), {}), TunedMachine(1, quiet, starved, USERS)
    run(tuner, machine, until_trial=True)
    tuner.interrupt("rank 3 was killed")
    assert tuner.tried[0].outcome.reason == "failed: rank 3 was killed"
    tuner.interrupt("twice")
    machine = TunedMachine(1, quiet, starved, USERS)  # the user's values hold again
    order = tuner.read(machine.reading())
    assert order is not None
    assert order.values == USERS
    run(tuner, machine, 2 * DAY_S)
    assert [one.new for one in tuner.tried] == [4, 1, 4, 1]


def test_a_trial_that_only_ended_with_its_round_comes_again() -> None:
    tuner, machine = Tuner(of_loader(32, 4), {}), TunedMachine(1, quiet, starved, USERS)
    run(tuner, machine, until_trial=True)
    tuner.interrupt("")
    machine = TunedMachine(1, quiet, starved, USERS)
    run(tuner, machine)
    assert names(tuner)[:2] == [("num_workers", 2, 4, False), ("num_workers", 2, 4, True)]


def test_accepted_values_hold_in_the_rounds_that_follow() -> None:
    tuner = Tuner(of_loader(32, 4), {"num_workers": 6})  # of a tune file
    machine = TunedMachine(1, quiet, starved, USERS)
    order = tuner.read(machine.reading())
    assert order is not None
    assert order.values == {"num_workers": 6, "prefetch_factor": 2}
    tuner.interrupt("")
    assert tuner.tried == []
    order = tuner.read(machine.reading())
    assert order is not None
    assert order.values["num_workers"] == 6
    run(tuner, machine)
    assert [(one.old, one.new) for one in tuner.tried][:2] == [(6, 8), (6, 3)]


def test_time_between_rounds_is_no_training() -> None:
    tuner = Tuner(of_loader(32, 4), {})
    machine = TunedMachine(1, quiet, starved, USERS)
    tuner.read(machine.reading())
    machine.follow(Order(USERS, 100))
    tuner.interrupt("")
    tuner.read(machine.reading())
    assert tuner.budget.trained_s == 0
    machine.follow(Order(USERS, 100))
    tuner.read(machine.reading())
    assert tuner.budget.trained_s == pytest.approx(100, abs=1)


def test_a_loader_that_is_no_longer_read_ends_the_trial() -> None:
    tuner, machine = Tuner(of_loader(32, 4), {}), TunedMachine(1, quiet, starved, USERS)
    run(tuner, machine, until_trial=True)
    order = tuner.read(machine.reading()._replace(values={}))
    assert order is not None
    assert order.values == {}
    assert [one.outcome.reason for one in tuner.tried] == ["the round ended"]
