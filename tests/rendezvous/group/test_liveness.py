"""Who is lost where nothing is heard: a node, or the master itself."""

from typing import Any

import pytest
from ft_run.rendezvous.group.group import GroupPhase
from ft_run.rendezvous.protocol.messages import Challenge, ChallengeReply
from ft_run.tests.harness.scene import Scene, claim_of, running


def cut_off(names: str = "ab", **more: Any) -> Scene:
    """A running group of which nothing is heard, so that its time to decide has come."""
    scene = running(2, names=names, **more)
    scene.mute.update(names)
    for name in names:
        scene.detach(name)
        scene.wait(0.4)  # pings are not sent all at once
    scene.wait(1)
    return scene


def back(scene: Scene, *names: str) -> None:
    for name in names:
        scene.attend(name, claim=claim_of(0, "ab".index(name), formed_by="master"))


def test_a_round_goes_on_when_the_master_was_cut_off_from_all_of_its_nodes() -> None:
    scene = cut_off()
    scene.wait(300)
    assert scene.notes[-1] == "no node responds: keeping the round for 600 s"
    back(scene, "a")
    scene.wait(9)
    back(scene, "b")
    scene.wait(60)
    assert scene.group.phase is GroupPhase.RUNNING
    assert (scene.group.round, scene.stops("a"), scene.stops("b")) == (0, [], [])


def test_those_whose_streams_broke_together_have_time_to_come_back_one_by_one() -> None:
    """As after the freeze of the master's host, all of which is told at once when it thaws."""
    scene = running(2)
    scene.detach("a", "b")
    back(scene, "a")
    scene.wait(9)
    back(scene, "b")
    scene.wait(60)
    assert scene.stops("a") == []


def test_who_does_not_come_back_with_the_others_is_lost() -> None:
    scene = cut_off()
    scene.wait(300)
    back(scene, "a")
    scene.wait(9.9)
    assert scene.stops("a") == []
    scene.wait(0.1)
    assert scene.stops("a") == [0]


def test_who_stays_away_is_lost_however_often_others_come_and_go() -> None:
    scene = running(2)
    scene.detach("a", "b")
    for seconds in (7.0, 2.9):
        back(scene, "b")
        scene.wait(seconds)
        assert scene.stops("b") == []
        scene.detach("b")
    scene.wait(0.3)
    back(scene, "b")
    assert scene.stops("b") == [0]
    assert [node.spec.node_id for node in scene.group.roster] == ["b"]


def test_who_breaks_later_has_its_own_time_to_come_back() -> None:
    scene = running(3, names="abc")
    scene.detach("a", "b", "c")
    for name in "bc":
        scene.attend(name, claim=claim_of(0, "abc".index(name), nodes=3))
    scene.wait(9)
    scene.detach("b", "c")
    scene.attend("b", claim=claim_of(0, 1, nodes=3))
    scene.wait(1)
    assert scene.stops("b") == [0]
    assert [node.spec.node_id for node in scene.group.roster] == ["b", "c"]
    scene.wait(8.9)
    assert len(scene.group.roster) == 2
    scene.wait(0.1)
    assert len(scene.group.roster) == 1


def test_a_master_that_stays_cut_off_gives_the_nodes_up_when_they_give_it_up() -> None:
    scene = cut_off(master_timeout_s=100.0)
    scene.wait(98)
    assert len(scene.group.roster) == 2
    scene.wait(2)
    assert len(scene.group.roster) == 0


def test_nobody_is_asked_when_somebody_has_spoken_since() -> None:
    scene = running(2)
    scene.detach("b")
    scene.say("a", ChallengeReply())
    scene.wait(1)
    assert scene.stops("a") == [0]
    assert not scene.all_told("a", Challenge)


def test_an_answer_that_takes_long_says_that_the_master_is_not_cut_off() -> None:
    scene = running(2)
    scene.mute.add("a")
    scene.detach("b")
    scene.wait(20)
    assert scene.stops("a") == []
    scene.say("a", ChallengeReply())
    assert scene.stops("a") == [0]


def test_spares_answer_too() -> None:
    scene = running(2, names="abs")
    scene.mute.update("ab")
    scene.detach("a", "b")
    scene.wait(1)
    assert scene.group.phase is GroupPhase.GATHERING
    assert [node.spec.node_id for node in scene.group.roster] == ["s"]


@pytest.mark.parametrize("is_waiting", [False, True])
def test_one_host_that_falls_silent_is_lost_and_so_is_who_waits(is_waiting: bool) -> None:
    scene = Scene(1, 2 if is_waiting else 1)
    scene.attend("a")
    scene.mute.add("a")
    scene.detach("a")
    scene.wait(1)
    assert len(scene.group.roster) == 0


def test_who_is_lost_in_the_end_is_said_to_have_been_away_for_as_long_as_it_was() -> None:
    scene = running(2, 2)
    scene.detach("a", "b")
    scene.wait(30)
    scene.attend("a")
    scene.wait(scene.group.settings.takeover_grace_s)
    assert scene.notes.count("node b is lost: no connection for 40 s") == 1
