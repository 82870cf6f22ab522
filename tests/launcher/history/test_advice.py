"""What ``--auto-tune advise`` advises, from the numbers of recorded jobs."""

import json
from typing import Any

import pytest
from ft_run.events.record import json_value
from ft_run.events.tuning import TuningMeasured
from ft_run.launcher.history.advice import Measured, Measures, advice
from ft_run.tests.harness.job_events import Job
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

SETTINGS = {"workers": 1, "num_workers": 2, "prefetch_factor": 2, "omp_num_threads": 0}
NODE = {"cpus": 8.0, "cores": 8, "uses_device": False}
NOTHING: dict[str, Any] = dict.fromkeys(TuningMeasured.__struct_fields__, 0) | SETTINGS | NODE

# A loader with one process that takes 0.1 s for a batch, beside 0.06 s of training.
STARVED: dict[str, Any] = {
    "training_s": 15.0,
    "steps": 120,
    "batches": 119,
    "num_workers": 1,
    "wait_s": 5.911,
    "squares_s2": 0.2979,
    "idle_cpu_s": 93.0,
}
# One of twenty batches takes 0.8 s, the others 5 ms; prefetch_factor 8 took the wait to 3 %.
BURSTY: dict[str, Any] = {
    "training_s": 15.893,
    "steps": 137,
    "batches": 137,
    "wait_s": 4.692,
    "squares_s2": 2.3662,
}
# Four workers with one thread each, on 16 cores with two threads each.
IDLE_CORES: dict[str, Any] = {
    "training_s": 300.0,
    "steps": 900,
    "workers": 4,
    "omp_num_threads": 1,
    "cpus": 32.0,
    "cores": 16,
    "idle_cpu_s": 300.0 * 27.9,
    "worker_s": 299.0,
    "worker_cpu_s": 296.0,
}
# Eight workers with a GPU each, for ten minutes, all on the CPUs of one of two sockets.
WRONG_SOCKET: dict[str, Any] = {
    "training_s": 600.0,
    "steps": 3000,
    "workers": 8,
    "omp_num_threads": 1,
    "uses_device": True,
    "samples": 80,
    "far_samples": 40,
    "cpus": 128.0,
    "cores": 128,
    "worker_s": 600.0,
    "worker_cpu_s": 590.0,
    "idle_cpu_s": 600.0 * 110,
}
WELL: dict[str, Any] = {
    "training_s": 13.93,
    "steps": 216,
    "batches": 215,
    "num_workers": 1,
    "wait_s": 0.64,
    "squares_s2": 0.01,
    "idle_cpu_s": 90.0,
    "omp_num_threads": 8,
    "worker_s": 13.0,
    "worker_cpu_s": 12.5,
}


def measured(node: str = "a/0", round_: int = 0, **numbers: Any) -> TuningMeasured:
    return TuningMeasured(**{**NOTHING, **numbers, "round": round_, "node_rank": 0})


def run(*ends: dict[str, Any]) -> Job:
    """Return a job whose rounds end with these numbers."""
    job = Job()
    job.starts("a/0", "b/0")
    for number, numbers in enumerate(ends):
        job.round(number, "a/0", "b/0")
        # No batch was taken before the first step.
        kept = {name: numbers[name] for name in ("workers", "omp_num_threads") if name in numbers}
        first = measured(round_=number, **kept, num_workers=0, prefetch_factor=0)
        job.happens("a/0", first, numbers["training_s"])
        job.happens("b/0", measured(round_=number, **BURSTY))
        job.happens("a/0", measured(round_=number, **numbers))
    return job


def lines(*ends: dict[str, Any]) -> list[str]:
    return [one.text for one in run(*ends).summary.advice]


