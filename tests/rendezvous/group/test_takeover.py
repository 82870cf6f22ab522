"""A master that starts from nothing and takes over what runs."""

import sys

import pytest
from ft_run.rendezvous.group.group import GroupPhase
from ft_run.rendezvous.protocol.claim import ClaimState
from ft_run.rendezvous.protocol.failure import Failure, FailureKind
from ft_run.rendezvous.protocol.lease_messages import NO_ROUND
from ft_run.rendezvous.protocol.messages import (
    Done,
    Failed,
    Leave,
    Outcome,
    PolicySpec,
    Stopped,
    Verdict,
    Waiting,
)
from ft_run.tests.harness.scene import SPARE, Scene, claim_of, running, worker_failure

STOPPED, DONE = ClaimState.STOPPED, ClaimState.DONE


def test_other_hosts_hear_of_the_next_round_when_one_is_stopped():
    scene = Scene(2, term=7)
    heard = [scene.group.state.newest]
    scene.attend("a", claim=claim_of(4, 0, term=3))
    scene.attend("b", claim=claim_of(4, 1, term=3))
    heard.append(scene.group.state.newest)
    scene.say("a", Failed(4, worker_failure(0)))
    heard.append(scene.group.state.newest)
    scene.stopped("a", "b")
    assert scene.group.state.formed == scene.group.state.newest == (7, 5)
    assert heard == [NO_ROUND, (3, 4), (7, 5)]


def test_a_round_is_of_no_later_leader_than_the_one_that_takes_it_over():
    """What other hosts are told of it they would not believe."""
    scene = Scene(1, term=7)
    scene.attend("a", claim=claim_of(4, 0, nodes=1, term=99))
    assert scene.group.state.newest == scene.group.state.formed == (7, 4)


@pytest.mark.parametrize("known", [3, sys.maxsize])
def test_what_other_hosts_know_moves_the_number_of_a_round_but_not_far(known: int) -> None:
    scene = Scene(1, known=(5, known), term=7)
    scene.attend("a")
    assert scene.group.round == min(known + 1, 10_000)


def test_numbers_restarts_and_ranks_go_on():
    scene = Scene(2, restarts=3)
    scene.attend("a", claim=claim_of(4, 1, restarts=2))
    scene.attend("b", claim=claim_of(4, 0, restarts=2))
    scene.say("a", Failed(4, worker_failure(1)))
    assert scene.stops("a") == scene.stops("b") == [4]
    scene.stopped("a", "b")
    assert scene.rounds("a") == [5]
    assert scene.ranks("b", "a") == [0, 1]
    assert scene.assignment("a").restarts == 3


def test_spares_and_new_nodes_do_not_disturb_it():
    scene = Scene(2)
    scene.attend("s", claim=SPARE)
    scene.attend("n")
    scene.attend("m", claim=claim_of(3, 0, state=STOPPED))
    scene.attend("a", claim=claim_of(4, 0))
    scene.wait(9)
    scene.attend("b", claim=claim_of(4, 1))
    scene.wait(100)
    assert scene.group.round == 4
    assert scene.stops("a") == []
    assert all(scene.last(name, Waiting).spare for name in "snm")


def test_nodes_with_workers_are_not_told_that_nodes_are_missing():
    scene = Scene(2, 3)
    scene.attend("a", claim=claim_of(4, 0, nodes=3))
    scene.wait(5)
    scene.attend("b", claim=claim_of(4, 1, nodes=3))
    assert scene.group.phase is GroupPhase.TAKING_OVER
    scene.attend("c", claim=claim_of(4, 2, nodes=3))
    scene.wait(100)
    assert scene.group.round == 4
    assert not any(scene.all_told(name, Waiting) for name in "abc")


def test_stopped_nodes_are_told_after_the_takeover_which_nodes_are_missing():
    scene = Scene(2)
    scene.attend("a", claim=claim_of(4, 0, state=STOPPED))
    scene.wait(scene.group.settings.takeover_grace_s + 2)
    assert scene.group.phase is GroupPhase.GATHERING
    assert scene.last("a", Waiting).joined == 1


