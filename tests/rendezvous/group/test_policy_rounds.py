"""The failure policy in the life of rounds: actions, window, delays, exclusion, rank 0."""

from typing import Any

import pytest
from ft_run import exit_codes
from ft_run.launcher.workers.smaller_parts import NAME, propose
from ft_run.protos import rendezvous_pb2 as pb
from ft_run.rendezvous.group.events import Hung, Received
from ft_run.rendezvous.group.group import GroupPhase
from ft_run.rendezvous.protocol.carried import Carried, CarriedValue
from ft_run.rendezvous.protocol.claim import ClaimState, NodeFailures, Past, PastProgress, Progress
from ft_run.rendezvous.protocol.failure import Failure, FailureKind, hung
from ft_run.rendezvous.protocol.messages import (
    Attend,
    Challenge,
    Excluded,
    Failed,
    JobSpec,
    Leave,
    NodeSpec,
    Outcome,
    PolicySpec,
    Refused,
    Start,
    Stop,
    Stopped,
    Verdict,
    Waiting,
)
from ft_run.rendezvous.transport.codec import encode_master
from ft_run.tests.harness.scene import SPARE, Scene, claim_of, running, worker_failure
from msgspec.structs import replace


def rules(*texts: str, **more: Any) -> PolicySpec:
    return PolicySpec(rules=texts, **more)


def fail_and_stop(
    scene: Scene, name: str, failure: Failure | None = None, others: str = ""
) -> None:
    scene.fail(name, failure)
    scene.stopped(name, *others)


# --- actions ---------------------------------------------------------------------------------


def test_a_restart_says_which_rule_decided_unless_it_was_the_default() -> None:
    scene = running(2, policy=rules("exit:3=restart"))
    fail_and_stop(scene, "a", worker_failure(0, code=3), "b")
    assert scene.assignment("b").decision == "rule exit:3=restart"
    fail_and_stop(scene, "a", worker_failure(0, code=4), "b")
    assignment = scene.assignment("b")
    assert (assignment.decision, assignment.is_free, assignment.restarts) == ("", False, 2)


def test_a_free_restart_is_not_counted_but_spaced() -> None:
    scene = running(1, names="a", restarts=0, policy=rules("exit:75=restart-free"))
    for delay in (0, 1, 2):
        fail_and_stop(scene, "a", worker_failure(0, code=75))
        if delay:
            assert scene.group.phase is GroupPhase.GATHERING
            assert scene.last("a", Waiting).backoff_s == delay
            scene.wait(delay)
        assignment = scene.assignment("a")
        assert (assignment.restarts, assignment.is_free) == (0, True)
    assert scene.rounds("a") == [0, 1, 2, 3]
    fail_and_stop(scene, "a", worker_failure(0, code=1))
    assert scene.last("a", Verdict).exit_code == exit_codes.WORKERS_FAILED


def test_corrupt_state_ends_the_job_the_second_time_on_one_node() -> None:
    scene = running(2, restarts=9)
    corrupt = worker_failure(0, message="CorruptStateError: net.weight of rank 0 has changed")
    fail_and_stop(scene, "a", corrupt, "b")
    fail_and_stop(scene, "b", replace(corrupt, rank=1), "a")
    fail_and_stop(scene, "a", worker_failure(0, code=4), "b")
    assert scene.assignment("a").restarts == 3
    fail_and_stop(scene, "a", corrupt, "b")
    verdict = scene.last("a", Verdict)
    assert verdict.outcome is Outcome.POLICY_ENDED
    assert "default rule corrupt twice on one node=fail" in verdict.sentence


def test_smaller_parts_cost_no_restart_no_delay_and_no_blame() -> None:
    policy = rules("device-oom=shrink", max_node_failures=1, max_no_progress=1)
    scene = running(1, names="ab", restarts=0, policy=policy)
    carried: Carried = ()
    for used, after in ((8, 4), (4, 2), (2, 1)):
        scene.fail("a", worker_failure(0, proposal=propose(used, carried)))
        scene.stopped("a", progress=Progress())
        assignment = scene.assignment("a")
        carried = (CarriedValue(NAME, after, assignment.round, used),)
        assert assignment.past == Past(carried=carried)
        assert assignment.decision == f"rule device-oom=shrink; micro_batch {used} -> {after}"
        assert (assignment.restarts, assignment.is_free) == (0, True)
    scene.fail("a", worker_failure(0, proposal=propose(1, carried)))
    scene.stopped("a")
    assert scene.last("a", Verdict).outcome is Outcome.POLICY_ENDED


def test_a_restart_says_why_smaller_parts_are_no_answer() -> None:
    scene = running(1, names="ab", policy=rules("device-oom=shrink"))
    fail_and_stop(scene, "a", worker_failure(0, message="OutOfMemoryError"))
    assert scene.assignment("a").decision.endswith(
        "device-oom=shrink does not apply: memory ran out outside the parts of ElasticBatches"
    )


