"""The rules of worlds: forming, ranks, growing, leaving, and the verdict. A fake clock, no I/O.

The common cases are told in ``transcripts``; here is what they leave out.
"""

import math

import pytest
from ft_run import exit_codes
from ft_run.rendezvous.protocol.messages import (
    Excluded,
    Heard,
    Leave,
    Loaded,
    Outcome,
    PolicySpec,
    Stop,
    Stopped,
    Verdict,
    Waiting,
)
from ft_run.tests.harness.scene import SPARE, Scene, claim_of, running, worker_failure
from msgspec.structs import replace

# --- the first world -------------------------------------------------------------------------


def test_below_the_minimum_there_is_no_last_call():
    scene = Scene(2, 3)
    scene.attend("a")
    scene.wait(599)
    assert not scene.rounds("a")
    scene.attend("b")
    scene.wait(1)
    assert scene.assignment("a").nodes == 2, "the join timeout ends the last call early"


def test_a_detached_node_is_waited_for_before_the_last_call_ends_without_a_busy_loop():
    scene = Scene(1, 3, node_grace_s=5.0)
    scene.attend("a")
    scene.attend("b")
    scene.wait(29)
    scene.detach("b")
    scene.wait(2)
    assert not scene.rounds("a")
    deadline = scene.group.deadline()
    assert deadline is not None
    assert deadline > scene.now
    scene.attend("b")
    assert scene.assignment("a").nodes == 2


@pytest.mark.parametrize("times", [{"last_call_timeout_s": 1.0}, {"join_timeout_s": 1.0}])
def test_a_new_leader_waits_for_workers_of_an_earlier_one_without_a_busy_loop(times):
    scene = Scene(1, 3, starts_from=20.0, **times)
    scene.attend("a")
    scene.wait(19)
    assert not scene.rounds("a")
    assert scene.group.deadline() == 20.0
    scene.wait(1)
    assert scene.rounds("a") == [0]


# --- ranks -----------------------------------------------------------------------------------


def test_offsets_and_roles_reach_the_nodes():
    scene = Scene(3)
    scene.attend("a", role="trainer", workers=2)
    scene.attend("b", role="reader", workers=1)
    scene.attend("c", role="trainer", workers=4)
    assignment = scene.assignment("c")
    assert (assignment.rank_offset, assignment.world_size) == (3, 7)
    assert (assignment.role_rank_offset, assignment.role_world_size) == (2, 6)


def test_rank_0_moves_only_with_its_node():
    scene = running(2, names="bc")
    scene.attend("a")
    scene.fail("c")
    scene.stopped("b", "c")
    assert scene.ranks("b", "c") == [0, 1]
    assert scene.rounds("a") == []
    scene.detach("b")
    scene.wait(1)
    scene.stopped("c")
    assert scene.ranks("a", "c") == [0, 1]
    assert scene.assignment("c").master_addr == "store-of-a"


def test_a_member_that_comes_back_as_another_process_takes_its_old_rank():
    scene = running(3, names="abc")
    scene.detach("b")
    scene.wait(1)
    scene.stopped("a", "c")
    scene.attend("b", incarnation="another")
    assert scene.ranks("a", "b", "c") == [0, 1, 2]
    assert scene.assignment("a").round == 1


def test_a_spare_forgets_the_rank_it_had():
    scene = running(1, 3, names="abc")
    scene.detach("a")
    scene.wait(1)
    scene.stopped("b", "c")
    assert scene.assignment("c").nodes == 2
    scene.attend("a")
    scene.wait(10)
    scene.stopped("b", "c")
    assert scene.ranks("b", "c", "a") == [1, 0, 2]


# --- spares and growth -----------------------------------------------------------------------


def test_the_world_grows_once_for_several_newcomers_and_it_costs_nothing():
    scene = running(1, 4, names="ab")
    scene.attend("c")
    scene.wait(9)
    scene.attend("d")
    assert scene.stops("a") == []
    scene.wait(1)
    assert scene.stops("a") == [0]
    scene.stopped("a", "b")
    assignment = scene.assignment("d")
    assert (assignment.nodes, assignment.round, assignment.restarts) == (4, 1, 0)
    assert assignment.cause is None
    assert "scaling up from 2 to 4" in assignment.reason
    scene.wait(1000)
    assert scene.rounds("a") == [0, 1]


