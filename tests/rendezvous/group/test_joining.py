"""Who may join, whose identity it is, and who is refused."""

import math
from typing import Any

import pytest
from ft_run.rendezvous.group.admission import difference
from ft_run.rendezvous.protocol.lease_messages import SuccessionSpec
from ft_run.rendezvous.protocol.messages import (
    PROTOCOL_VERSION,
    Challenge,
    ChallengeReply,
    Done,
    HangSpec,
    Heard,
    JobSpec,
    Leave,
    Outcome,
    PolicySpec,
    Refused,
    Renamed,
    Stopped,
    Verdict,
    Waiting,
)
from ft_run.tests.harness.scene import SPARE, Scene, claim_of, running
from msgspec.structs import replace

# --- options ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("job", "words"),
    [
        (JobSpec("other", 2, 2, 1, 3), "--rdzv-id 'other' is not the job of this master ('job')"),
        (JobSpec("job", 1, 2, 1, 3), "the minimum of --nnodes is 1 (this job: 2)"),
        (JobSpec("job", 2, 3, 1, 3), "the maximum of --nnodes is 3 (this job: 2)"),
        (JobSpec("job", 2, 2, 2, 3), "--node-unit is 2 (this job: 1)"),
        (JobSpec("job", 2, 2, 1, 0), "--max-restarts is 0 (this job: 3)"),
        (
            JobSpec("job", 2, 2, 1, 3, separate_store=True),
            "--store separate is set (this job: not set)",
        ),
        (
            JobSpec("job", 2, 2, 1, 3, rescale_delay_s=60.0),
            "--rescale-delay in seconds is 60 (this job: not given)",
        ),
        (JobSpec("job", 2, 2, 1, 3, rescale_delay_s=math.inf), "is never (this job: not given)"),
        (
            JobSpec("job", 2, 2, 1, 3, hang=HangSpec(0.0, 1800.0)),
            "--hang-timeout in seconds (0 is auto) is 0 (this job: never)",
        ),
        (
            JobSpec("job", 2, 2, 1, 5, separate_store=True),
            "the node's options differ: --max-restarts is 5 (this job: 3), --store separate is set"
            " (this job: not set).",
        ),
        (JobSpec("job", 3, 2, 1, 3), "1 <= MIN <= MAX"),
        (JobSpec("job", 3, 4, 2, 3), "not a multiple of --node-unit"),
    ],
)
def test_another_configuration_is_refused_with_the_difference(job, words):
    scene = Scene(2)
    scene.attend("a")
    scene.attend("b", job=job)
    assert words in scene.last("b", Refused).sentence
    assert not scene.last("b", Refused).is_displaced
    assert scene.notes[-1] == f"node b refused: {scene.last('b', Refused).sentence[:-1]}"
    assert scene.closed == ["b"]
    scene.attend("c")
    assert scene.rounds("a") == scene.rounds("c") == [0]


ONLY = JobSpec("none", 1, 1, 1, 3)
"""The options of a job of one node without --rdzv-id."""


def test_second_job_of_one_node_without_an_id_is_refused():
    scene = Scene(1)
    scene.attend("a", job=ONLY)
    scene.attend("b", job=ONLY)
    assert "another job without --rdzv-id" in scene.last("b", Refused).sentence
    assert "use a different --rdzv-endpoint" in scene.last("b", Refused).sentence
    assert scene.closed == ["b"]
    assert scene.rounds("a") == [0]


@pytest.mark.parametrize("job", [replace(ONLY, job_id="j"), replace(ONLY, max_nodes=2)])
def test_second_node_of_other_jobs_is_a_spare_or_a_member(job):
    scene = Scene(1)
    scene.attend("a", job=job)
    scene.attend("b", job=job)
    assert not any(isinstance(message, Refused) for message in scene.told["b"])


def test_node_of_a_job_without_an_id_is_replaced_if_it_is_lost_or_leaves():
    scene = Scene(1)
    scene.attend("a", job=ONLY)
    scene.detach("a")
    scene.attend("b", job=ONLY)
    scene.attend("b2", job=ONLY)  # b waits until a is lost
    assert scene.last("b", Waiting).spare
    assert isinstance(scene.told["b2"][-1], Refused)
    leaves = Scene(1)
    leaves.attend("a", job=ONLY)
    leaves.say("a", Leave("SIGTERM"))
    leaves.attend("b", job=ONLY)
    assert leaves.last("b", Waiting).spare


def test_node_of_a_job_without_an_id_returns_to_its_round():
    """A new master knows nothing of it, and its agent was not restarted."""
    scene = Scene(1)
    scene.attend("a", job=ONLY)
    scene.detach("a")
    scene.attend("a", job=ONLY, claim=claim_of(0, 0, nodes=1))
    assert not any(isinstance(message, Refused) for message in scene.told["a"])