def test_a_job_begins_with_the_micro_batch_of_rank_0() -> None:
    scene = Scene(2, policy=rules("device-oom=shrink"))
    scene.carried = {"a": (CarriedValue(NAME, 8),), "b": (CarriedValue(NAME, 2),)}
    for name in "ab":
        scene.attend(name)
    for name in "ab":
        assert scene.assignment(name).past == Past(carried=scene.carried["a"])
    scene.fail("a", worker_failure(0, proposal=propose(8, scene.carried["a"])))
    scene.stopped("a", "b")
    smaller = (CarriedValue(NAME, 4, 1, 8),)
    assert scene.assignment("b").past == Past(carried=smaller)
    fail_and_stop(scene, "a", worker_failure(0, code=4), "b")
    assert scene.assignment("b").carried == smaller  # another failure changes nothing


def test_values_of_a_file_are_only_used_on_rank_0_and_at_the_start() -> None:
    scene = running(2, names="ab")
    scene.carried = {"a": (CarriedValue(NAME, 8),), "b": (CarriedValue("other", 2),)}
    fail_and_stop(scene, "a", worker_failure(0, code=4), "b")
    assert scene.assignment("b").carried == ()


def test_newer_values_that_any_node_offers_are_used_in_the_next_round() -> None:
    scene = running(2, names="ab")
    scene.carried = {"a": (CarriedValue("x", 8, 1),), "b": (CarriedValue("x", 2, 2),)}
    fail_and_stop(scene, "a", worker_failure(0, code=4), "b")
    assert scene.assignment("a").carried == scene.carried["b"]
    scene.carried = {"a": (CarriedValue("x", 9, 2),), "b": (CarriedValue("y", 1, 1),)}
    fail_and_stop(scene, "a", worker_failure(0, code=4), "b")
    values = (CarriedValue("x", 2, 2), CarriedValue("y", 1, 1))
    assert scene.assignment("a").carried == values


def test_a_new_master_knows_how_small_parts_are() -> None:
    scene = Scene(2, policy=rules("device-oom=shrink"))
    # Node b has not yet heard of the last round.
    newer, older = (Past(carried=(CarriedValue(NAME, 8 >> n, n),)) for n in (2, 1))
    scene.attend("a", claim=claim_of(2, 0, past=newer, state=ClaimState.STOPPED))
    scene.attend("b", claim=claim_of(1, 1, past=older, state=ClaimState.STOPPED))
    scene.wait(60)
    assert scene.assignment("b").past == newer


def test_failures_of_a_trial_are_not_counted() -> None:
    policy = rules("exit:1=fail", max_node_failures=1, max_no_progress=1)
    scene = running(1, names="ab", restarts=0, policy=policy)
    for _ in range(12):
        scene.fail("a", worker_failure(0, trial="num_workers=4"))
        scene.stopped("a", progress=Progress())
        assignment = scene.assignment("a")
        assert assignment.decision == "auto-tune was trying num_workers=4"
        assert assignment.past is None
        assert (assignment.restarts, assignment.is_free) == (0, True)
    scene.fail("a", worker_failure(0, trial="num_workers=4"))
    scene.stopped("a")
    assert scene.last("a", Verdict).outcome is Outcome.POLICY_ENDED


def test_replace_node_excludes_the_node_of_the_root_cause_and_a_spare_comes() -> None:
    scene = running(2, names="abc", policy=rules("oom=replace-node"))
    oom = worker_failure(1, code=-9, out_of_memory=True)
    scene.fail("a", worker_failure(0, message="Connection reset by peer"))
    scene.fail("b", oom)
    scene.stopped("a", "b")
    told = scene.last("b", Excluded)
    assert "node 'b' is excluded from this job and may not rejoin it: rank 1" in told.sentence
    assert "OOM killer" in told.sentence
    assert "b" in scene.closed
    assert scene.ranks("a", "c") == [0, 1]
    assert scene.assignment("a").restarts == 1
    assert scene.assignment("a").decision == "rule oom=replace-node; node b is excluded"
    assert scene.assignment("a").past == Past(excluded=("b",))


def test_an_excluded_node_may_not_rejoin_under_any_incarnation() -> None:
    scene = running(2, names="abc", policy=rules("exit:1=replace-node"))
    fail_and_stop(scene, "b", None, "a")
    for name, incarnation in (("b1", "b"), ("b2", "other")):
        scene.attend(name, node_id="b", incarnation=incarnation)
        assert scene.last(name, Excluded)
        assert name in scene.closed
    assert scene.group.roster.get("b") is None
    assert not scene.all_told("b2", Refused)


