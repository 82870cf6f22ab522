"""How a speed follows from times: the best piece, and what a CPU quota leaves."""

import pytest
from ft_run.checks import measure
from ft_run.checks.measure import BUDGETS, best_time_s, cpu_share, largest_within
from ft_run.checks.records import Level


class Machine:
    """A clock, and work that takes given times."""

    def __init__(self, times):
        self.now = 0.0
        self.times = list(times)

    def run(self):
        self.now += self.times.pop(0)

    def best(self, budget_s):
        return best_time_s(self.run, budget_s, clock=lambda: self.now)


def test_a_neighbour_that_interrupts_some_pieces_changes_nothing():
    machine = Machine([0.004, 0.001, 0.004, 0.004])
    assert machine.best(0.012) == pytest.approx(0.001)


def test_three_repetitions_at_least():
    machine = Machine([5.0, 3.0, 4.0, 1.0])
    assert machine.best(0.0) == pytest.approx(3.0)
    assert machine.times == [1.0]


@pytest.mark.parametrize(
    ("cpus", "workers", "share"), [(None, 8, 1.0), (0.25, 1, 0.25), (2.0, 4, 0.5), (8.0, 2, 1.0)]
)
def test_what_a_quota_leaves_each_worker(monkeypatch, cpus, workers, share):
    monkeypatch.setattr(measure, "quota_cpus", lambda: cpus)
    assert cpu_share(workers) == share


def test_the_first_size_that_is_large_enough():
    asked = []

    def time_s(size):
        asked.append(size)
        return size / 1000

    assert largest_within((1, 2, 4, 8), time_s, 0.003) == 4
    assert asked == [1, 2, 4]
    assert largest_within((1, 2, 4, 8), time_s, 1.0) == 8


def test_the_light_level_measures_less_than_a_second():
    light, full = BUDGETS[Level.LIGHT], BUDGETS[Level.FULL]
    assert light.compute_s + light.memory_s + light.copy_s + light.bandwidth_s < 1
    assert light.latency_s + light.bandwidth_s < 1
    assert full.compute_s > light.compute_s