def test_spares_alone_wait_for_the_members_of_the_round_they_know_of():
    scene = Scene(1)
    scene.attend("s", claim=SPARE)
    scene.attend("t", claim=SPARE)
    scene.wait(9)
    assert scene.rounds("s") == []
    scene.attend("a", claim=claim_of(0, 0, nodes=1))
    scene.wait(100)
    assert scene.rounds("s") == []
    assert scene.group.round == 0


def test_spares_whose_round_never_comes_back_form_another():
    scene = Scene(1)
    scene.attend("s", claim=SPARE)
    scene.wait(10)
    assert scene.rounds("s") == [1]


def test_a_world_with_room_grows_after_it_was_taken_over():
    scene = Scene(1, 2)
    scene.attend("n")
    scene.attend("a", claim=claim_of(4, 0, nodes=1))
    scene.wait(10)
    assert scene.stops("a") == [4]


def test_a_member_that_comes_back_too_late_stops_and_joins_again():
    scene = Scene(1, 2)
    scene.attend("a", claim=claim_of(4, 0))
    scene.wait(10)
    scene.stopped("a")
    assert scene.rounds("a") == [5]
    scene.attend("b", claim=claim_of(4, 1))
    assert scene.stops("b") == [4]
    assert scene.was_killed("b")
    assert not scene.was_killed("a")
    scene.say("b", Stopped(4, scene.offer("b")))
    scene.wait(10)
    scene.stopped("a")
    assert scene.rounds("b") == [6]


def test_workers_of_a_lower_round_are_killed_and_those_of_a_failed_one_get_their_time():
    scene = Scene(3)
    scene.attend("a", claim=claim_of(3, 0, nodes=3))
    scene.attend("b", claim=claim_of(4, 1, nodes=3, failures=(worker_failure(1),)))
    scene.attend("c", claim=claim_of(4, 2, nodes=3))
    assert scene.stops("a") == [3]
    assert scene.was_killed("a")
    assert scene.stops("c") == [4]
    assert not scene.was_killed("c")


def test_a_round_that_not_everybody_heard_of_is_formed_anew_at_no_cost():
    scene = Scene(2)
    scene.attend("b", claim=claim_of(3, 1, state=STOPPED))
    scene.attend("a", claim=claim_of(4, 0))
    scene.wait(10)
    assert scene.stops("a") == [4]
    scene.stopped("a")
    assert scene.rounds("b") == [5]
    assert scene.assignment("b").restarts == 0


def test_a_round_that_was_being_stopped_is_formed_anew_at_no_cost():
    scene = Scene(2)
    scene.attend("a", claim=claim_of(4, 0, state=STOPPED))
    assert scene.rounds("a") == []
    scene.attend("b", claim=claim_of(4, 1))
    assert scene.stops("b") == [4]
    scene.stopped("b")
    assert scene.rounds("a") == scene.rounds("b") == [5]
    assert scene.assignment("b").restarts == 0


@pytest.mark.parametrize("states", [(ClaimState.RUNNING,) * 2, (ClaimState.RUNNING, STOPPED)])
def test_a_leader_that_was_lost_with_its_host_costs_one_restart_fenced_or_not(states):
    scene = Scene(2, 3)
    for rank, state in enumerate(states):
        scene.attend("ab"[rank], claim=claim_of(4, rank, nodes=3, state=state, term=5))
    scene.wait(10)
    scene.stopped(*"ab"[: states.count(ClaimState.RUNNING)])
    scene.wait(100)
    assert scene.assignment("a").restarts == scene.assignment("b").restarts == 1
    cause = scene.assignment("a").cause
    assert cause is not None
    assert cause.kind is FailureKind.NODE_LOST


def test_a_fence_that_has_fired_although_no_node_is_lost_costs_no_restart_and_is_explained():
    scene = Scene(2)
    for rank, name in enumerate("ab"):
        scene.attend(name, claim=claim_of(4, rank, state=STOPPED, term=5))
    assert scene.assignment("a").restarts == 0
    assert "killed while there was no leader" in scene.assignment("a").reason