def test_an_excluded_node_does_not_contest_the_rank_of_its_replacement() -> None:
    scene = Scene(2, policy=rules("exit:1=replace-node"))
    for rank, name in enumerate("ab"):
        scene.attend(name, wanted_rank=rank)
    fail_and_stop(scene, "b", None, "a")
    scene.attend("c", wanted_rank=1)
    assert scene.ranks("a", "c") == [0, 1]
    scene.attend("b2", node_id="b", wanted_rank=1)
    assert scene.last("b2", Excluded)
    assert not scene.all_told("c", Challenge)


def test_a_process_that_waits_for_the_identity_of_a_node_is_excluded_with_it() -> None:
    scene = running(2, names="abc", policy=rules("exit:1=replace-node"))
    scene.attend("b2", node_id="b", incarnation="other")
    assert scene.last("b", Challenge)
    fail_and_stop(scene, "b", None, "a")
    scene.wait(0)
    assert scene.last("b2", Excluded)
    assert scene.group.roster.get("b") is None


def test_without_a_spare_a_replacement_is_waited_for() -> None:
    scene = running(2, policy=rules("exit:1=replace-node"), join_timeout_s=100)
    fail_and_stop(scene, "b", None, "a")
    assert scene.group.phase is GroupPhase.GATHERING
    assert scene.last("a", Waiting).missing == ()
    scene.wait(99)
    scene.attend("new")
    assert scene.ranks("a", "new") == [0, 1]


def test_a_lost_node_can_be_replaced_for_good() -> None:
    scene = running(2, names="abc", policy=rules("node-lost=replace-node"))
    scene.detach("b")
    scene.wait(1)
    scene.stopped("a")
    assert scene.ranks("a", "c") == [0, 1]
    scene.attend("b", incarnation="again")
    assert scene.last("b", Excluded)


def test_replacing_a_node_costs_a_restart() -> None:
    scene = running(2, names="abc", restarts=0, policy=rules("exit:1=replace-node"))
    fail_and_stop(scene, "b", None, "a")
    assert scene.last("c", Verdict).exit_code == exit_codes.WORKERS_FAILED
    assert not scene.all_told("b", Excluded)


def test_a_preempted_node_costs_nothing_unless_a_rule_says_so() -> None:
    for policy, restarts in ((None, 0), (rules("preempted=restart"), 1)):
        scene = running(2, names="abc", policy=policy)
        scene.say("b", Leave("SIGTERM"))
        scene.stopped("a", "b")
        assignment = scene.assignment("c")
        assert assignment.restarts == restarts
        assert (assignment.cause is not None) == bool(restarts)
        assert assignment.reason == "node 1 (b) is leaving: SIGTERM"
    scene = running(2, names="abc", policy=rules("preempted=fail"))
    scene.say("b", Leave("SIGTERM"))
    scene.stopped("a", "b")
    verdict = scene.last("a", Verdict)
    assert verdict.cause is not None
    assert verdict.cause.kind is FailureKind.PREEMPTED
    assert "the failure policy ended the job: node 1 (b) is leaving: SIGTERM" in verdict.sentence


def test_a_failure_while_a_node_leaves_costs_nothing() -> None:
    scene = running(2, names="abc")
    scene.say("b", Leave("SIGTERM"))
    scene.fail("a", worker_failure(0, code=7))
    scene.stopped("a", "b")
    assert (scene.assignment("c").restarts, scene.assignment("c").cause) == (0, None)


def test_a_usage_error_twice_running_ends_the_job_though_restarts_are_left() -> None:
    scene = running(2, restarts=9)
    fail_and_stop(scene, "b", worker_failure(1, code=2), "a")  # after a minute, no typo
    for pid in (2, 3):
        assert scene.group.verdict is None
        scene.wait(9)
        fail_and_stop(scene, "b", worker_failure(1, code=2, pid=pid), "a")
    verdict = scene.last("a", Verdict)
    assert verdict.outcome is Outcome.POLICY_ENDED
    assert "(default rule repeated usage or import error=fail; 2 of 9 restarts" in verdict.sentence


def test_a_round_that_ran_well_lies_between_two_usage_errors() -> None:
    scene = running(2, 3, names="ab", restarts=9)
    fail_and_stop(scene, "b", worker_failure(1, code=2), "a")
    scene.wait(3)
    fail_and_stop(scene, "b", worker_failure(1, code=2, pid=2), "a")
    if scene.group.verdict is None:
        scene.attend("c")
        scene.wait(3600)
        scene.stopped("a", "b")  # the world grows
        scene.wait(3)
        fail_and_stop(scene, "b", worker_failure(1, code=2, pid=3), "ac")
    assert scene.group.verdict is None


# --- the budget ------------------------------------------------------------------------------