@pytest.mark.parametrize(("delay_s", "of_the_master_s"), [(60.0, 0.0), (0.0, math.inf)])
def test_the_rescale_delay_of_the_job_holds_with_any_master(delay_s, of_the_master_s):
    scene = running(1, 3, names="a", rescale_delay_s=of_the_master_s, job_rescale_delay_s=delay_s)
    scene.attend("b")
    if delay_s:
        scene.wait(delay_s - 1)
        assert scene.stops("a") == []
        scene.wait(1)
    scene.stopped("a")
    assert scene.ranks("a", "b") == [0, 1]


def test_rescale_delay_starts_when_the_newcomer_has_imported_its_modules():
    scene = running(1, 3, names="a")
    scene.attend("b", is_loading=True)
    scene.wait(1000)
    assert scene.stops("a") == []
    scene.say("b", Loaded(scene.offer("b")))
    scene.wait(9)
    assert scene.stops("a") == []
    scene.wait(1)
    assert scene.stops("a") == [0]


def test_loading_newcomer_does_not_delay_a_restart_or_a_loaded_one():
    scene = running(1, 4, names="a")
    scene.attend("b", is_loading=True)
    scene.attend("c")
    scene.wait(10)
    assert scene.stops("a") == [0]
    scene.stopped("a")
    assert scene.assignment("b").nodes == 3


def test_without_a_rescale_delay_newcomers_wait_for_the_next_restart():
    scene = running(1, 3, names="a", rescale_delay_s=math.inf)
    scene.attend("b")
    scene.wait(1000)
    assert scene.rounds("b") == []
    scene.fail("a")
    scene.stopped("a")
    assert scene.assignment("b").nodes == 2


def test_the_world_does_not_grow_by_less_than_a_unit():
    scene = running(2, 6, names="ab", unit=2)
    scene.attend("c")
    scene.wait(100)
    assert scene.stops("a") == []
    scene.attend("d")
    scene.wait(10)
    assert scene.stops("a") == [0]


def test_the_world_does_not_grow_for_a_node_that_has_gone_meanwhile():
    scene = running(1, 2, names="a")
    scene.attend("b")
    scene.wait(9.5)
    scene.detach("b")
    scene.wait(100)
    assert scene.stops("a") == []
    scene.attend("b")
    scene.wait(9)
    scene.detach("b")
    scene.wait(0.5)
    scene.attend("b")
    scene.wait(10)
    assert scene.stops("a") == [0]


def test_the_world_does_not_grow_when_a_node_is_done():
    scene = running(1, 3, names="ab")
    scene.done("a")
    scene.attend("c")
    scene.wait(100)
    assert scene.stops("b") == []
    scene.done("b")
    assert scene.last("c", Verdict).outcome is Outcome.SUCCEEDED


def test_a_lost_node_that_comes_back_stops_its_workers_then_makes_the_world_grow():
    scene = running(1, 2, names="ab")
    scene.detach("b")
    scene.wait(1)
    scene.stopped("a")
    assert scene.assignment("a").nodes == 1
    scene.attend("b", claim=claim_of(0, 1))
    assert scene.stops("b") == [0]
    assert scene.was_killed("b")
    assert not scene.was_killed("a")
    scene.wait(100)
    assert scene.rounds("a") == [0, 1]
    scene.say("b", Stopped(0, scene.offer("b")))
    assert scene.last("b", Waiting).spare
    scene.wait(10)
    scene.stopped("a")
    assert scene.assignment("b").nodes == 2
    assert scene.assignment("b").master_addr == "store-of-a"


def test_stale_workers_are_killed_also_if_the_order_is_lost_with_its_stream():
    scene = running(1, 2, names="ab")
    scene.detach("b")
    scene.wait(1)
    scene.stopped("a")
    scene.attend("b", claim=claim_of(0, 1))
    scene.detach("b")
    scene.attend("b", claim=claim_of(0, 1))
    assert scene.stops("b") == [0, 0]
    assert scene.was_killed("b")


def test_a_stop_that_is_said_again_leaves_workers_their_time():
    scene = running(2, names="ab")
    scene.fail("a")
    scene.detach("b")
    scene.attend("b", claim=claim_of(0, 1))
    assert scene.stops("b") == [0, 0]
    assert not scene.was_killed("b")


# --- leaving ---------------------------------------------------------------------------------


def test_a_group_is_settled_when_the_others_run_without_who_leaves():
    scene = running(2, 3, names="abc")
    assert scene.is_settled()
    scene.say("a", Leave("SIGTERM"))
    assert not scene.is_settled()
    scene.stopped("a", "b")
    assert not scene.is_settled()
    scene.stopped("c")
    assert scene.rounds("b") == scene.rounds("c") == [0, 1]
    assert scene.is_settled()


