"""Accelerators that run out of memory: when parts are halved, and when that is no answer."""

import pytest
from ft_run.rendezvous.policy.rules import Action, Context, Rule, decide
from ft_run.rendezvous.policy.shrink import shrinking, smaller
from ft_run.rendezvous.protocol.failure import Evidence, evidence
from ft_run.tests.harness.scene import worker_failure

SHRINK = Rule.parse("device-oom=shrink")
OTHERWISE = "device-oom=shrink does not apply: "


@pytest.mark.parametrize(
    ("used", "given", "expected", "words"),
    [
        (16, 0, 8, "micro_batch 16 -> 8"),
        (16, 16, 8, "micro_batch 16 -> 8"),
        (7, 8, 3, "micro_batch 7 -> 3"),  # a short batch at the end of an epoch
        (1, 1, 0, "micro_batch is 1 and cannot be halved"),
        (16, 8, None, "a part had 16 samples, though micro_batch was 8"),
        (0, 8, None, "memory ran out outside the parts of ElasticBatches"),
    ],
)
def test_parts_are_halved_where_one_did_not_fit(
    used: int, given: int, expected: int | None, words: str
) -> None:
    found = shrinking(worker_failure(0, micro_batch=used), given)
    assert (found.micro_batch, found.words) == (expected, words)


def test_a_job_shrinks_at_most_log2_times() -> None:
    used = given = 1000
    for _ in range(9):
        given = used = shrinking(worker_failure(0, micro_batch=used), given).micro_batch or 0
    assert used == 1


def test_the_smaller_value_holds() -> None:
    assert [smaller(0, 0), smaller(0, 4), smaller(4, 0), smaller(8, 4)] == [0, 4, 4, 4]


def test_the_rule_decides_or_the_next_one_does() -> None:
    part, elsewhere = (
        worker_failure(0, micro_batch=4),
        worker_failure(0, message="OutOfMemoryError"),
    )
    fail = Rule.parse("exit:1=fail")
    found = decide([SHRINK, fail], part, Context())
    assert (found.action, found.micro_batch) == (Action.SHRINK, 2)
    assert found.words() == "rule device-oom=shrink; micro_batch 4 -> 2"
    assert not found.action.is_counted
    found = decide([SHRINK, fail], worker_failure(0, micro_batch=1), Context())
    assert found.action is Action.FAIL
    assert found.words() == "rule device-oom=shrink; micro_batch is 1 and cannot be halved"
    found = decide([SHRINK, fail], elsewhere, Context())
    why = "memory ran out outside the parts of ElasticBatches"
    assert found.words() == f"rule exit:1=fail; {OTHERWISE}{why}"
    assert [over.reason for over in found.passed_over] == [why]
    found = decide([SHRINK], elsewhere, Context())
    assert (found.action, found.is_default) == (Action.RESTART, True)
    assert found.words().endswith(f"; {OTHERWISE}{why}")
    found = decide([SHRINK], part, Context(micro_batch=2))
    assert found.words().endswith("a part had 4 samples, though micro_batch was 2")
    assert decide([SHRINK], worker_failure(0, code=-9, out_of_memory=True), Context()).note == ""


def test_what_is_known_of_a_part_makes_it_the_root_cause() -> None:
    assert evidence(worker_failure(0, message="the store is closed")) is Evidence.COLLATERAL
    failure = worker_failure(0, message="the store is closed", micro_batch=4)
    assert evidence(failure) is Evidence.OWN