def test_workers_that_ended_after_the_stop_are_no_failure():
    scene = Scene(2)
    late = worker_failure(0, after_stop=True)
    scene.attend("a", claim=claim_of(4, 0, state=STOPPED, failures=(late,)))
    scene.attend("b", claim=claim_of(4, 1, state=STOPPED))
    assert scene.assignment("a").restarts == 0


def test_who_is_there_is_stopped_at_once_also_while_members_are_missing():
    scene = Scene(1, 3)
    scene.attend("a", claim=claim_of(4, 0, nodes=3))
    scene.attend("b", claim=claim_of(4, 1, nodes=3, failures=(worker_failure(1),)))
    assert scene.stops("a") == scene.stops("b") == [4]
    scene.say("a", Stopped(4, scene.offer("a")))
    scene.say("b", Stopped(4, scene.offer("b")))
    assert scene.rounds("a") == [], "the third may still have workers"
    scene.attend("c", claim=claim_of(4, 2, nodes=3))
    assert scene.stops("c")[0] == 4
    scene.say("c", Stopped(4, scene.offer("c")))
    assert scene.rounds("a") == scene.rounds("c") == [5]
    assert scene.assignment("c").restarts == 1


def test_a_failure_reported_before_the_decision():
    scene = Scene(2)
    scene.attend("a", claim=claim_of(4, 0))
    scene.say("a", Failed(4, worker_failure(0)))
    assert scene.stops("a") == [4]
    scene.say("a", Stopped(4, scene.offer("a")))
    scene.attend("b", claim=claim_of(4, 1))
    assert scene.stops("b")[-1] == 4
    scene.stopped("b")
    assert scene.assignment("a").cause == worker_failure(0)


def test_success_reported_before_the_decision():
    scene = Scene(2)
    scene.attend("a", claim=claim_of(4, 0))
    scene.say("a", Done(4))
    scene.attend("b", claim=claim_of(4, 1, state=DONE))
    assert scene.last("a", Verdict).outcome is Outcome.SUCCEEDED


def test_whoever_was_in_a_lower_round_first_decides_nothing():
    scene = Scene(1, 2)
    old = worker_failure(0)
    scene.attend("s", claim=claim_of(3, 0, state=STOPPED, failures=(old,)))
    scene.wait(1)
    scene.attend("a", claim=claim_of(5, 0, restarts=1))
    scene.attend("b", claim=claim_of(5, 1, restarts=1))
    assert scene.group.phase is GroupPhase.RUNNING
    assert (scene.group.round, scene.group.restarts) == (5, 1)


def test_workers_of_a_lower_round_are_stopped():
    scene = Scene(2)
    scene.attend("old", claim=claim_of(3, 1))
    scene.attend("a", claim=claim_of(4, 0))
    assert scene.stops("old") == [3]
    scene.attend("b", claim=claim_of(4, 1))
    assert scene.group.phase is GroupPhase.RUNNING
    scene.say("a", Failed(4, worker_failure(0)))
    scene.stopped("a", "b")
    assert scene.rounds("a") == [], "the stale workers are not dead yet"
    scene.say("old", Stopped(3, scene.offer("old")))
    assert scene.rounds("a") == [5]


def test_a_round_has_a_number_that_no_member_has_seen():
    """A node ignores the start of a round that is not above its last."""
    scene = Scene(1, 2)
    scene.attend("s")
    scene.wait(30)
    assert scene.rounds("s") == [0]
    scene.attend("a", claim=claim_of(7, 0, nodes=1))
    assert scene.stops("a") == [7]
    scene.say("a", Stopped(7, scene.offer("a")))
    scene.wait(30)
    scene.stopped("s")
    assert scene.rounds("s") == [0, 8]
    assert scene.rounds("a") == [8]


def test_a_number_that_a_member_learned_while_it_was_away_is_not_used_again():
    scene = running(1, 2)
    scene.detach("b")
    scene.attend("b", claim=claim_of(7, 0, nodes=1, formed_by="another"))
    scene.detach("b")
    scene.wait(2)
    scene.stopped("a")
    assert scene.rounds("a") == [0, 8]