def test_restarts_outside_the_window_do_not_count() -> None:
    scene = running(1, names="a", restarts=1, policy=PolicySpec(restart_window_s=100.0))
    fail_and_stop(scene, "a")
    for total in (2, 3):
        scene.wait(100)
        fail_and_stop(scene, "a")
        assignment = scene.assignment("a")
        assert (assignment.restarts, assignment.restarts_in_window) == (total, 1)
        assert assignment.past == Past((0,), failures=(NodeFailures("a", (0,)),))
    scene.wait(99)
    fail_and_stop(scene, "a")
    verdict = scene.last("a", Verdict)
    assert verdict.exit_code == exit_codes.WORKERS_FAILED
    assert "(1 of 1 restarts used within 100 s)" in verdict.sentence
    assert verdict.restarts == 3


def test_restarts_are_spaced_and_the_wait_for_nodes_begins_after_that() -> None:
    policy = PolicySpec(backoff_first_s=5.0, backoff_max_s=60.0)
    scene = running(2, policy=policy, join_timeout_s=20)
    fail_and_stop(scene, "a", None, "b")
    assert scene.rounds("a") == [0]
    assert scene.last("b", Waiting).backoff_s == 5
    scene.wait(4.9)
    assert scene.rounds("a") == [0]
    scene.detach("b")
    scene.wait(20)
    assert scene.group.verdict is None
    scene.wait(0.1)
    assert scene.last("a", Verdict).outcome is Outcome.RENDEZVOUS_FAILED


def test_a_regroup_is_not_delayed() -> None:
    policy = PolicySpec(backoff_first_s=5.0, backoff_max_s=60.0)
    scene = running(2, names="abc", policy=policy)
    scene.say("b", Leave("SIGTERM"))
    scene.stopped("a", "b")
    assert scene.rounds("c") == [1]


# --- nodes that fail often -------------------------------------------------------------------


def test_a_node_that_fails_often_is_excluded_where_a_spare_can_stand_in() -> None:
    scene = running(2, names="abc", restarts=9)
    for _ in range(2):
        fail_and_stop(scene, "b", worker_failure(1, code=7), "a")
        assert scene.rounds("c") == []
    fail_and_stop(scene, "b", worker_failure(1, code=7), "a")
    assert "it was the root cause of 3 restarts, most recently: rank 1" in (
        scene.last("b", Excluded).sentence
    )
    assert scene.ranks("a", "c") == [0, 1]
    assert (
        scene.assignment("a").decision
        == "node b is excluded after 3 failures (--max-node-failures 3)"
    )


def test_no_node_is_excluded_for_failing_often_where_the_world_would_shrink() -> None:
    scene = running(1, 2, names="ab", restarts=9)
    for _ in range(5):
        fail_and_stop(scene, "b", worker_failure(1, code=7), "a")
    assert scene.group.restarts == 5
    assert not scene.all_told("b", Excluded)


def test_a_node_that_only_lost_its_peer_is_not_blamed_for_it() -> None:
    scene = running(2, names="abc", restarts=9)
    for _ in range(5):
        reset = worker_failure(1, message="RuntimeError: Connection reset by peer")
        fail_and_stop(scene, "b", reset, "a")
    assert scene.group.restarts == 5
    assert not scene.all_told("b", Excluded)


def test_failures_of_nodes_are_counted_within_the_window_and_never_means_never() -> None:
    for policy, restarts in (
        (PolicySpec(restart_window_s=100.0, max_node_failures=2), 1),
        (PolicySpec(max_node_failures=0), 9),
    ):
        scene = running(2, names="abc", restarts=restarts, policy=policy)
        for _ in range(4):
            fail_and_stop(scene, "b", worker_failure(1, code=7), "a")
            scene.wait(100)
        assert not scene.all_told("b", Excluded)


# --- rank 0 ----------------------------------------------------------------------------------

RANK0 = PolicySpec(rank0_decides=True)


def test_a_peer_that_misses_rank_0_changes_nothing_though_it_is_heard_first() -> None:
    scene = running(3, names="abc", policy=RANK0)
    scene.done("c")
    assert scene.group.verdict is None
    scene.fail("b", worker_failure(1, message="Connection reset by peer"))
    scene.done("a")
    assert scene.last("c", Verdict).outcome is Outcome.SUCCEEDED


def test_a_node_that_is_lost_after_the_success_of_rank_0_changes_nothing() -> None:
    scene = running(2, policy=RANK0)
    scene.done("a")
    scene.detach("b")
    scene.wait(5)
    assert [verdict.outcome for verdict in scene.finished] == [Outcome.SUCCEEDED]


def test_a_later_master_learns_that_rank_0_has_succeeded() -> None:
    scene = Scene(2, policy=RANK0)
    failures = (worker_failure(1, message="Connection reset by peer"),)
    scene.attend("b", claim=claim_of(4, 1, failures=failures))
    scene.attend("a", claim=claim_of(4, 0, state=ClaimState.DONE))
    assert scene.last("b", Verdict).outcome is Outcome.SUCCEEDED


# --- later masters, and nodes that differ ----------------------------------------------------


