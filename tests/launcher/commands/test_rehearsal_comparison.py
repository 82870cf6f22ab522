"""Comparison of the runs of a rehearsal."""

from typing import Any

from ft_run.launcher.commands.rehearsal_comparison import Comparison, History, differing


def record(step: int, *, restored: bool = False, rank: int = 0, **changes: Any) -> dict[str, Any]:
    """Return a record of a step whose state and variables follow from the step."""
    values = {
        "key": "checkpoints",
        "step": step,
        "rank": rank,
        "is_restored": restored,
        "objects": {
            "model": {"['weight']": f"torch.float32 [4] {step}"},
            "counts": {"['n']": str(step)},
        },
        "variables": {"count": step, "start": 0},
        "samples": step * 7,
        "sketches": [[10.0, float(step)]],
        "drops": False,
    }
    return values | changes


def undisturbed(**changes: Any) -> list[dict[str, Any]]:
    return [record(0, restored=True, **changes), *(record(n, **changes) for n in range(1, 7))]


def killed_after_4(**changes: Any) -> list[dict[str, Any]]:
    """Return the records of a run that resumes from step 3."""
    return [
        *undisturbed()[:5],
        record(3, restored=True, **changes),
        *(record(n) for n in (4, 5, 6)),
    ]


def compare(run: list[dict[str, Any]], ignored: tuple[str, ...] = ()) -> str:
    comparison = Comparison(History(undisturbed()), ignored)
    assert comparison.again(History(undisturbed())) == ""
    return comparison.first(History(run))


def test_equal_runs_have_no_difference() -> None:
    assert compare(killed_after_4()) == ""


def test_wrongly_restored_object_is_named() -> None:
    objects = {"model": {"['weight']": "torch.float32 [4] 3"}, "counts": {"['n']": "0"}}
    message = compare(killed_after_4(objects=objects))
    reason = "was restored, but not as it was after step 3"
    assert message == f"step 3: counts['n'] is 0, not 3 on rank 0: {reason}"


def test_variable_outside_the_state_is_named() -> None:
    run = killed_after_4(variables={"count": 0, "start": 3})
    objects = {"model": {"['weight']": "torch.float32 [4] x"}, "counts": {"['n']": "4"}}
    run[-3] = record(4, objects=objects)
    message = compare(run)
    assert message.startswith("step 4: model['weight'] on rank 0: the state was restored as it was")
    assert message.endswith("takes part in steps: count")


def test_lost_variable_is_named_even_if_the_state_is_equal() -> None:
    run = killed_after_4()
    run[-1] = record(6, variables={"count": 3, "start": 3})
    assert compare(run) == "step 6: the same bits, but not in state, and lost: count"
    assert compare(run, ignored=("count",)) == ""


def test_variables_that_differ_without_a_failure_are_left_out() -> None:
    again = [*undisturbed()[:6], record(6, variables={"count": 99, "start": 0})]
    run = [*killed_after_4()[:-1], record(6, variables={"count": 3, "start": 0})]
    comparison = Comparison(History(undisturbed()))
    assert comparison.again(History(again)) == ""
    assert comparison.first(History(run)) == ""


def test_missing_step_is_a_difference() -> None:
    run = killed_after_4()
    del run[5:7]  # resumes with step 5
    run.pop(4)
    assert compare(run) == "step 4: this step is missing"


def test_step_of_another_directory_is_a_difference() -> None:
    run = [*undisturbed()[:5], *(record(n, key="runs/2", restored=n == 0) for n in range(3))]
    assert compare(run).startswith("step 1: the undisturbed run has no such step of runs/2")


def test_random_generators_may_begin_differently_but_not_after_a_restore() -> None:
    def with_generator(one: dict[str, Any], text: str) -> dict[str, Any]:
        return one | {"objects": {**one["objects"], "ft_run_generators": {"['torch']": text}}}

    base = [with_generator(one, f"a{one['step']}") for one in undisturbed()]
    run = [with_generator(one, f"b{one['step']}") for one in killed_after_4()]
    comparison = Comparison(History(base))
    assert comparison.first(History(run)) == ""
    run[5] = with_generator(run[5], "b0")
    assert "ft_run_generators['torch'] is b0, not b3" in comparison.first(History(run))


def test_not_deterministic_scripts_are_compared_with_themselves() -> None:
    other: dict[str, Any] = {"objects": {"model": {"['weight']": "torch.float32 [4] other"}}}
    again = [*undisturbed()[:6], record(6, **other, variables={"count": 6, "start": 1})]
    comparison = Comparison(History(undisturbed()))
    message = comparison.again(History(again))
    assert message.startswith("step 6: model['weight'] on rank 0: differs between two runs")
    assert message.endswith("different variables: start")
    assert comparison.first(History([*killed_after_4()[:-1], record(6, **other)])) == ""
    assert comparison.first(History(killed_after_4(**other))) != ""


def test_start_of_a_script_that_is_not_deterministic_is_not_compared() -> None:
    other: dict[str, Any] = {"objects": {"model": {"['weight']": "torch.float32 [4] other"}}}
    again = [record(0, restored=True, **other), *undisturbed()[1:]]
    comparison = Comparison(History(undisturbed()))
    run = [record(0, restored=True, **other), record(0, restored=True, **other), *undisturbed()[1:]]
    assert comparison.first(History(run)) != ""
    assert comparison.again(History(again)) != ""
    assert comparison.first(History(run)) == ""


def test_resized_run_has_the_same_samples() -> None:
    comparison = Comparison(History(undisturbed()))
    run = [*undisturbed(), *undisturbed(rank=1)]
    assert comparison.resized(History(run)) == ""
    run[3] = record(3, samples=1)
    assert comparison.resized(History(run)) == "step 3: other samples"
    assert comparison.resized(History(run[:3])) == "step 3: this step is missing"


def test_weights_of_a_resized_run_are_compared_by_their_size() -> None:
    def ended(total: float, *, drops: bool = False) -> History:
        last = record(6, sketches=[[10.0, total]], drops=drops)
        return History([*undisturbed()[:-1], last])

    assert Comparison(ended(5.0)).resized(ended(5.0001)) == ""
    difference = Comparison(ended(5.0)).resized(ended(5.1))
    assert difference.startswith("step 6: weights differ by 1e-02 of their norm")
    assert Comparison(ended(5.0, drops=True)).resized(ended(5.1, drops=True)) == ""


def test_first_differing_value_is_named_with_both_values_unless_it_is_a_tensor() -> None:
    def named(one: dict[str, str], other: dict[str, str]) -> str:
        return differing({"objects": {"a": one}}, {"objects": {"a": other}})

    assert named({"['x']": "1"}, {"['x']": "2"}) == "a['x'] is 2, not 1"
    assert named({"['x']": "torch.float32 [2] 1"}, {}) == "a['x']"
    assert named({"['x']": "1"}, {"['x']": "1"}) == ""