def test_claims_of_nodes_that_are_gone_again_still_teach_their_numbers():
    scene = Scene(1)
    scene.attend("a", claim=claim_of(4, 0, nodes=1, restarts=2, state=STOPPED))
    assert scene.rounds("a") == [5]
    scene = Scene(1, 2)
    scene.attend("a", claim=claim_of(4, 0, restarts=2))
    scene.detach("a")
    scene.wait(1)
    scene.attend("n")
    scene.wait(8)
    assert scene.rounds("n") == []
    scene.wait(1)
    assert scene.rounds("n") == [5]
    assert scene.assignment("n").restarts == 2


def test_the_latest_offer_of_a_node_is_used_after_the_takeover():
    scene = Scene(2)
    scene.attend("a", claim=claim_of(4, 0))
    scene.detach("a")
    scene.attend("a", claim=claim_of(4, 0, state=STOPPED))
    node = scene.group.roster.get("a")
    assert node is not None
    offer = node.offer
    scene.attend("b", claim=claim_of(4, 1, state=STOPPED))
    assert (scene.assignment("b").master_addr, scene.assignment("b").master_port) == (
        offer.address,
        offer.port,
    )


def test_who_leaves_during_the_takeover_stops_first():
    scene = Scene(1, 2)
    scene.attend("a", claim=claim_of(4, 0))
    scene.say("a", Leave("SIGTERM"))
    assert scene.closed == []
    scene.attend("b", claim=claim_of(4, 1))
    assert scene.stops("b") == [4]
    scene.stopped("b", "a")
    assert scene.closed == ["a"]
    assert scene.rounds("b") == [5]
    assert scene.assignment("b").restarts == 0


@pytest.mark.parametrize("says", ["with its claim", "after it"])
def test_who_was_asked_to_go_while_the_master_was_away_leaves_by_name(says):
    scene = Scene(1, 3)
    leaving = "SIGTERM" if says == "with its claim" else ""
    scene.attend("c", claim=claim_of(4, 2, nodes=3, state=STOPPED), leaving=leaving)
    if not leaving:
        scene.say("c", Leave("SIGTERM"))
    assert scene.closed == ["c"]
    reset = worker_failure(1, message="Connection reset by peer")
    scene.attend("b", claim=claim_of(4, 1, nodes=3, state=STOPPED, failures=(reset,)))
    scene.attend("a", claim=claim_of(4, 0, nodes=3))
    scene.stopped("a")
    assignment = scene.assignment("b")
    assert (assignment.round, assignment.restarts, assignment.cause) == (5, 0, None)
    assert assignment.reason == "node 2 (c) is leaving: SIGTERM"


def test_the_failure_of_who_left_counts_all_the_same():
    scene = Scene(1, 2)
    own = worker_failure(1, code=3)
    scene.attend("b", claim=claim_of(4, 1, state=STOPPED, failures=(own,)), leaving="SIGTERM")
    scene.attend("a", claim=claim_of(4, 0))
    scene.stopped("a")
    assert (scene.assignment("a").restarts, scene.assignment("a").cause) == (1, own)


@pytest.mark.parametrize("fails", [False, True])
def test_who_was_asked_to_go_while_its_link_was_cut_leaves_by_name(fails):
    scene = running(1, 2)
    scene.detach("b")
    failures = (worker_failure(1, code=3),) if fails else ()
    claim = claim_of(0, 1, state=STOPPED, failures=failures)
    scene.attend("b", claim=claim, leaving="SIGTERM")
    assert scene.closed[-1] == "b"
    scene.stopped("a")
    assert scene.assignment("a").restarts == fails
    if not fails:
        assert scene.assignment("a").reason == "node 1 (b) is leaving: SIGTERM"


def test_a_member_whose_place_another_process_has_is_not_waited_for():
    """As where the agent that hosts the master is killed and started again."""
    scene = Scene(3)
    scene.attend("a")
    scene.attend("b", claim=claim_of(4, 1, nodes=3, successor="c"))
    assert scene.stops("b") == []
    scene.attend("c", claim=claim_of(4, 2, nodes=3, successor="a"))
    assert scene.stops("b") == scene.stops("c") == [4]
    scene.stopped("b", "c")
    assert scene.ranks("a", "b", "c") == [0, 1, 2]
    assert scene.assignment("b").restarts == 0