def test_a_later_master_knows_what_counts_within_the_window() -> None:
    scene = Scene(2, restarts=2, policy=PolicySpec(restart_window_s=100.0))
    past = Past(restart_ages_s=(80, 10), since_s=15)
    for rank, name in enumerate("ab"):
        scene.attend(name, claim=claim_of(5, rank, restarts=7, past=past))
    assert scene.group.phase is GroupPhase.RUNNING
    assert scene.group.state.restarts_in_budget == 2
    scene.wait(5)  # the older one is 100 s old now
    scene.say("a", Failed(5, worker_failure(0)))
    scene.stopped("a", "b")
    assert (scene.assignment("a").restarts, scene.assignment("a").restarts_in_window) == (8, 2)
    assert scene.assignment("a").past == Past((30, 0), failures=(NodeFailures("a", (0,)),))


def test_a_later_master_knows_who_is_excluded_whoever_comes_first() -> None:
    scene = Scene(2)
    scene.attend("x")
    past = Past(excluded=("x",))
    for rank, name in enumerate("ab"):
        scene.attend(name, claim=claim_of(5, rank, past=past))
    assert "excluded by an earlier master of this job" in scene.last("x", Excluded).sentence
    assert scene.group.roster.get("x") is None
    assert scene.group.phase is GroupPhase.RUNNING
    assert scene.rounds("x") == []


@pytest.mark.parametrize("known", [(0, -1), (1, 5)])
def test_a_later_master_knows_which_nodes_have_failed(known: tuple[int, int]) -> None:
    past = Past(failures=(NodeFailures("b", (40, 5)), NodeFailures("a", (7,))), since_s=50)
    for window_s, is_excluded in ((0.0, True), (100.0, True), (90.0, False)):
        policy = PolicySpec(restart_window_s=window_s)
        scene = Scene(2, restarts=9, policy=policy, known=known)  # other hosts know the round, too
        for rank, name in enumerate("ab"):
            scene.attend(name, claim=claim_of(5, rank, restarts=3, past=past, term=known[0]))
        scene.attend("s", claim=SPARE)
        scene.say("b", Failed(5, worker_failure(1, code=7)))
        scene.stopped("a", "b")
        assert bool(scene.all_told("b", Excluded)) is is_excluded, window_s
        assert bool(scene.rounds("s")) is is_excluded
        assert scene.group.roster.get("a") is not None


def test_failures_of_nodes_are_told_the_last_first_and_no_more_than_it_takes() -> None:
    scene = running(2, restarts=9)
    for name in "abbbb":  # without a spare nobody is excluded
        scene.wait(10)
        fail_and_stop(scene, name, worker_failure("ab".index(name), code=7), "ba"["ab".index(name)])
    told = scene.assignment("a").past
    assert told == Past(failures=(NodeFailures("b", (20, 10, 0)), NodeFailures("a", (40,))))
    scene.say("b", Leave("SIGTERM"))
    scene.stopped("a", "b")
    past, later = Past(failures=told.failures), scene.group.round + 1
    scene.attend("c", claim=claim_of(later, 0, state=ClaimState.STOPPED, past=past))
    assert scene.group.state.aftermath.ledger.failures(9, 0.0, scene.now)[0] == NodeFailures(
        "b", (30, 20, 10, 0)
    )


def test_where_failures_of_nodes_never_count_none_are_told() -> None:
    scene = running(2, policy=PolicySpec(max_node_failures=0))
    fail_and_stop(scene, "a", None, "b")
    assert scene.assignment("a").past is None


def test_a_job_without_a_past_tells_none() -> None:
    scene = running(2, names="abc")
    assert scene.assignment("a").past is None
    scene.say("b", Leave("SIGTERM"))
    scene.stopped("a", "b")
    assert scene.assignment("a").past is None


def test_a_later_master_can_replace_a_node_that_does_not_come_back_to_it() -> None:
    scene = Scene(2, policy=rules("node-lost=replace-node"))
    scene.attend("a", claim=claim_of(5, 0, successor="b"))
    scene.attend("s", claim=SPARE)
    scene.wait(10)
    scene.stopped("a")
    assert scene.ranks("a", "s") == [0, 1]
    assert scene.assignment("s").past == Past(excluded=("b",))
    scene.attend("b", claim=claim_of(5, 1))
    assert scene.last("b", Excluded)


def test_a_later_master_replaces_who_is_away_and_not_who_was_started_again() -> None:
    scene = Scene(3, 4, policy=rules("node-lost=replace-node"))
    scene.attend("a", claim=claim_of(5, 0, nodes=4, successor="b"))
    scene.attend("c", claim=claim_of(5, 2, nodes=4, successor="d"))
    scene.attend("b", incarnation="again")
    scene.wait(10)
    scene.stopped("a", "c")
    assignment = scene.assignment("b")
    assert assignment.past == Past(excluded=("d",))
    assert assignment.reason == (
        "node 3 (d) was lost: it did not reconnect to the new master with its workers of "
        "round 5 within 10 s"
    )