def test_a_group_is_settled_when_too_few_are_left():
    scene = running(2, names="ab")
    scene.say("a", Leave("SIGTERM"))
    scene.stopped("a")
    assert not scene.is_settled()
    scene.stopped("b")
    assert scene.is_settled()


def test_a_group_is_settled_when_all_have_heard_the_verdict():
    scene = running(2, names="ab")
    scene.done("a", "b")
    assert not scene.is_settled()
    scene.say("a", Heard())
    assert not scene.is_settled()
    scene.say("b", Heard())
    assert scene.is_settled()


def test_a_spare_or_a_waiting_node_leaves_at_once():
    scene = running(1, names="ab")
    scene.say("b", Leave("SIGTERM"))
    assert scene.closed == ["b"]
    scene.detach("b")
    assert scene.stops("a") == []
    assert [node.spec.node_id for node in scene.group.roster] == ["a"]


def test_a_node_that_is_done_leaves_without_harm():
    scene = running(2, names="ab")
    scene.done("a")
    scene.say("a", Leave("SIGTERM"))
    assert scene.stops("b") == []
    scene.done("b")
    assert scene.last("b", Verdict).outcome is Outcome.SUCCEEDED


def test_a_leaver_that_is_lost_while_it_stops_is_no_failure():
    scene = running(2, names="abc")
    scene.say("b", Leave("SIGTERM"))
    scene.detach("b")
    scene.stopped("a")
    scene.wait(1)
    assert scene.assignment("a").restarts == 0


# --- the verdict -----------------------------------------------------------------------------


def test_the_master_ends_when_everybody_has_heard():
    scene = running(2, names="ab")
    scene.done("a", "b")
    scene.say("a", Heard())
    assert scene.finished == []
    scene.detach("a")
    scene.say("b", Heard())
    assert scene.finished == [scene.last("a", Verdict)], "those who have heard are not waited for"
    assert scene.group.deadline() is None
    assert scene.finished[0].exit_code == exit_codes.SUCCESS


def test_a_node_that_knows_of_a_job_that_is_over_hears_the_verdict():
    """One that was away for so long that the master has forgotten it, as a spare or a member."""
    scene = running(2, names="ab")
    scene.done("a", "b")
    scene.attend("z", claim=SPARE)
    assert scene.last("z", Verdict) == scene.last("a", Verdict)
    for name in "ab":
        scene.say(name, Heard())
    assert scene.finished == []
    scene.say("z", Heard())
    assert len(scene.finished) == 1


def test_a_node_that_the_master_has_forgotten_hears_the_verdict():
    scene = Scene(3, join_timeout_s=10)
    for name in "az":
        scene.attend(name)
    scene.detach("a")
    scene.wait(10)
    scene.attend("a")
    assert scene.last("a", Verdict).outcome is Outcome.RENDEZVOUS_FAILED


@pytest.mark.parametrize("job_id", ["job", "next"])
@pytest.mark.parametrize("node_id", ["z", "b"])
def test_a_newcomer_of_the_next_job_is_neither_refused_nor_told(node_id, job_id):
    """Also where it has the same id and options, and where its node is one that is slow to hear."""
    scene = running(2, names="ab")
    scene.done("a", "b")
    scene.attend("new", node_id=node_id, job=replace(scene.job, job_id=job_id))
    scene.wait(1)
    assert scene.told["new"] == []
    for name in "ab":
        scene.say(name, Heard())
    assert len(scene.finished) == 1  # it is not waited for


def test_an_excluded_node_can_be_in_the_next_job():
    scene = running(2, names="abc", policy=PolicySpec(rules=("exit:9=replace-node",)))
    scene.fail("b", worker_failure(1, code=9))
    scene.stopped("a", "b")
    scene.attend("b", incarnation="again")
    assert scene.last("b", Excluded)
    scene.done("a", "c")
    scene.attend("new", node_id="b")
    assert scene.told["new"] == []


def test_a_node_that_never_hears_is_given_up():
    scene = running(2, names="ab")
    scene.done("a", "b")
    scene.say("a", Heard())
    scene.wait(4.9)
    assert scene.finished == []
    scene.wait(0.1)
    assert len(scene.finished) == 1


def test_a_node_that_is_lost_after_the_verdict_is_not_waited_for():
    scene = running(2, names="ab")
    scene.done("a", "b")
    scene.say("a", Heard())
    scene.detach("b")
    scene.wait(1)
    assert len(scene.finished) == 1


def test_stops_are_messages_to_members_only():
    scene = running(1, names="ab")
    scene.fail("a")
    assert scene.all_told("b", Stop) == []