def test_a_stranger_does_not_stand_for_a_member_that_is_not_back():
    scene = Scene(3)
    scene.attend("s")
    scene.attend("b", claim=claim_of(4, 1, nodes=3, successor="c"))
    scene.attend("c", claim=claim_of(4, 2, nodes=3, successor="a"))
    scene.wait(9)
    assert scene.stops("b") == []
    scene.attend("a", claim=claim_of(4, 0, nodes=3, successor="b"))
    assert scene.group.phase is GroupPhase.RUNNING
    assert scene.stops("b") == []


def test_members_that_do_not_come_back_are_named():
    scene = Scene(1, 4)
    scene.attend("a", claim=claim_of(4, 0, nodes=4, successor="b"))
    scene.attend("b", claim=claim_of(4, 1, nodes=4, successor="host-c/0"))
    scene.wait(10)
    scene.stopped("a", "b")
    assert scene.assignment("a").reason == (
        "node 2 (host-c) was lost: it did not reconnect to the new master with its workers of "
        "round 4 within 10 s, nor did 1 other(s)"
    )


# --- members that died with the master, and what the others say of it --------------------------

RESET = "ConnectionResetError: [Errno 104] Connection reset by peer"


def of_three(scene: Scene, name: str, *failures: Failure, state: ClaimState = STOPPED) -> None:
    """A member of the three of round 4 comes to the new master."""
    rank = "abc".index(name)
    claim = claim_of(4, rank, nodes=3, state=state, failures=failures, successor="bca"[rank])
    scene.attend(name, claim=claim)


@pytest.mark.parametrize("words", [RESET, ""])
def test_who_lost_a_peer_that_died_with_the_master_is_not_to_blame(words):
    scene = Scene(3, restarts=0)
    scene.attend("a", incarnation="again")
    of_three(scene, "b", worker_failure(1, message=words))
    of_three(scene, "c", worker_failure(2, message=words))
    assignment = scene.assignment("b")
    assert (assignment.round, assignment.restarts, assignment.cause) == (5, 0, None)
    assert assignment.reason == "node 0 (a) restarted without its workers of round 4"
    assert scene.ranks("a", "b", "c") == [0, 1, 2]


def test_a_failure_of_its_own_counts_whoever_died_with_the_master():
    scene = Scene(3)
    scene.attend("a", incarnation="again")
    of_three(scene, "b", worker_failure(1, message=RESET))
    own = worker_failure(2, code=-11)
    of_three(scene, "c", own)
    assignment = scene.assignment("b")
    assert (assignment.restarts, assignment.cause) == (1, own)


def test_a_node_that_stays_away_comes_before_who_lost_it():
    scene = Scene(2, 3)
    of_three(scene, "a", worker_failure(0, message=RESET))
    of_three(scene, "b", worker_failure(1, message=RESET))
    scene.wait(10)
    assignment = scene.assignment("a")
    assert assignment.restarts == 1
    assert assignment.cause is not None
    assert (assignment.cause.kind, assignment.cause.host) == (FailureKind.NODE_LOST, "c")


def test_a_failure_of_its_own_comes_before_a_node_that_stays_away():
    scene = Scene(2, 3)
    own = worker_failure(1, code=3, message="ValueError: no")
    of_three(scene, "a", worker_failure(0, message=RESET))
    of_three(scene, "b", own)
    scene.wait(10)
    assert (scene.assignment("a").restarts, scene.assignment("a").cause) == (1, own)


def test_who_came_back_anew_is_named_where_all_the_others_run():
    scene = Scene(3)
    scene.attend("a", incarnation="again")
    for name in "bc":
        of_three(scene, name, state=ClaimState.RUNNING)
    scene.stopped("b", "c")
    assignment = scene.assignment("b")
    assert assignment.reason == "node 0 (a) restarted without its workers of round 4"
    assert assignment.restarts == 0


