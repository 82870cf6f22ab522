"""A stream speaks for its own node: no other is blamed, stopped or replaced for what it says."""

from ft_run.rendezvous.group.takeover import Takeover
from ft_run.rendezvous.protocol.claim import ClaimState
from ft_run.rendezvous.protocol.messages import Done, Failed, Leave, PolicySpec, Stopped
from ft_run.rendezvous.protocol.offer import Offer
from ft_run.tests.harness.scene import Scene, claim_of, running, worker_failure


def test_a_failure_is_that_of_the_node_that_reports_it() -> None:
    scene = running(2)
    scene.say("b", Failed(0, worker_failure(0, code=-11)))
    scene.stopped("a", "b")
    cause = scene.assignment("a").cause
    assert cause is not None
    assert (cause.node_rank, cause.rank) == (1, -1)


def test_a_node_cannot_have_another_replaced() -> None:
    scene = running(2, names="abc", policy=PolicySpec(rules=("exit:3=replace-node",)))
    scene.say("b", Failed(0, worker_failure(0, code=3)))
    scene.stopped("a", "b")
    assert scene.ranks("a", "c") == [0, 1]
    assert scene.group.roster.get("b") is None


def test_a_claim_brings_failures_of_its_own_node_only() -> None:
    scene = Scene(2)
    failures = (worker_failure(0, code=-11),)
    scene.attend("b", claim=claim_of(4, 1, state=ClaimState.STOPPED, failures=failures))
    scene.attend("a", claim=claim_of(4, 0))
    scene.stopped("a")
    cause = scene.assignment("a").cause
    assert cause is not None
    assert (cause.node_rank, cause.rank) == (1, -1)


def test_a_failure_before_the_decision_of_a_new_master_too() -> None:
    scene = Scene(2)
    scene.attend("b", claim=claim_of(4, 1))
    scene.say("b", Failed(4, worker_failure(0, code=-11)))
    scene.attend("a", claim=claim_of(4, 0))
    for name, port in (("a", 1), ("b", 2)):
        scene.say(name, Stopped(4, Offer("h", port)))
    cause = scene.assignment("a").cause
    assert cause is not None
    assert (cause.node_rank, cause.rank) == (1, -1)


def test_what_fails_before_the_decision_is_bounded() -> None:
    scene = Scene(2)
    scene.attend("b", claim=claim_of(4, 1))
    for code in range(1, 100):
        scene.say("b", Failed(4, worker_failure(2, code=code)))
    takeover = scene.group.state.phase
    assert isinstance(takeover, Takeover)
    (claim,) = takeover._claims.values()
    assert [failure.exit_code for failure in claim.failures] == [*range(1, 17)]


def test_what_was_replaced_says_nothing_more() -> None:
    scene = running(2)
    before = scene.links["b"]
    scene.attend("b", claim=claim_of(0, 1))
    scene.links["b"] = before
    for message in (Done(0), Failed(0, worker_failure(1)), Leave("x")):
        scene.say("b", message)
    assert scene.stops("a") == []