def another(value):
    """Return a value of the same type, or a number of seconds where none was given."""
    match value:
        case bool():
            return not value
        case tuple():
            return (*value, "exit:3=fail")
        case str():
            return f"{value}x"
    return 7.0 if value is None else value + 1


@pytest.mark.parametrize("kind", [JobSpec, PolicySpec, HangSpec])
def test_no_option_can_differ_unseen(kind):
    job: Any = JobSpec("job", 2, 4, 1, 3, policy=PolicySpec(), hang=HangSpec(60.0, 600.0))
    part = {PolicySpec: "policy", HangSpec: "hang"}.get(kind)
    spec = getattr(job, part) if part else job
    apart = {"policy", "hang", "checks", "succession"}
    for name in {*kind.__struct_fields__} - apart:
        other = replace(spec, **{name: another(getattr(spec, name))})
        sentence = difference(replace(job, **{part: other}) if part else other, job)
        assert sentence is not None, f"{name} is not compared"
        assert "--" in sentence


LISTED = SuccessionSpec("a:1,b:1,c:1", 3.0, 6.0, 5.0, 1.0)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (None, "--rdzv-endpoint is no list (this job: a:1,b:1,c:1)"),
        (
            replace(LISTED, endpoints="a:1,b:1,d:1"),
            "--rdzv-endpoint is a:1,b:1,d:1 (this job: a:1,b:1,c:1)",
        ),
        (replace(LISTED, fence_s=math.inf), "--rdzv-conf fence in seconds is never (this job: 6)"),
        (replace(LISTED, node_timeout_s=60.0), "--rdzv-conf node_timeout in seconds is 60 "),
        (replace(LISTED, node_grace_s=9.0), "--rdzv-conf node_grace in seconds is 9 (this job: 1)"),
    ],
)
def test_a_node_whose_leader_was_given_other_options_for_hosts_is_refused(given, words):
    """Also the first node: those of the leader hold, as it and its rivals keep to them."""
    scene = Scene(1, succession=LISTED)
    job = replace(scene.job, succession=given)
    scene.attend("a", job=job)
    assert words in scene.last("a", Refused).sentence
    scene.attend("b", job=replace(scene.job, succession=replace(LISTED, lease_s=99.0)))
    assert scene.rounds("b") == [0]  # the lease is the business of the hosts
    scene.attend("c", job=job)
    assert words in scene.last("c", Refused).sentence


def test_a_node_with_a_list_is_refused_where_there_is_one_endpoint():
    scene = Scene(1)
    scene.attend("a", job=replace(scene.job, succession=LISTED))
    words = "--rdzv-endpoint is a:1,b:1,c:1 (this job: no list)"
    assert words in scene.last("a", Refused).sentence


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"wanted_rank": 2}, "--node-rank 2"),
        ({"workers": 0}, "no number of workers"),
        ({"protocol": 99}, f"protocol 99 (ft-run 1) is not that of the master, {PROTOCOL_VERSION}"),
    ],
)
def test_a_node_that_fits_no_job_is_refused(given, words):
    scene = Scene(2)
    scene.attend("a", **given)
    assert words in scene.last("a", Refused).sentence


def test_a_refused_first_node_decides_nothing():
    scene = Scene(2)
    scene.attend("a", job=JobSpec("x", 0, 0, 1, 0))
    assert scene.group.job is None
    scene.attend("b")
    assert scene.group.job == scene.job


@pytest.mark.parametrize("way", ["leaves", "is lost"])
def test_who_is_gone_before_anything_began_decides_nothing(way):
    """Neither the options of a job nor how long its nodes wait for each other."""
    scene = Scene(2)
    scene.attend("a")
    if way == "leaves":
        scene.say("a", Leave("SIGTERM"))
    else:
        scene.detach("a")
    scene.wait(590)
    scene.attend("b", job=JobSpec("job", 2, 3, 1, 3))
    assert scene.all_told("b", Refused) == []
    scene.wait(599)
    assert scene.group.verdict is None
    scene.wait(1)
    assert scene.last("b", Verdict).outcome is Outcome.RENDEZVOUS_FAILED


def test_what_has_begun_is_not_forgotten_when_nobody_is_left():
    scene = running(1, names="a")
    scene.detach("a")
    scene.wait(1)
    assert len(scene.group.roster) == 0
    scene.attend("b", job=JobSpec("job", 1, 3, 1, 3))
    assert "the maximum of --nnodes is 3 (this job: 1)" in scene.last("b", Refused).sentence


# --- whose options hold ----------------------------------------------------------------------

_OTHER = JobSpec("job", 2, 3, 1, 3)