def test_who_had_never_heard_of_the_round_is_named():
    scene = Scene(3)
    for name in "bc":
        of_three(scene, name, state=ClaimState.RUNNING)
    scene.attend("a", claim=claim_of(3, 0, nodes=3, state=STOPPED))
    scene.stopped("b", "c")
    reason = "node 0 (a) did not know round 4 when the master was lost"
    assert scene.assignment("b").reason == reason


@pytest.mark.parametrize("comes", ["before", "after"])
def test_who_is_started_again_takes_its_old_rank_where_anybody_knows_it(comes):
    """Of two, of which the host names would give the other ranks."""
    scene = Scene(1, 3)
    scene.attend("x", incarnation="again")
    if comes == "before":
        scene.attend("a", incarnation="again")
    scene.attend("k", claim=claim_of(4, 1, nodes=3, successor="a"))
    scene.wait(10)
    if comes == "after":
        scene.attend("a", incarnation="again")
    scene.stopped("k")
    assert scene.ranks("x", "k", "a") == [0, 1, 2]


# --- who has stopped is no spare -----------------------------------------------------------------


def test_members_of_a_round_that_is_being_stopped_are_no_spares():
    """Told that they are, they would forget their failures, and the next master never hear."""
    scene = Scene(3)
    own = worker_failure(1, code=3)
    scene.attend("n")
    of_three(scene, "b", own)
    of_three(scene, "a", state=ClaimState.RUNNING)
    of_three(scene, "c", state=ClaimState.RUNNING)
    assert scene.group.phase is GroupPhase.STOPPING
    assert scene.all_told("b", Waiting) == []
    assert scene.last("n", Waiting).spare
    scene.stopped("a", "c")
    assert scene.assignment("b").cause == own


def test_a_member_whose_stream_breaks_after_it_has_stopped_is_no_spare():
    scene = running(2)
    before = len(scene.all_told("b", Waiting))
    own = worker_failure(1)
    scene.fail("b", own)
    scene.stopped("b")
    scene.detach("b")
    claim = claim_of(0, 1, state=STOPPED, failures=(own,))
    scene.attend("b", claim=claim)
    assert len(scene.all_told("b", Waiting)) == before
    scene.stopped("a")
    assert scene.assignment("b").restarts == 1


def test_each_node_of_a_world_knows_the_next():
    scene = Scene(3)
    for name in "abc":
        scene.attend(name)
    assert [scene.assignment(name).successor for name in "abc"] == ["b", "c", "a"]


# --- two masters that knew nothing of each other have used one number ----------------------------


def test_of_two_worlds_with_one_number_the_complete_one_is_taken_over():
    scene = Scene(1, 3)
    scene.attend("a", claim=claim_of(4, 0, nodes=3, formed_by="one"))
    scene.attend("b", claim=claim_of(4, 1, nodes=3, formed_by="one"))
    scene.attend("x", claim=claim_of(4, 0, nodes=1, formed_by="other"))
    assert scene.group.phase is GroupPhase.RUNNING
    assert [scene.stops(name) for name in "abx"] == [[4], [4], []]


def test_of_two_incomplete_worlds_the_one_with_more_members_counts():
    scene = Scene(2, 3)
    scene.attend("a", claim=claim_of(4, 0, nodes=3, formed_by="one"))
    scene.attend("x", claim=claim_of(4, 0, nodes=3, formed_by="other"))
    scene.attend("y", claim=claim_of(4, 1, nodes=3, formed_by="other"))
    scene.wait(10)
    assert [scene.stops(name) for name in "axy"] == [[4], [4], [4]]
    scene.stopped("a", "x", "y")
    assert scene.ranks("x", "y", "a") == [0, 1, 2]


def test_success_in_two_worlds_with_one_number_is_no_success_of_one():
    scene = Scene(2)
    scene.attend("a", claim=claim_of(0, 0, state=DONE, formed_by="one"))
    scene.attend("x", claim=claim_of(0, 1, state=DONE, formed_by="other"))
    scene.wait(10)
    assert scene.group.verdict is None
    scene.stopped("a", "x")
    assert scene.rounds("a") == scene.rounds("x") == [1]