def refused(job: JobSpec) -> str:
    scene = running(1, names="a", policy=rules("exit:3=fail"))
    scene.attend("b", job=job)
    return scene.last("b", Refused).sentence


def test_another_policy_on_one_node_is_refused_by_name() -> None:
    assert refused(JobSpec("job", 1, 1, 1, 3)) == (
        "the node's options differ: the list of --on-failure rules is empty (this job: "
        "'exit:3=fail')."
    )
    other = rules("exit:3=fail", restart_window_s=60.0, max_node_failures=5, rank0_decides=True)
    assert refused(JobSpec("job", 1, 1, 1, 3, other)) == (
        "the node's options differ: --restart-window in seconds is 60 (this job: 0), "
        "--max-node-failures is 5 (this job: 3), --success-policy rank0 is set (this job: not set)."
    )


def test_a_rule_that_makes_no_sense_here_is_refused() -> None:
    scene = Scene(1)
    spec = NodeSpec("a", "a", "a", "address", "r", 1, None)
    job = JobSpec("job", 1, 1, 1, 3, rules("future:7=fail"))
    scene.links["a"], scene._names[1] = 1, "a"
    scene.handle(Received(1, Attend(1, "1", job, spec, scene.offer("a"), None)))
    assert "invalid rule of --on-failure" in scene.last("a", Refused).sentence


@pytest.mark.parametrize(
    ("job_id", "words"),
    [("other", "is not the job of this master ('job')"), ("job", "options differ")],
)
def test_the_rules_of_who_does_not_belong_to_the_job_are_not_read(job_id: str, words: str) -> None:
    scene = running(1, names="a")
    job = JobSpec(job_id, 1, 1, 1, 3, rules("future:7=fail"))
    scene.attend("b", job=job)
    assert words in scene.last("b", Refused).sentence


# --- root causes -----------------------------------------------------------------------------


def lost_in_the_end(scene: Scene) -> int | None:
    """The rank of the node whose loss ended the job."""
    cause = scene.last("a", Verdict).cause
    assert cause is not None
    assert cause.kind is FailureKind.NODE_LOST
    return cause.node_rank


def test_a_node_that_died_first_is_the_cause_though_its_peers_say_nothing_of_why() -> None:
    """A killed agent: its stream breaks at once, its loss is certain a second later."""
    scene = running(3, names="abc", restarts=0)
    scene.detach("b")
    scene.fail("a", worker_failure(0))
    scene.fail("c", worker_failure(2))
    scene.stopped("a", "c")
    scene.wait(1)
    assert lost_in_the_end(scene) == 1


def test_a_node_whose_stream_broke_first_is_the_cause_of_errors_that_name_no_peer() -> None:
    scene = running(2, names="ab", restarts=0)
    scene.detach("b")
    scene.fail("a", worker_failure(0, message="ValueError: no batch"))
    scene.stopped("a")
    scene.wait(1)
    assert lost_in_the_end(scene) == 1


def test_a_cut_node_is_the_cause_though_its_peers_fail_long_before_it_is_noticed() -> None:
    scene = running(2, names="ab", restarts=0)
    scene.fail("a", worker_failure(0))
    scene.stopped("a")
    scene.wait(4)
    scene.detach("b")
    scene.wait(1)
    assert lost_in_the_end(scene) == 1


def test_a_node_that_came_back_is_no_suspect() -> None:
    scene = running(2, names="ab", restarts=0)
    scene.detach("b")
    scene.attend("b", claim=claim_of(0, 1))
    own = worker_failure(0, message="ValueError: no")
    scene.fail("a", own)
    scene.detach("b")
    scene.stopped("a")
    scene.wait(1)
    assert scene.last("a", Verdict).cause == own


def test_workers_are_let_settle_where_the_cause_may_be_another() -> None:
    for failure, lets_settle in (
        (worker_failure(0), True),
        (worker_failure(0, message="Connection reset by peer"), True),
        (worker_failure(0, code=-9), False),
        (worker_failure(0, code=3), False),
        (worker_failure(0, message="ValueError: no"), False),
    ):
        scene = running(2)
        scene.fail("a", failure)
        assert scene.last("b", Stop).lets_settle == lets_settle, failure


def test_the_cause_is_found_however_many_peers_are_heard_before_it() -> None:
    names = [f"n{i:03}" for i in range(300)]
    scene = Scene(300, restarts=0)
    for name in names:
        scene.attend(name)
    for name in names[:-1]:
        rank = scene.assignment(name).node_rank
        reset = worker_failure(rank, message="Connection reset by peer")
        scene.say(name, Failed(0, reset))
    own = worker_failure(299, message="ValueError: no")
    scene.say(names[-1], Failed(0, own))
    scene.stopped(*names)
    verdict = scene.last("n000", Verdict)
    assert verdict.cause == own
    assert verdict.failure_count == 300
    assert scene.all_told("n000", Start)


