"""How a speed follows from times: the best piece, and what a CPU quota took away."""

import pytest
from ft_run.checks.measure import BUDGETS, QuotaWatch, best_time_s, largest_within
from ft_run.checks.records import Level


class Machine:
    """A clock, and work that takes given times; the quota's file holds what it is told."""

    def __init__(self, folder, times, throttled=(), share=1.0):
        self.now = 0.0
        self.times = list(times)
        self.throttled = list(throttled)
        self.total_throttled = 0.0
        self.file = folder / "cpu.stat"
        self.write()
        self.watch = QuotaWatch([folder, folder / "missing"], share)

    def write(self):
        self.file.write_text(
            f"nr_throttled 1\nthrottled_usec {round(self.total_throttled * 1e6)}\n"
        )

    def run(self):
        self.now += self.times.pop(0)
        if self.throttled:
            self.total_throttled += self.throttled.pop(0)
            self.write()

    def best(self, budget_s):
        return best_time_s(self.run, budget_s, self.watch, clock=lambda: self.now)


def test_a_neighbour_that_interrupts_some_pieces_changes_nothing(tmp_path):
    machine = Machine(tmp_path, [0.004, 0.001, 0.004, 0.004])
    assert machine.best(0.012) == pytest.approx(0.001)


def test_what_a_quota_takes_away_counts(tmp_path):
    # A quarter of the CPU: 1 ms of work, then 3 ms without.
    machine = Machine(tmp_path, [0.001, 0.004] * 4, [0, 0.003] * 4)
    assert machine.best(0.019) == pytest.approx(0.001 / (1 - 12 / 20))


def test_a_quota_is_never_charged_with_more_than_was_lost(tmp_path):
    # Two CPUs were held back: their times add up to more than went by.
    machine = Machine(tmp_path, [0.001, 0.003, 0.004], [0, 0.02, 0.02])
    assert machine.best(0.008) == pytest.approx(0.008 / 3)


def test_a_quota_counts_also_where_a_busy_machine_leaves_less_than_it(tmp_path):
    # Others have the CPU for most of the time: the quota of a quarter is never used up.
    machine = Machine(tmp_path, [0.010, 0.001, 0.010, 0.010], share=0.25)
    assert machine.best(0.03) == pytest.approx(0.001 / 0.25)


def test_what_was_taken_away_and_what_is_allowed_are_not_counted_twice(tmp_path):
    machine = Machine(tmp_path, [0.001, 0.004] * 4, [0, 0.003] * 4, share=0.25)
    assert machine.best(0.019) == pytest.approx(0.001 / 0.25)


def test_three_repetitions_at_least(tmp_path):
    machine = Machine(tmp_path, [5.0, 3.0, 4.0, 1.0])
    assert machine.best(0.0) == pytest.approx(3.0)
    assert machine.times == [1.0]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("nr_periods 5\nnr_throttled 2\nthrottled_usec 2500000\n", 2.5),
        ("nr_periods 5\nnr_throttled 2\nthrottled_time 2500000000\n", 2.5),
        ("throttled_usec many\n", 0.0),
        ("", 0.0),
    ],
)
def test_the_files_of_both_versions_of_cgroups(tmp_path, text, seconds):
    (tmp_path / "cpu.stat").write_text(text)
    assert QuotaWatch([tmp_path]).throttled_s() == seconds
    assert QuotaWatch([tmp_path / "missing"]).throttled_s() == 0.0


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