def test_a_failure_stops_its_own_world_only():
    scene = Scene(2, 3)
    scene.attend("x", claim=claim_of(4, 0, formed_by="other"))
    scene.attend("a", claim=claim_of(4, 0, formed_by="one", failures=(worker_failure(0),)))
    assert (scene.stops("a"), scene.stops("x")) == ([4], [])
    scene.attend("y", claim=claim_of(4, 1, formed_by="other"))
    assert (scene.stops("x"), scene.stops("y")) == ([], [])


@pytest.mark.parametrize("state", [ClaimState.RUNNING, STOPPED])
def test_a_node_that_got_its_round_from_another_master_cannot_be_in_ours(state):
    scene = Scene(2)
    scene.attend("a")
    scene.attend("b")
    scene.detach("b")
    scene.attend("b", claim=claim_of(0, 0, formed_by="other", state=state))
    assert scene.stops("a") == [0]
    scene.stopped("a", "b")
    assert scene.rounds("a") == [0, 1]
    assert scene.assignment("b").restarts == 0


def calls_of(nodes: int, *, takes_over: bool) -> int:
    """Return how many calls it takes to come to a running world."""
    scene = Scene(nodes)
    calls = 0

    def count(_frame: object, event: str, _arg: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        for number in range(nodes):
            claim = claim_of(4, number, nodes=nodes) if takes_over else None
            scene.attend(f"node-{number}", claim=claim)
    finally:
        sys.setprofile(None)
    assert scene.group.phase is GroupPhase.RUNNING
    return calls


@pytest.mark.parametrize("takes_over", [True, False])
def test_the_work_grows_as_the_number_of_nodes(takes_over):
    few, many = (calls_of(nodes, takes_over=takes_over) for nodes in (200, 800))
    assert many < 6 * few


def test_a_departure_is_no_cause_where_another_member_did_not_come_back():
    policy = PolicySpec(rules=("preempted=restart",))
    scene = Scene(1, 3, policy=policy, node_grace_s=60.0)
    scene.attend("a", claim=claim_of(4, 0, nodes=3))
    scene.attend("b", claim=claim_of(4, 1, nodes=3))
    scene.say("b", Leave("SIGTERM"))
    scene.say("b", Stopped(4, scene.offer("b")))
    scene.wait(10)
    assert scene.stops("a") == [4]
    scene.say("a", Stopped(4, scene.offer("a")))
    scene.wait(60)
    assert scene.rounds("a") == [5]
    assert (scene.assignment("a").restarts, scene.assignment("a").cause) == (0, None)


@pytest.mark.parametrize("state", [ClaimState.RUNNING, DONE])
@pytest.mark.parametrize("message", ["", "ValueError: no"])
def test_what_may_follow_from_a_member_that_leaves_costs_nothing(state, message):
    """An exception of the worker's own does not follow from that."""
    scene = Scene(1, 2)
    scene.attend("a", claim=claim_of(1, 0, state=state))
    scene.say("a", Leave("SIGTERM"))
    scene.say("a", Stopped(1, scene.offer("a")))
    failure = worker_failure(1, message=message)
    scene.attend("b", claim=claim_of(1, 1, failures=(failure,)))
    scene.stopped("b")
    assert scene.assignment("b").restarts == (1 if message else 0)
    assert scene.assignment("b").cause == (failure if message else None)


@pytest.mark.parametrize("term", [0, 2])
def test_kill_by_the_fence_that_ends_after_the_takeover_costs_no_restart(term: int) -> None:
    scene = Scene(2, term=term, known=(term // 2, 4 if term else -1))
    for rank, name in enumerate("ab"):
        scene.attend(name, claim=claim_of(4, rank, term=term // 2))
    assert scene.group.phase is GroupPhase.RUNNING
    scene.stopped("b")
    assert scene.stops("a") == [4]
    scene.stopped("a")
    assignment = scene.assignment("a")
    assert assignment.restarts == (0 if term else 1)
    why = " while there was no leader" if term else ""
    assert assignment.reason == f"node 1 (b) stopped its workers{why}"