@pytest.mark.parametrize("claim", [claim_of(4, 0), SPARE], ids=["member", "spare"])
def test_the_options_are_those_of_the_nodes_that_were_in_a_round(claim):
    """Node 0 comes back with a new master in it and other options: it is node 0 that is wrong."""
    scene = Scene(2)
    scene.attend("a", job=_OTHER)
    scene.attend("b", claim=claim)
    assert "the maximum of --nnodes is 3 (this job: 2)" in scene.last("a", Refused).sentence
    assert "a" in scene.closed
    assert scene.group.job == scene.job
    assert [node.spec.node_id for node in scene.group.roster] == ["b"]
    scene.attend("c", claim=claim_of(4, 1))
    assert scene.all_told("b", Refused) == scene.all_told("c", Refused) == []
    assert scene.group.round == (4 if claim.nodes else -1)


def test_who_waits_for_the_identity_of_a_node_that_is_refused_needs_the_options_too():
    scene = Scene(2)
    scene.mute.add("a")
    scene.attend("a", job=_OTHER)
    scene.attend("twin", node_id="a", job=_OTHER)
    assert scene.all_told("twin", Refused) == [], "it waits for the answer of the first"
    scene.attend("b", claim=claim_of(4, 1))
    assert scene.all_told("a", Refused)
    assert scene.all_told("twin", Refused)
    assert [node.spec.node_id for node in scene.group.roster] == ["b"]


@pytest.mark.parametrize("first", ["formed a round", "was in one", "is of another job"])
def test_the_options_of_who_comes_later_do_not_hold(first):
    scene = Scene(2)
    other = replace(_OTHER, job_id="another") if first == "is of another job" else _OTHER
    for rank, name in enumerate("ab"):
        scene.attend(name, claim=claim_of(2, rank) if first == "was in one" else None)
        if first == "is of another job":
            break
    scene.attend("c", job=other, claim=claim_of(4, 0))
    assert scene.last("c", Refused)
    assert scene.all_told("a", Refused) == []
    assert scene.group.job == scene.job


# --- identity --------------------------------------------------------------------------------


def test_a_new_process_ends_the_old_one_at_once_when_that_one_is_away():
    scene = running(2, names="ab")
    scene.detach("b")
    scene.attend("b", incarnation="another")
    assert scene.stops("a") == [0]
    scene.stopped("a")
    assert scene.ranks("a", "b") == [0, 1]


def test_a_holder_whose_stream_breaks_instead_of_an_answer_has_lost():
    scene = running(2, names="ab")
    scene.attend("twin", node_id="b")
    scene.detach("b")
    assert scene.stops("a") == [0]


def test_a_rank_that_another_host_has_is_contested_as_well():
    scene = Scene(2)
    scene.attend("a", wanted_rank=0)
    scene.attend("b", wanted_rank=0)
    assert scene.all_told("a", Challenge)
    scene.say("a", ChallengeReply())
    assert "--node-rank 0 is already used" in scene.last("b", Refused).sentence
    scene.attend("c", wanted_rank=0)
    scene.wait(1)
    scene.attend("d", wanted_rank=1)
    assert scene.ranks("c", "d") == [0, 1]


def test_a_challenge_that_was_lost_with_its_stream_is_repeated():
    scene = running(2, names="ab")
    scene.attend("twin", node_id="b")
    scene.wait(0.9)
    scene.attend("b", claim=claim_of(0, 1))
    assert len(scene.all_told("b", Challenge)) == 2
    scene.wait(0.9)
    scene.say("b", ChallengeReply())
    assert scene.all_told("twin", Refused)
    assert scene.stops("a") == []


def test_a_newcomer_takes_the_place_in_the_moment_in_which_it_becomes_free():
    scene = Scene(3)
    scene.attend("a", claim=claim_of(0, 0, nodes=3))
    scene.attend("b", claim=claim_of(0, 1, nodes=3))
    scene.attend("twin", node_id="b")
    scene.say("b", Leave("SIGTERM"))
    scene.say("b", Stopped(0, scene.offer("b")))
    scene.now += 10  # no more is waited for the third, and this is heard before the next tick
    scene.say("a", Leave("SIGTERM"))
    assert scene.closed == ["b"]
    (holder,) = (node for node in scene.group.roster if node.spec.node_id == "b")
    assert holder.spec.incarnation == "twin"


def test_of_two_newcomers_for_one_identity_the_second_must_ask_the_first():
    scene = running(2, names="ab")
    scene.attend("first", node_id="b")
    scene.attend("second", node_id="b")
    scene.mute.add("first")
    scene.wait(1)
    assert scene.closed == ["b"]
    assert len(scene.all_told("first", Challenge)) == 1
    scene.say("first", ChallengeReply())
    assert scene.all_told("second", Refused)
    scene.stopped("a")
    assert scene.ranks("a", "first") == [0, 1]