def test_a_job_without_rules_pays_nothing_on_the_wire() -> None:
    scene = running(2)
    fail_and_stop(scene, "a", worker_failure(0, code=-9), "b")
    ours = {"decision", "is_free", "restarts_in_window", "lets_settle", "backoff_s"}
    assert scene.assignment("a").past == Past(failures=(NodeFailures("a", (0,)),))  # some bytes
    for message in scene.told["a"]:
        told = pb.MasterMessage.FromString(encode_master(message))
        (body,) = [value for _, value in told.ListFields()]
        parts = [body, body.assignment] if isinstance(body, pb.Start) else [body]
        said = {field.name for part in parts for field, _ in part.ListFields()}
        assert not said & ours, message


# --- hangs -----------------------------------------------------------------------------------


def hang(scene: Scene, failure: Failure, *, is_alone: bool = False, number: int = 0) -> None:
    scene.handle(Hung(number, failure, "rank 1 …", is_alone))


def of_node(rank: int | None) -> Failure:
    return replace(hung(rank, "h", "", "rank 1 on node 1 (h) hangs"), rank=1)


@pytest.mark.parametrize("is_alone", [False, True])
def test_a_hang_stops_the_round_and_costs_a_restart(is_alone: bool) -> None:
    scene = running(2)
    hang(scene, of_node(1), is_alone=is_alone)
    stop = scene.last("a", Stop)
    assert (stop.reason, stop.is_hung, stop.stacks) == (
        "rank 1 on node 1 (h) hangs", not is_alone, "rank 1 …",
    )  # fmt: skip
    assert scene.group.last_stop == "rank 1 on node 1 (h) hangs"
    scene.stopped("a", "b")
    place = scene.assignment("b")
    assert (place.round, place.restarts, place.cause) == (1, 1, of_node(1))
    assert scene.group.last_stop == "rank 1 on node 1 (h) hangs"


def test_a_hang_that_is_found_too_late_changes_nothing() -> None:
    scene = running(2)
    scene.fail("a")
    hang(scene, of_node(1))
    scene.stopped("a", "b")
    hang(scene, of_node(1))
    assert scene.stops("a") == [0]
    cause = scene.assignment("a").cause
    assert cause is not None
    assert cause.kind is FailureKind.WORKER


def test_a_hang_may_end_the_job_or_cost_the_node() -> None:
    scene = running(2, policy=rules("hang=fail"))
    hang(scene, of_node(1))
    scene.stopped("a", "b")
    assert scene.last("a", Verdict).outcome is Outcome.POLICY_ENDED
    scene = running(2, policy=rules("hang=replace-node"))
    hang(scene, of_node(1))
    scene.stopped("a", "b")
    assert scene.all_told("b", Excluded)
    scene = running(2, policy=rules("hang=replace-node"))
    hang(scene, of_node(None))  # no single one is to blame
    scene.stopped("a", "b")
    assert scene.rounds("b") == [0, 1]


# --- no progress -----------------------------------------------------------------------------

STEPPED = Progress(has_stepped=True)


def fail_after(scene: Scene, of_a: Progress | None, of_b: Progress | None) -> None:
    scene.fail("a", worker_failure(0))
    scene.stopped("a", progress=of_a)
    scene.stopped("b", progress=of_b)


def test_restarts_without_a_step_end_the_job() -> None:
    scene = running(2, restarts=9, policy=PolicySpec(max_no_progress=2))
    for progress in (STEPPED, Progress()):
        fail_after(scene, Progress(), progress)
        assert scene.group.phase is GroupPhase.RUNNING
    fail_after(scene, Progress(), Progress())
    verdict = scene.last("b", Verdict)
    assert verdict.outcome is Outcome.POLICY_ENDED
    assert verdict.exit_code == exit_codes.POLICY_ENDED_JOB
    assert verdict.sentence == (
        "the failure policy ended the job: rank 0 on node 0 (host-0) exited with 1 "
        "(2 consecutive restarts without a step: --max-no-progress 2; 2 of 9 restarts used)"
    )


def test_restarts_that_are_not_counted_count_here() -> None:
    scene = running(2, restarts=0, policy=rules("exit:1=restart-free", max_no_progress=1))
    fail_after(scene, Progress(), Progress())
    assert scene.group.phase is GroupPhase.RUNNING
    fail_after(scene, Progress(), Progress())
    assert "1 restart without a step: --max-no-progress 1" in scene.last("a", Verdict).sentence


