"""Trials on simulated machines: false acceptances, gains that are found, and what they cost."""

from collections.abc import Callable, Iterator, Mapping
from itertools import count

import pytest
from ft_run.launcher.tuning.trial import (
    Budget,
    Order,
    Outcome,
    Reading,
    Trial,
    gain,
    is_faster,
    may_be_faster,
)
from ft_run.tests.harness.tuned_machine import NOISES, Noise, TunedMachine, quiet

OLD, NEW = {"n": 1}, {"n": 2}
AT_FIRST = "faster at first, but not in the second measurement"


def test_every_block_and_the_medians_must_be_faster() -> None:
    assert is_faster([1, 1.01, 1.02], [0.94, 0.94, 0.98])
    assert not is_faster([1, 1.01, 1.02], [0.94, 0.94, 0.981])
    assert not is_faster([1, 1.01, 1.02], [0.96, 0.96, 0.97])
    assert gain([1, 1.1, 1.1], [1, 1, 0.5]) == pytest.approx(0.1)
    assert may_be_faster([], [2])
    assert may_be_faster([1], [0.98])
    assert not may_be_faster([1, 0.9], [0.89])


def settings_of(ratio: float) -> Callable[[Mapping[str, int]], float]:
    """Return the time of a step by its settings: the new value takes this share of the old one."""
    return lambda values: ratio if values == NEW else 1.0


def new_trial(trained_s: float = 1e9) -> tuple[Trial, Budget]:
    budget = Budget()
    budget.trained_s = trained_s
    return Trial(OLD, NEW, budget), budget


def answers(
    trial: Trial, machine: TunedMachine, changed: Callable[[Reading], Reading] = lambda it: it
) -> Iterator[Order | Outcome]:
    """Yield what a trial orders, each followed by the machine, and its outcome."""
    running = trial.run(machine.reading())
    order = next(running)
    try:
        while True:
            yield order
            order = running.send(changed(machine.follow(order)))
    except StopIteration as end:
        yield end.value


def outcome_of(seed: int, noise: Noise, ratio: float) -> Outcome:
    machine = TunedMachine(seed, noise, settings_of(ratio), OLD)
    *_, outcome = answers(new_trial()[0], machine)
    assert isinstance(outcome, Outcome)
    return outcome


def shares(noise: Noise, ratio: float, number: int) -> tuple[float, float]:
    """Return the share of trials that accept, before and after the confirmation."""
    found = [outcome_of(seed, noise, ratio) for seed in range(number)]
    after = sum(one.is_accepted for one in found)
    return (after + sum(one.reason == AT_FIRST for one in found)) / number, after / number


@pytest.mark.parametrize("name", NOISES)
def test_noise_is_no_gain(name: str) -> None:
    number = 600
    before, after = shares(NOISES[name], 1.0, number)
    # What chance adds to 1.5 % and 0.5 % in so few trials; the slow test has more of them.
    assert before * number <= 9 + 3 * 3
    assert after * number <= 3 + 3 * 1.7


def test_a_gain_is_found_on_a_quiet_machine() -> None:
    assert shares(quiet, 1 / 1.1, 200)[1] >= 0.9
    found = outcome_of(0, quiet, 1 / 1.3)
    assert found.gain == pytest.approx(0.3, abs=0.03)
    assert found.old_s == pytest.approx(0.05, 0.05)


@pytest.mark.slow
@pytest.mark.parametrize("name", NOISES)
def test_noise_is_no_gain_in_many_trials(name: str) -> None:
    before, after = shares(NOISES[name], 1.0, 20_000)
    print(f"{name}: false before {before:.2%}, after {after:.2%}")
    assert before <= 0.015
    assert after <= 0.005
    print(f"{name}: 10 % found in {shares(NOISES[name], 1 / 1.1, 2000)[1]:.1%}")


def test_the_order_of_the_blocks() -> None:
    machine = TunedMachine(1, quiet, settings_of(0.5), OLD)
    arms = ""
    for order in answers(new_trial()[0], machine):
        if isinstance(order, Order) and order.look_in_s > 5:
            arm = "A" if order.values == OLD else "B"
            assert order.is_trial == (arm == "B")
            arms += arm if order.look_in_s > 15 else "."  # skipped after a switch
    assert arms == "A.BB.AA.B" + "B" + ".A.B"


def test_what_is_slower_is_rejected_after_one_block() -> None:
    machine = TunedMachine(1, quiet, settings_of(1.02), OLD)
    *_, last, outcome = answers(new_trial()[0], machine)
    assert isinstance(last, Order)
    assert last.values == OLD
    assert isinstance(outcome, Outcome)
    assert outcome.reason == "not faster"
    assert outcome.gain == pytest.approx(-0.02, abs=0.01)
    assert machine.reading().now_s < 60


@pytest.mark.parametrize("ratio", [1.5, 20, 1e6])
def test_what_is_much_slower_ends_before_the_budget_does(ratio: float) -> None:
    machine = TunedMachine(1, quiet, settings_of(ratio), OLD)
    trial, budget = new_trial(trained_s=300)
    *_, outcome = answers(trial, machine)
    assert isinstance(outcome, Outcome)
    assert outcome.reason in (
        "slower, or too expensive to try",
        "the new value did not take effect",
    )
    assert machine.lost_s < 3
    assert budget.spent_s < 3


def test_disturbed_blocks_do_not_count() -> None:
    trial, budget = new_trial()
    machine = TunedMachine(1, quiet, settings_of(0.5), OLD)
    numbers = count()
    *_, last, outcome = answers(
        trial, machine, lambda reading: reading._replace(disturbed=float(next(numbers)))
    )
    assert "checkpoints or activities disturbed too many blocks" in str(outcome)
    assert budget.spent_s == 0
    assert isinstance(last, Order)
    assert last.values == OLD


def test_a_switch_that_does_not_take_effect() -> None:
    machine = TunedMachine(1, quiet, settings_of(1), OLD)
    *_, outcome = answers(new_trial()[0], machine, lambda reading: reading._replace(values=OLD))
    assert isinstance(outcome, Outcome)
    assert outcome.reason == "the new value did not take effect"


def test_a_hung_candidate_is_given_up_within_the_budget() -> None:
    trial, _ = new_trial(trained_s=1000)
    machine = TunedMachine(1, quiet, settings_of(1), OLD)
    running = trial.run(machine.reading())
    order = next(running)
    while order.values == OLD:
        order = running.send(machine.follow(order))
    stuck = machine.reading()._replace(values=NEW)
    waited_s = 0.0
    while order.values == NEW:
        waited_s += order.look_in_s
        order = running.send(stuck._replace(now_s=stuck.now_s + waited_s))
    assert waited_s < 11
