"""What a node that was never in a round of this master can change of a job that runs: nothing."""

import pytest
from ft_run.rendezvous.group import roster
from ft_run.rendezvous.protocol.claim import Claim, Past
from ft_run.rendezvous.protocol.messages import (
    ChallengeReply,
    Leave,
    PolicySpec,
    Renamed,
    Stopped,
    Verdict,
)
from ft_run.tests.harness.scene import Scene, claim_of, running

_POISON = Past(restart_ages_s=(1, 2, 3), excluded=("a", "b", "c"))


def _poison(*, number: int = 900_000_000, restarts: int = 900_000_000) -> Claim:
    return claim_of(number, 0, restarts=restarts, past=_POISON, checked=True, formed_by="x")


@pytest.mark.parametrize("way", ["comes", "comes again", "is lost between"])
def test_the_claim_of_a_stranger_changes_nothing_of_a_job_that_has_a_round(way):
    scene = running(2, restarts=2, policy=PolicySpec(restart_window_s=100.0))
    if way != "comes":
        scene.attend("x")
        scene.detach("x")
    if way == "is lost between":
        scene.wait(2)
    scene.attend("x", claim=_poison())
    assert scene.stops("a") == scene.stops("b") == []
    scene.say("x", Stopped(900_000_000, scene.offer("x")))
    scene.fail("a")
    scene.stopped("a", "b")
    assert scene.ranks("a", "b") == [0, 1]
    assert scene.rounds("a") == scene.rounds("b") == [0, 1]
    assignment = scene.assignment("a")
    assert (assignment.restarts, assignment.restarts_in_window) == (1, 1)
    assert assignment.past is not None
    assert (assignment.past.restart_ages_s, assignment.past.excluded) == ((0,), ())


def test_a_stranger_that_becomes_a_member_drives_no_number_out_of_bounds():
    scene = running(1, 2, names="a")
    scene.attend("x", claim=_poison())
    scene.say("x", Stopped(900_000_000, scene.offer("x")))
    scene.wait(30)
    scene.stopped("a")
    assert scene.rounds("a") == [0, 10_001]
    assert scene.assignment("a").restarts == 0


@pytest.mark.parametrize("is_taken_over", [False, True])
def test_what_a_member_learned_while_it_was_away_counts(is_taken_over):
    """Another master has gone on with it."""
    scene = Scene(2, 3, restarts=5)
    for rank, name in enumerate("abc"):
        claim = claim_of(4, rank, nodes=3) if is_taken_over else None
        scene.attend(name, claim=claim)
    number = scene.group.round
    scene.detach("c")
    past = Past(excluded=("z",))
    scene.attend("c", claim=claim_of(9, 0, restarts=2, past=past, formed_by="another"))
    scene.stopped("a", "b")
    scene.say("c", Stopped(number, scene.offer("c")))
    scene.say("c", Stopped(9, scene.offer("c")))
    assert scene.rounds("a")[-1] == 10
    assert scene.assignment("a").restarts == 3, "two that it learned of, and one more"
    assert scene.assignment("a").past == past


def test_of_what_comes_and_goes_under_ever_new_names_only_the_newest_is_remembered(monkeypatch):
    monkeypatch.setattr(roster, "NODES_MAX", 20)
    scene = running(2)
    for number in range(100):
        name = f"x{number}"
        scene.attend(name, node_id="a", address=name)
        scene.say("a", ChallengeReply())
        assert scene.last(name, Renamed)
        scene.say(name, Leave("it goes"))
    kept = [scene.group._joining._admitted, scene.group._joining._given]
    assert [len(some) for some in kept] == [20, 20]
    scene.done("a", "b")
    scene.attend("x0")
    scene.attend("x99")
    assert scene.all_told("x0", Verdict) == [], "it may be of the next job"
    assert scene.last("x99", Verdict) == scene.last("a", Verdict)


def test_processes_that_were_in_rounds_are_forgotten_too_but_not_those_that_still_are(monkeypatch):
    monkeypatch.setattr(roster, "NODES_MAX", 20)
    scene = running(1, 2, names="a", restarts=1000)
    for number in range(50):
        name = f"x{number}"
        scene.attend(name)
        scene.wait(30)
        scene.stopped("a")
        assert scene.assignment("a").nodes == 2
        assert "a" in scene.group.state.served
        scene.say(name, Leave("it goes"))
        scene.stopped("a", name)
    assert len(scene.group.state.served) == 20