def test_it_goes_before_the_budget_and_after_a_rule_that_fails() -> None:
    scene = running(2, restarts=1, policy=rules("exit:3=fail", max_no_progress=1))
    fail_after(scene, Progress(), Progress())
    fail_after(scene, Progress(), Progress())
    assert scene.last("a", Verdict).outcome is Outcome.POLICY_ENDED
    scene = running(2, restarts=1, policy=rules("exit:3=fail", max_no_progress=1))
    fail_after(scene, Progress(), Progress())
    scene.fail("a", worker_failure(0, code=3))
    scene.stopped("a", "b", progress=Progress())
    assert "rule exit:3=fail" in scene.last("a", Verdict).sentence


@pytest.mark.parametrize("limit", [0, 1])
def test_without_a_limit_or_a_word_of_all_nodes_the_budget_ends_it(limit: int) -> None:
    told = (Progress(), None) if limit else (Progress(), Progress())
    scene = running(2, restarts=2, policy=PolicySpec(max_no_progress=limit))
    for _ in range(3):
        fail_after(scene, *told)
    assert scene.last("a", Verdict).outcome is Outcome.WORKERS_FAILED


def test_a_round_that_ends_without_a_failure_is_not_counted() -> None:
    scene = running(2, names="abc", restarts=9, policy=PolicySpec(max_no_progress=1))
    fail_after(scene, Progress(), Progress())
    scene.say("b", Leave("SIGTERM"))  # c takes its place
    scene.stopped("a", "b", progress=Progress())
    assert scene.rounds("c") == [2]
    past = scene.assignment("c").past
    assert past is not None
    assert past.progress == PastProgress(-1, 0)


def test_what_workers_of_a_round_long_over_have_done_does_not_count() -> None:
    scene = running(2, names="abc", restarts=9, policy=PolicySpec(max_no_progress=1))
    scene.detach("b")
    scene.wait(1)
    scene.stopped("a", progress=Progress())
    scene.fail("a", worker_failure(0))
    scene.stopped("a", "c", progress=Progress())
    scene.attend("b", claim=claim_of(0, 1))
    scene.say("b", Stopped(0, scene.offer("b"), STEPPED))
    scene.fail("a", worker_failure(0))
    scene.stopped("a", "c", progress=Progress())
    assert "1 restart without a step" in scene.last("a", Verdict).sentence


@pytest.mark.parametrize("known", [(0, -1), (1, 2)])
def test_a_later_master_goes_on_with_the_count(known: tuple[int, int]) -> None:
    scene = running(2, restarts=9, policy=PolicySpec(max_no_progress=2))
    fail_after(scene, Progress(12, True), Progress())
    fail_after(scene, Progress(), Progress())
    past = scene.assignment("a").past
    assert past is not None
    assert past.progress == PastProgress(12, 1)
    later = Scene(2, restarts=9, policy=PolicySpec(max_no_progress=2), known=known)
    for rank, name in enumerate("ab"):
        later.attend(name, claim=claim_of(2, rank, restarts=2, past=past, term=known[0]))
    assert later.group.phase is GroupPhase.RUNNING
    later.say("a", Failed(2, worker_failure(0)))
    later.stopped("a", "b", progress=Progress(12, True))
    assert (
        "2 consecutive restarts without a step beyond step 12" in later.last("a", Verdict).sentence
    )


@pytest.mark.parametrize("ends", [("", "a failure"), ("a failure", "")])
def test_a_later_leader_counts_what_only_some_nodes_know_of_the_end_of_a_round(
    ends: tuple[str, str],
) -> None:
    scene = Scene(2, restarts=9, policy=PolicySpec(max_no_progress=3), known=(1, 2), term=2)
    for rank, (name, ended) in enumerate(zip("ab", ends, strict=True)):
        failures = (NodeFailures("a", (0,) * (1 + bool(ended))),)
        past = Past(failures=failures, progress=PastProgress(12, 1 + bool(ended)))
        claim = claim_of(2, rank, state=ClaimState.STOPPED, restarts=2, past=past, term=1)
        scene.attend(name, claim=replace(claim, ended=ended))
    newest = replace(past, failures=(NodeFailures("a", (0, 0)),), progress=PastProgress(12, 2))
    assert scene.group.state.aftermath.past(scene.group.state.policy, scene.now) == newest


def test_counts_of_an_own_round_are_not_replaced_by_those_of_a_member_that_reconnects() -> None:
    scene = running(2, restarts=9, policy=PolicySpec(max_no_progress=3))
    fail_after(scene, Progress(12, True), Progress())
    fail_after(scene, Progress(), Progress())
    assignment = scene.assignment("b")
    earlier = Past(progress=PastProgress(12, 0))
    scene.attend("b", claim=claim_of(assignment.round, 1, restarts=2, past=earlier))
    state = scene.group.state
    past = state.aftermath.past(state.policy, scene.now)
    assert past is not None
    assert past.progress == PastProgress(12, 1)


def test_it_costs_nothing_where_it_is_not_asked_for() -> None:
    scene = running(2, restarts=9)
    fail_after(scene, Progress(), Progress())
    assert scene.assignment("a").past == Past(failures=(NodeFailures("a", (0,)),))