@pytest.mark.parametrize(
    ("numbers", "line"),
    [
        (STARVED, "data wait 39%, 6.2 of 8 CPUs idle: num_workers 1 -> 2"),
        (STARVED | {"num_workers": 0}, "data wait 39%, 6.2 of 8 CPUs idle: num_workers 0 -> 1"),
        (STARVED | {"num_workers": 6}, "data wait 39%, 6.2 of 8 CPUs idle: num_workers 6 -> 10"),
        # Each of the 6 has a batch at once.
        (
            STARVED | {"num_workers": 6, "squares_s2": 1.8},
            "data wait 39%, 6.2 of 8 CPUs idle: num_workers 6 -> 10",
        ),
        # A GPU may have been idle for as long as training took.
        (STARVED | {"wait_s": 15.0}, "data wait 100%, 6.2 of 8 CPUs idle: num_workers 1 -> 7"),
        # Four ranks share the idle CPUs.
        (
            STARVED | {"num_workers": 6, "workers": 4},
            "data wait 39%, 6.2 of 8 CPUs idle: num_workers 6 -> 7",
        ),
        (BURSTY, "data wait 30% in bursts of 0.5 s: prefetch_factor 2 -> 6"),
        (IDLE_CORES, "OMP_NUM_THREADS=1 beside 12 idle cores and no GPU: 4 would use them"),
        (
            IDLE_CORES | {"idle_cpu_s": 300.0 * 32},
            "OMP_NUM_THREADS=1 beside 16 idle cores and no GPU: 4 would use them",
        ),
        (
            IDLE_CORES | {"workers": 1, "cpus": 2.0, "cores": 2, "idle_cpu_s": 243.0},
            "OMP_NUM_THREADS=1 beside 1 idle core and no GPU: 2 would use them",
        ),
        (
            WRONG_SOCKET,
            "workers run on other sockets' CPUs than their GPUs (40 of 80 reads):"
            " --numa-binding node",
        ),
    ],
)
def test_what_is_advised(numbers: dict[str, Any], line: str) -> None:
    assert lines(numbers) == [line]


@pytest.mark.parametrize(
    ("numbers", "line"),
    [
        (
            STARVED | {"idle_cpu_s": 11.0},
            "data wait 39%, but no CPU is idle: more loader processes would not help",
        ),
        (
            STARVED | {"workers": 8},
            "data wait 39%, but only 6.2 of 8 CPUs are idle for 8 workers: more loader processes"
            " would not help",
        ),
        (
            STARVED | {"first_wait_s": 5.5},
            "data wait 39%, mostly for the first batches of epochs: persistent_workers=True may"
            " help",
        ),
        (
            BURSTY | {"squares_s2": 400.0},
            "data wait 30% in bursts of 85 s: too long to be hidden by prefetch_factor",
        ),
        (
            BURSTY | {"batches": 274, "squares_s2": 21.6},
            "data wait 30% in bursts of 4.6 s: too long to be hidden by prefetch_factor",
        ),
    ],
)
def test_why_nothing_shortens_the_wait_for_data(numbers: dict[str, Any], line: str) -> None:
    assert lines(numbers) == [line]
    assert [one.advised for one in run(numbers).summary.advice] == [""]


@pytest.mark.parametrize(
    "numbers",
    [
        WELL,
        *(STARVED | {"training_s": 9.0, "wait_s": 3.5}, STARVED | {"batches": 19}),
        STARVED | {"idle_cpu_s": -1.0},  # it is not known what is idle
        IDLE_CORES | {"uses_device": True},
        IDLE_CORES | {"omp_num_threads": 0},
        IDLE_CORES | {"omp_num_threads": 3, "worker_cpu_s": 800.0},
        IDLE_CORES | {"worker_cpu_s": 200.0},  # it waits for something else
        IDLE_CORES | {"workers": 1, "omp_num_threads": 2, "worker_cpu_s": 360.0},
        IDLE_CORES | {"idle_cpu_s": 300.0 * 19},
        IDLE_CORES | {"worker_s": 9.0, "worker_cpu_s": 9.0},
        WRONG_SOCKET | {"samples": 19, "far_samples": 19},
        WRONG_SOCKET | {"far_samples": 39},
    ],
)
def test_nothing_is_to_be_gained_or_known(numbers: dict[str, Any]) -> None:
    assert lines(numbers) == []
    assert run(numbers).summary.measured is not None


