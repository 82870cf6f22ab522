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
        "objects": {"model": {"weight": f"float32 [4] {step}"}, "counts": {"n": str(step)}},
        "variables": {"count": str(step), "start": "0"},
        "samples": step * 7,
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


def compare(run: list[dict[str, Any]], **options: Any) -> str:
    again = History(undisturbed())
    found = Comparison(History(undisturbed()), again, **options).disturbed(History(run))
    return str(found or "")


def test_equal_runs_have_no_difference() -> None:
    assert compare(killed_after_4()) == ""


def test_wrongly_restored_object_is_named() -> None:
    objects = {"model": {"weight": "float32 [4] 3"}, "counts": {"n": "0"}}
    said = compare(killed_after_4(objects=objects))
    assert (
        said
        == "step 3: counts (n is 0, not 3) on rank 0: was restored, but not as it was after step 3"
    )


def test_variable_outside_the_state_is_named() -> None:
    run = killed_after_4(variables={"count": "0", "start": "3"})
    run[-3] = record(4, objects={"model": {"weight": "float32 [4] x"}, "counts": {"n": "4"}})
    said = compare(run)
    assert said.startswith("step 4: model (weight) on rank 0: the state was restored as it was")
    assert said.endswith("takes part in steps: count")


def test_lost_variable_is_named_even_if_the_state_is_equal() -> None:
    run = killed_after_4()
    run[-1] = record(6, variables={"count": "3", "start": "3"})
    assert compare(run) == "step 6: the same bits, but not in state, and lost: count"
    assert compare(run, ignored=("count",)) == ""


def test_variables_that_differ_without_a_failure_are_left_out() -> None:
    again = [*undisturbed()[:6], record(6, variables={"count": "clock", "start": "0"})]
    run = [*killed_after_4()[:-1], record(6, variables={"count": "3", "start": "0"})]
    comparison = Comparison(History(undisturbed()), History(again))
    assert comparison.disturbed(History(run)) is None


def test_missing_step_is_a_difference() -> None:
    run = killed_after_4()
    del run[5:7]  # resumes with step 5
    run.pop(4)
    assert compare(run) == "step 4: this step is missing"


def test_random_generators_may_begin_differently_but_not_after_a_restore() -> None:
    def with_generator(one: dict[str, Any], text: str) -> dict[str, Any]:
        return one | {"objects": {**one["objects"], "ft_run_generators": {"python": text}}}

    base = [with_generator(one, f"a{one['step']}") for one in undisturbed()]
    run = [with_generator(one, f"b{one['step']}") for one in killed_after_4()]
    comparison = Comparison(History(base))
    assert comparison.disturbed(History(run)) is None
    run[5] = with_generator(run[5], "b0")
    assert "random number generators" in str(comparison.disturbed(History(run)))


def test_not_deterministic_scripts_are_compared_with_themselves() -> None:
    other: dict[str, Any] = {"objects": {"model": {"weight": "float32 [4] other"}}}
    again = [*undisturbed()[:6], record(6, **other)]
    comparison = Comparison(History(undisturbed()), History(again))
    assert not comparison.is_deterministic
    assert "differs between two runs" in str(comparison.first(History(again)))
    assert comparison.disturbed(History([*killed_after_4()[:-1], record(6, **other)])) is None
    assert comparison.disturbed(History(killed_after_4(**other))) is not None


def test_resized_run_has_the_same_samples() -> None:
    comparison = Comparison(History(undisturbed()))
    run = [*undisturbed(), *undisturbed(rank=1)]
    assert comparison.resized(History(run))[0] is None
    run[3] = record(3, samples=1)
    assert str(comparison.resized(History(run))[0]) == "step 3: other samples"


def test_weights_of_a_resized_run_are_compared_by_their_size() -> None:
    def ended(total: float, *, drops: bool = False) -> History:
        sketch = {"model": {"weight": [10.0, total, 1.0]}}
        return History([*undisturbed(), {"rank": 0, "sketches": sketch, "drops": drops}])

    assert Comparison(ended(5.0)).resized(ended(5.0001)) == (None, "weights within 1e-05")
    difference, _ = Comparison(ended(5.0)).resized(ended(5.1))
    assert str(difference).startswith("step 6: weights within 1e-02, expected 1e-03")
    with_dropout = Comparison(ended(5.0, drops=True)).resized(ended(5.1, drops=True))
    assert with_dropout == (None, "weights within 1e-02 (dropout differs)")


def test_first_differing_value_is_named_with_both_values_if_they_are_short() -> None:
    assert differing({"a": {"x": "1"}}, {"a": {"x": "2"}}) == "a (x is 2, not 1)"
    assert differing({"a": {"x": "float32 [2] 1"}}, {"a": {}}) == "a (x)"
    assert differing({"a": {"x": "1"}}, {"a": {"x": "1"}}) == ""


def test_start_of_a_script_that_is_not_deterministic_is_not_compared() -> None:
    other: dict[str, Any] = {"objects": {"model": {"weight": "float32 [4] other"}}}
    again = [record(0, restored=True, **other), *undisturbed()[1:]]
    comparison = Comparison(History(undisturbed()), History(again))
    run = [record(0, restored=True, **other), record(0, restored=True, **other), *undisturbed()[1:]]
    assert comparison.disturbed(History(run)) is None
    same = Comparison(History(undisturbed()), History(undisturbed()))
    assert same.disturbed(History(run)) is not None
