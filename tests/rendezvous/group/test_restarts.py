"""The rules of restarts: failures, the budget, the root cause, lost streams, late messages."""

from ft_run import exit_codes
from ft_run.rendezvous.group.events import Detached, Received
from ft_run.rendezvous.group.group import GroupPhase
from ft_run.rendezvous.protocol.claim import ClaimState
from ft_run.rendezvous.protocol.failure import FailureKind
from ft_run.rendezvous.protocol.messages import (
    Attend,
    Done,
    Failed,
    Outcome,
    Stopped,
    Verdict,
    Waiting,
)
from ft_run.tests.harness.scene import claim_of, running, worker_failure

# --- restarts --------------------------------------------------------------------------------


def test_the_offer_of_the_last_stop_is_used():
    scene = running(1, names="a")
    scene.fail("a")
    offer = scene.offer("a")
    scene.say("a", Stopped(0, offer))
    assert (scene.assignment("a").master_addr, scene.assignment("a").master_port) == (
        offer.address,
        offer.port,
    )


def test_the_budget_is_the_jobs_and_no_restart_more():
    scene = running(2, names="ab", restarts=2)
    for name in ("a", "b"):
        scene.fail(name)
        scene.stopped("a", "b")
    assert scene.assignment("a").restarts == scene.assignment("b").restarts == 2
    scene.fail("a", worker_failure(0, message="ValueError: no"))
    assert scene.group.verdict is None
    scene.stopped("a", "b")
    for name in "ab":
        verdict = scene.last(name, Verdict)
        assert verdict.outcome is Outcome.WORKERS_FAILED
        assert verdict.exit_code == exit_codes.WORKERS_FAILED
        assert (verdict.restarts, verdict.rounds) == (2, 3)
        assert verdict.cause == worker_failure(0, message="ValueError: no")
        assert "ValueError: no (2 of 2 restarts used)" in verdict.sentence
        assert scene.rounds(name) == [0, 1, 2]


def test_spares_hear_the_verdict():
    scene = running(1, names="ab", restarts=0)
    scene.fail("a")
    scene.stopped("a")
    assert scene.last("b", Verdict) == scene.last("a", Verdict)


def test_failures_of_the_same_round_are_one_restart_and_the_root_cause_is_named():
    scene = running(3, names="abc", restarts=1)
    collateral = worker_failure(0, message="Connection reset by peer")
    own = worker_failure(1, message="ValueError: loss is nan")
    scene.fail("a", collateral)
    scene.fail("b", own)
    scene.fail("b", own)
    scene.fail("c", worker_failure(2, after_stop=True))
    scene.stopped("a", "b", "c")
    assert scene.assignment("c").restarts == 1
    assert scene.assignment("c").cause == own
    scene.fail("a", collateral)
    scene.fail("b", own)
    scene.fail("b", own)
    scene.stopped("a", "b", "c")
    verdict = scene.last("c", Verdict)
    assert verdict.cause == own
    assert verdict.failures == (own, collateral)
    assert verdict.failure_count == 2


def test_a_dead_node_is_the_root_cause_though_its_peers_are_heard_first():
    scene = running(2, names="ab", restarts=0)
    scene.detach("b")
    scene.fail("a", worker_failure(0, message="Connection closed by peer"))
    scene.stopped("a")
    assert scene.group.verdict is None
    scene.wait(1)
    verdict = scene.last("a", Verdict)
    assert verdict.cause is not None
    assert verdict.cause.kind is FailureKind.NODE_LOST
    assert verdict.cause.node_rank == 1
    assert verdict.failure_count == 2


def test_a_failure_during_a_regroup_costs_nothing():
    scene = running(1, 2, names="a")
    scene.attend("b")
    scene.wait(10)
    scene.fail("a", worker_failure(0))
    scene.stopped("a")
    assert scene.assignment("b").restarts == 0


def test_a_worker_that_does_not_die_ends_the_job():
    scene = running(2, names="ab", restarts=5)
    stuck = worker_failure(1, kind=FailureKind.STUCK, message="uninterruptible sleep")
    scene.fail("a")
    scene.say("b", Failed(0, stuck))
    scene.stopped("a", "b")
    verdict = scene.last("a", Verdict)
    assert verdict.outcome is Outcome.WORKERS_FAILED
    assert verdict.cause == worker_failure(0)
    assert "cannot be killed" in verdict.sentence


def test_a_worker_that_does_not_die_in_a_regroup_is_the_cause():
    scene = running(1, 2, names="a")
    scene.attend("b")
    scene.wait(10)
    stuck = worker_failure(0, kind=FailureKind.STUCK, message="uninterruptible sleep")
    scene.say("a", Failed(0, stuck))
    scene.stopped("a")
    assert scene.last("b", Verdict).cause == stuck


def test_workers_that_were_stopped_unasked_cost_a_restart():
    scene = running(2, names="ab")
    scene.stopped("a")
    assert scene.stops("b") == [0]
    scene.stopped("b")
    assert scene.assignment("a").restarts == 1


def test_nobody_alive_is_left_out_because_he_is_slow():
    scene = running(1, 2, names="ab")
    scene.fail("a")
    scene.stopped("a")
    scene.wait(599)
    assert scene.rounds("a") == [0]
    scene.stopped("b")
    assert scene.assignment("a").nodes == 2


def test_without_a_spare_a_replacement_is_waited_for_by_name():
    scene = running(2, names="ab")
    scene.detach("b")
    scene.wait(1)
    scene.stopped("a")
    scene.wait(61)
    assert scene.last("a", Waiting).missing == ("b",)
    scene.attend("z")
    assert scene.ranks("a", "z") == [0, 1]
    assert scene.group.round == 1