def test_a_newcomer_waits_for_a_holder_that_is_leaving():
    scene = running(2, names="ab")
    scene.say("b", Leave("SIGTERM"))
    scene.attend("next", node_id="b")
    scene.wait(20)
    assert scene.closed == []
    assert not scene.all_told("next", Refused)
    scene.stopped("b", "a")
    assert scene.ranks("a", "next") == [0, 1]
    assert scene.assignment("a").restarts == 0


def test_a_holder_that_leaves_while_it_is_asked_does_not_keep_its_identity():
    scene = running(2, names="ab")
    scene.attend("next", node_id="b")
    scene.say("b", Leave("SIGTERM"))
    scene.say("b", ChallengeReply())
    assert not scene.all_told("next", Refused)
    scene.stopped("b", "a")
    assert scene.ranks("a", "next") == [0, 1]


def test_a_newcomer_who_goes_away_leaves_the_holder_alone():
    scene = running(2, names="ab")
    scene.attend("twin", node_id="b")
    scene.detach("twin")
    scene.wait(10)
    assert scene.stops("a") == []


def test_a_newcomer_in_a_contest_hears_the_verdict():
    scene = running(1, names="ab")
    scene.attend("twin", node_id="b")
    scene.say("a", Done(0))
    assert scene.last("twin", Verdict).outcome is Outcome.SUCCEEDED
    for name in "ab":
        scene.say(name, Heard())
    assert scene.finished == []
    scene.say("twin", Heard())
    assert len(scene.finished) == 1


def test_node_is_told_of_missing_nodes_rather_than_of_a_delay():
    scene = Scene(2, starts_from=11.0)
    scene.attend("a")
    scene.wait(5)
    assert not any(waiting.backoff_s for waiting in scene.all_told("a", Waiting))
    scene.attend("b")
    assert scene.last("b", Waiting).backoff_s == 6


def test_a_newcomer_is_told_what_it_waits_for():
    scene = Scene(3, 4)
    scene.attend("a")
    waiting = scene.last("a", Waiting)
    assert (waiting.joined, waiting.min_nodes, waiting.max_nodes) == (1, 3, 4)
    assert waiting.timeout_s == 600.0
    assert not waiting.spare


# --- two hosts of one name -------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [(None, None), (0, 1)])
def test_a_host_of_the_same_name_is_given_the_next_number(ranks):
    scene = Scene(2)
    scene.attend("a", node_id="vm/0", address="10.0.0.1", wanted_rank=ranks[0])
    scene.attend("b", node_id="vm/0", address="10.0.0.2", wanted_rank=ranks[1])
    assert scene.all_told("b", Renamed) == []
    scene.say("a", ChallengeReply())
    assert scene.all_told("b", Renamed) == [Renamed("vm/1")]
    assert scene.all_told("b", Refused) == []
    assert scene.ranks("a", "b") == [0, 1]
    assert scene.assignment("a").successor == "vm/1"


def test_a_node_that_has_not_heard_of_its_number_hears_it_again():
    scene = Scene(2)
    scene.attend("a", node_id="vm/0", address="10.0.0.1")
    scene.attend("b", node_id="vm/0", address="10.0.0.2")
    scene.say("a", ChallengeReply())
    scene.detach("b")
    scene.attend("b", node_id="vm/0", address="10.0.0.2")
    assert scene.all_told("b", Renamed) == [Renamed("vm/1")] * 2
    assert len(scene.group.roster) == 2
    assert scene.stops("a") == []


def test_numbers_that_others_have_or_had_are_not_given():
    scene = Scene(3, 4)
    for number, name in enumerate("abc"):
        scene.attend(name, node_id=f"vm/{number}", address=name)
    scene.wait(60)
    scene.attend("x", node_id="vm/0", address="x")
    scene.say("a", ChallengeReply())
    assert scene.all_told("x", Renamed) == [Renamed("vm/3")]


def test_a_host_of_the_same_name_takes_the_place_of_one_that_is_gone():
    scene = Scene(2)
    scene.attend("a", node_id="vm/0", address="10.0.0.1")
    scene.mute.add("a")
    scene.attend("b", node_id="vm/0", address="10.0.0.2")
    scene.wait(1)
    assert scene.all_told("b", Renamed) == []
    assert [node.spec.address for node in scene.group.roster] == ["10.0.0.2"]


@pytest.mark.parametrize("rank", [0, None])
def test_what_is_no_other_host_or_wants_the_same_rank_is_refused(rank):
    scene = Scene(2)
    scene.attend("a", node_id="vm/0", address="10.0.0.1", wanted_rank=rank)
    other = "10.0.0.1" if rank is None else "10.0.0.2"
    scene.attend("b", node_id="vm/0", address=other, wanted_rank=rank)
    scene.say("a", ChallengeReply())
    assert "is already used by another node" in scene.last("b", Refused).sentence
