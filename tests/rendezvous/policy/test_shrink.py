"""``shrink``: the values that a failure proposes are adopted, or the next rule decides."""

from ft_run.rendezvous.policy.rules import Action, Context, Rule, decide
from ft_run.rendezvous.protocol.carried import CarriedValue, Proposal
from ft_run.rendezvous.protocol.failure import Evidence, evidence
from ft_run.tests.harness.scene import worker_failure

SHRINK = Rule.parse("device-oom=shrink")
FAIL = Rule.parse("exit:1=fail")
OTHERWISE = "device-oom=shrink does not apply: "
PART = Proposal("no memory for 4", "size 4 -> 2", (CarriedValue("size", 2, 3),))


def test_a_proposal_is_adopted() -> None:
    found = decide([SHRINK, FAIL], worker_failure(0, proposal=PART), Context())
    assert (found.action, found.adopts) == (Action.SHRINK, PART.values)
    assert (found.reason, found.words()) == (PART.cause, "rule device-oom=shrink; size 4 -> 2")
    assert not found.action.is_counted


def test_a_proposal_that_ends_the_job() -> None:
    last = Proposal("no memory for 1", "size is 1", ends_job=True)
    found = decide([SHRINK], worker_failure(0, proposal=last), Context())
    assert found.action is Action.FAIL
    assert found.words() == "rule device-oom=shrink; size is 1"


def test_without_a_proposal_the_next_rule_decides() -> None:
    elsewhere = worker_failure(0, message="OutOfMemoryError")
    found = decide([SHRINK, FAIL], elsewhere, Context())
    why = "memory ran out outside the parts of ElasticBatches"
    assert found.words() == f"rule exit:1=fail; {OTHERWISE}{why}"
    assert [over.reason for over in found.passed_over] == [why]
    found = decide([SHRINK], elsewhere, Context())
    assert (found.action, found.is_default) == (Action.RESTART, True)
    assert found.words().endswith(f"; {OTHERWISE}{why}")
    killed = worker_failure(0, code=-9, out_of_memory=True)
    assert decide([SHRINK], killed, Context()).note == ""


def test_proposals_without_new_values_are_not_adopted() -> None:
    useless = Proposal("no memory for 4", "a part had 4 samples, though size was 2")
    found = decide([SHRINK], worker_failure(0, proposal=useless), Context())
    assert (found.action, found.adopts) == (Action.RESTART, ())
    assert found.words().endswith(f"{OTHERWISE}{useless.words}")
    for value in (CarriedValue("size", 2, 3), CarriedValue("size", 1, 4)):
        found = decide([SHRINK], worker_failure(0, proposal=PART), Context(carried=(value,)))
        assert found.action is Action.RESTART
        assert found.words().endswith("size 4 -> 2 was proposed before the last change")


def test_a_proposal_makes_a_failure_the_root_cause() -> None:
    assert evidence(worker_failure(0, message="the store is closed")) is Evidence.COLLATERAL
    failure = worker_failure(0, message="the store is closed", proposal=PART)
    assert evidence(failure) is Evidence.OWN