def test_a_replacement_that_does_not_come_in_time_ends_the_job():
    scene = running(2, names="ab")
    scene.detach("b")
    scene.wait(1)
    scene.stopped("a")
    scene.wait(600)
    verdict = scene.last("a", Verdict)
    assert verdict.outcome is Outcome.RENDEZVOUS_FAILED
    assert verdict.sentence.endswith("missing: b")


def test_a_node_that_never_stops_its_stale_workers_does_not_hold_up_the_others():
    scene = running(1, 3, names="abc")
    scene.detach("c")
    scene.wait(1)
    scene.attend("c", claim=claim_of(0, 2, nodes=3))
    scene.stopped("a", "b")
    scene.wait(599)
    assert scene.rounds("a") == [0]
    scene.wait(1)
    assert scene.assignment("a").nodes == 2
    assert scene.closed == ["c"]


# --- lost streams ----------------------------------------------------------------------------


def test_a_new_stream_before_the_old_one_is_reported_gone():
    scene = running(2, names="ab")
    old = scene.links["b"]
    scene.attend("b", claim=claim_of(0, 1))
    assert scene.closed == ["b"]
    scene.handle(Detached(old))
    scene.wait(100)
    assert scene.stops("a") == []


def test_a_start_that_was_lost_is_said_again():
    scene = running(2, names="ab")
    assignment = scene.assignment("b")
    scene.detach("b")
    scene.attend("b", claim=None)
    assert scene.rounds("b") == [0, 0]
    assert scene.assignment("b") == assignment


def test_a_stop_that_was_lost_is_said_again():
    scene = running(2, names="ab")
    scene.detach("b")
    scene.fail("a")
    assert scene.stops("b") == []
    scene.attend("b", claim=claim_of(0, 1))
    assert scene.stops("b") == [0]
    scene.stopped("b", "a")
    assert scene.rounds("b") == [0, 1]


def test_a_node_that_seems_not_to_know_the_round_must_confirm_its_stop_as_well():
    scene = running(2, names="ab")
    scene.detach("b")
    scene.fail("a")
    scene.stopped("a")
    scene.attend("b", claim=None)
    assert scene.rounds("a") == [0], "its start may lie in its mailbox"
    assert scene.stops("b") == [0]
    scene.stopped("b")
    assert scene.rounds("a") == [0, 1]


def test_a_failure_that_was_lost_comes_with_the_next_stream():
    scene = running(2, names="ab")
    scene.detach("b")
    scene.attend("b", claim=claim_of(0, 1, failures=(worker_failure(1),)))
    assert scene.stops("a") == scene.stops("b") == [0]
    scene.stopped("a", "b")
    assert scene.assignment("a").cause == worker_failure(1)


def test_a_stop_that_was_confirmed_into_a_broken_stream_comes_with_the_next():
    scene = running(2, names="ab")
    scene.fail("a")
    scene.stopped("a")
    scene.detach("b")
    scene.attend("b", claim=claim_of(0, 1, state=ClaimState.STOPPED))
    assert scene.rounds("a") == scene.rounds("b") == [0, 1]


def test_success_that_was_lost_comes_with_the_next_stream():
    scene = running(2, names="ab")
    scene.done("a")
    scene.detach("b")
    scene.attend("b", claim=claim_of(0, 1, state=ClaimState.DONE))
    assert scene.last("b", Verdict).outcome is Outcome.SUCCEEDED


def test_a_node_lost_while_it_stops_is_not_waited_for():
    scene = running(2, names="abc")
    scene.fail("a")
    scene.stopped("a")
    scene.detach("b")
    scene.wait(1)
    assert scene.ranks("a", "c") == [0, 1]
    assert scene.assignment("a").restarts == 1


def test_a_node_that_was_done_may_go_without_harm():
    scene = running(2, names="ab")
    scene.done("b")
    scene.detach("b")
    scene.wait(5)
    assert scene.stops("a") == []
    scene.done("a")
    assert scene.last("a", Verdict).outcome is Outcome.SUCCEEDED


# --- what comes late or twice ----------------------------------------------------------------


def test_messages_of_earlier_rounds_change_nothing():
    scene = running(2, names="ab")
    scene.fail("a")
    scene.stopped("a", "b")
    assert scene.group.round == 1
    for message in (
        Failed(0, worker_failure(0)),
        Done(0),
        Stopped(0, scene.offer("a")),
        Failed(7, worker_failure(0)),
        Stopped(7, scene.offer("a")),
    ):
        scene.say("a", message)
    assert scene.stops("a") == [0]
    assert scene.rounds("a") == [0, 1]
    assert scene.group.phase is GroupPhase.RUNNING
    scene.done("b")
    assert scene.group.verdict is None, "the other has not yet succeeded in this round"


def test_a_repeated_failure_is_one_failure():
    scene = running(2, names="ab", restarts=0)
    for _ in range(3):
        scene.fail("a")
    assert scene.stops("b") == [0]
    scene.stopped("a", "b")
    assert scene.last("b", Verdict).failure_count == 1


def test_a_repeated_attend_on_the_same_stream_changes_nothing():
    scene = running(2, names="ab")
    scene.fail("b")
    node = scene.group.roster.get("a")
    assert node is not None
    attend = Attend(1, "1", scene.job, node.spec, scene.offer("a"), None)
    assert scene.handle(Received(scene.links["a"], attend)) == []
    scene.stopped("b")
    assert scene.rounds("b") == [0]


def test_what_comes_on_a_stream_that_was_replaced_changes_nothing():
    scene = running(2, names="ab")
    old = scene.links["b"]
    scene.attend("b", claim=claim_of(0, 1))
    assert scene.handle(Received(old, Failed(0, worker_failure(1)))) == []
