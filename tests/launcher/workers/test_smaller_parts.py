"""What a node proposes when an accelerator runs out of memory in a part of ``ElasticBatches``."""

import pytest
from ft_run.launcher.workers.smaller_parts import NAME, environment, propose
from ft_run.rendezvous.protocol.carried import CHANGES_MAX, Carried, CarriedValue
from ft_run.training.worker.device_memory import VARIABLE


@pytest.mark.parametrize(
    ("used", "given", "expected", "words"),
    [
        (16, 0, 8, "micro_batch 16 -> 8"),
        (16, 16, 8, "micro_batch 16 -> 8"),
        (7, 8, 3, "micro_batch 7 -> 3"),  # a short batch at the end of an epoch
        (1, 1, None, "micro_batch is 1 and cannot be halved"),
        (16, 8, None, "a part had 16 samples, though micro_batch was 8"),
    ],
)
def test_parts_are_halved_where_one_did_not_fit(
    used: int, given: int, expected: int | None, words: str
) -> None:
    carried = (CarriedValue("other", 3, 9), CarriedValue(NAME, given, 4)) if given else ()
    found = propose(used, carried)
    assert found is not None
    assert found.cause == f"an accelerator ran out of memory in a part of {used} sample(s)"
    assert (found.words, found.ends_job) == (words, used == 1)
    change = 5 if given else 1
    values = (CarriedValue(NAME, expected, change, used),) if expected else ()
    assert found.values == values


def test_memory_outside_of_parts_has_no_proposal() -> None:
    assert propose(0, (CarriedValue(NAME, 8),)) is None


def test_a_job_shrinks_at_most_log2_times() -> None:
    used = 1000
    carried: Carried = ()
    for _ in range(9):
        found = propose(used, carried)
        assert found is not None
        carried = found.values
        used = carried[0].value
    assert used == 1
    assert carried[0].change == 9 < CHANGES_MAX


def test_workers_find_the_value_in_their_environment() -> None:
    assert environment(()) == environment((CarriedValue("other", 3),)) == {}
    assert environment((CarriedValue(NAME, 4),)) == {VARIABLE: "4"}