@pytest.mark.parametrize("wrong", [{"workers": 0}, {"cpus": 1e300}, {"idle_cpu_s": 1e300}])
def test_a_file_with_impossible_numbers(wrong: dict[str, Any]) -> None:
    assert run(STARVED | wrong).summary.measured is None


def test_the_numbers_behind_a_line_are_in_the_summary() -> None:
    summary = json.loads(json.dumps(json_value(run(STARVED).summary)))
    assert summary["advice"] == [
        {
            "setting": "num_workers",
            "now": "1",
            "advised": "2",
            "text": "data wait 39%, 6.2 of 8 CPUs idle: num_workers 1 -> 2",
        }
    ]
    behind = {name: summary["measured"][name] for name in ("wait_s", "idle_cpu_s", "idle_of_s")}
    assert behind == {"wait_s": 5.911, "idle_cpu_s": 93.0, "idle_of_s": 15.0}


def test_rounds_with_the_same_settings_are_one_measure() -> None:
    half = STARVED | {"training_s": 7.5, "batches": 60, "wait_s": 3.0, "idle_cpu_s": 46.0}
    assert lines(half) == []
    (line,) = lines(half, half)
    assert line == "data wait 40%, 6.1 of 8 CPUs idle: num_workers 1 -> 2"
    # Short of a batch, a last round says nothing.
    assert lines(half, half, half | {"batches": 0, "training_s": 0.0}) == [line]
    assert lines(half, half | {"num_workers": 2}) == []
    assert lines(STARVED, WELL) == []


def test_new_settings_within_a_round_are_measured_anew() -> None:
    job = run(STARVED)
    more: dict[str, Any] = {
        name: 2 * STARVED[name] for name in ("training_s", "steps", "batches", "wait_s")
    }
    job.happens("a/0", 15.0, measured(**STARVED | more | {"num_workers": 2}))
    assert job.summary == replace(job.summary, measured=None)
    more = {name: 3 * STARVED[name] for name in more}
    job.happens("a/0", 15.0, measured(**STARVED | more | {"num_workers": 2}))
    found = job.summary.measured
    assert found is not None
    assert (found.num_workers, found.batches) == (2, 119)


def test_idle_cpus_count_while_workers_train() -> None:
    job = run(STARVED)
    late = STARVED | {"training_s": 20.0, "idle_cpu_s": 500.0}
    job.happens("a/0", 60.0, measured(**late))  # 55 s of it were a checkpoint
    found = job.summary.measured
    assert found is not None
    assert found.training_s == 20.0
    assert found.idle_cpus == pytest.approx(6.2)


def test_another_process_in_the_same_round() -> None:
    job = run(STARVED)
    before = job.summary.measured
    job.happens("a/0", 1.0, measured(**STARVED | {"training_s": 1.0, "batches": 3}))
    assert job.summary.measured == before


NUMBERS = st.floats(0, 1e12) | st.integers(0, 1 << 40) | st.sampled_from([0, 1e-300, 1e400, -5.0])


@given(st.lists(st.dictionaries(st.sampled_from(sorted(NOTHING)), NUMBERS), max_size=4))
def test_any_numbers_of_a_file(found: list[dict[str, Any]]) -> None:
    measures = Measures()
    for number, numbers in enumerate(found):
        envelope = {"name": "tuning.measured", "node": "a/0", "attempt": 0}
        record = {**NOTHING, **numbers, **envelope, "round": 0, "uptime_s": 60.0 * number}
        measures.add(record)
    if measures.measured is not None:
        check(measures.measured)


def check(found: Measured) -> None:
    for one in advice(found):
        if not one.advised:
            continue
        more = int(one.advised) - int(one.now) if one.now else 0
        if one.setting == "num_workers":
            assert found.idle_cpus is not None
            assert 0 < more * found.workers <= found.idle_cpus
        elif one.setting == "OMP_NUM_THREADS":
            assert int(one.advised) * found.workers <= found.cores
