"""Before a node goes away, all ranks leave the state of one step."""

from ft_run.rendezvous.group.group import GroupPhase
from ft_run.rendezvous.policy.drain import Draining
from ft_run.rendezvous.protocol.drain_messages import Drain, Drained, MayLeave, Notice
from ft_run.rendezvous.protocol.messages import Leave, Stop
from ft_run.tests.harness.scene import Scene, claim_of, running


def drained(scene: Scene, *names: str, step: int = 8) -> None:
    for name in names:
        scene.say(name, Drained(scene.group.round, step))


def test_a_node_may_leave_when_all_have_left_one_state() -> None:
    scene = running(1, 3, "abc")
    scene.say("b", Notice("SIGTERM", 15.0))
    for name in "abc":
        reason = "node b is being preempted (SIGTERM)"
        assert scene.last(name, Drain) == Drain(0, reason, 15.0, is_whole=False, resizes=True)
        assert not scene.stops(name)
    drained(scene, "a", "b")
    assert not scene.all_told("b", MayLeave)
    drained(scene, "c")
    drained(scene, "c")
    assert scene.all_told("b", MayLeave) == [MayLeave(0, 8)]  # once
    assert not scene.all_told("a", MayLeave)
    assert not scene.stops("a")  # the node that leaves says so


def test_no_restart_is_counted_and_the_node_is_not_in_the_next_round() -> None:
    scene = running(1, 3, "abc")
    scene.say("b", Notice("SIGTERM", 15.0))
    drained(scene, *"abc")
    scene.say("b", Leave("SIGTERM"))
    scene.stopped(*"abc")
    assert (scene.group.round, scene.group.restarts) == (1, 0)
    assert scene.rounds("b") == [0]
    assert len(scene.all_told("a", Drain)) == 1  # the next round has no part in it


def test_a_node_that_says_another_step_is_waited_for() -> None:
    scene = running()
    scene.say("a", Notice("SIGTERM", 15.0))
    drained(scene, "a", step=8)
    drained(scene, "b", step=7)
    assert not scene.all_told("a", MayLeave)
    drained(scene, "b", step=8)
    assert scene.all_told("a", MayLeave) == [MayLeave(0, 8)]


def test_it_leaves_at_its_own_time_whatever_the_others_have_left() -> None:
    scene = running()
    scene.say("a", Notice("SIGTERM", 15.0))
    scene.wait(3600)
    assert scene.group.phase is GroupPhase.RUNNING  # nothing here waits for it
    scene.say("a", Leave("SIGTERM"))
    assert scene.stops("b") == [0]


def test_when_all_will_be_gone_all_are_told_so() -> None:
    scene = running()
    scene.say("a", Notice("gcp", 20.0))
    scene.wait(5)
    scene.say("b", Notice("gcp", 10.0))
    reason = "node b is being preempted (gcp)"
    assert scene.last("a", Drain) == Drain(0, reason, 10.0, is_whole=True)  # as many come, or none
    drained(scene, *"ab")
    assert scene.all_told("a", MayLeave) == scene.all_told("b", MayLeave) == [MayLeave(0, 8)]


def test_the_order_is_said_again_on_another_stream() -> None:
    scene = running()
    scene.say("a", Notice("SIGTERM", 15.0))
    scene.detach("b")
    drained(scene, "a")
    scene.attend("b", claim=claim_of(0, 1))
    assert len(scene.all_told("b", Drain)) == 2
    drained(scene, "b")
    scene.detach("a")
    scene.attend("a", claim=claim_of(0, 0))
    assert len(scene.all_told("a", MayLeave)) == 2


def test_what_was_left_in_an_earlier_round_does_not_count() -> None:
    scene = running(1, 2)
    scene.say("a", Notice("SIGTERM", 15.0))
    drained(scene, "b")
    scene.fail("b")
    assert scene.last("a", Stop).round == 0
    scene.stopped(*"ab")
    assert scene.group.round == 1
    drained(scene, "a")
    scene.say("b", Drained(0, 8))  # late
    assert not scene.all_told("a", MayLeave)


def test_a_node_that_waits_is_told_nothing() -> None:
    scene = running(2, 2, "abc")
    scene.say("c", Notice("SIGTERM", 15.0))
    assert not scene.all_told("a", Drain)
    assert not scene.all_told("c", Drain)
    scene.say("c", Leave("SIGTERM"))
    assert scene.closed == ["c"]


def test_a_node_that_is_lost_is_not_waited_for_any_more() -> None:
    scene = running(1, 2)
    scene.say("a", Notice("SIGTERM", 15.0))
    scene.detach("a")
    scene.wait(60)
    scene.stopped("b")
    assert scene.group.round == 1
    assert len(scene.all_told("b", Drain)) == 1


def test_nothing_is_kept_of_a_node_that_is_gone() -> None:
    draining = Draining()
    assert draining.notice("a", "SIGTERM", 15.0)
    assert not draining.notice("a", "gcp", 10.0)  # no news
    assert not draining.is_idle
    draining.forget("a")
    assert draining.is_idle


def test_the_order_comes_with_the_start_of_a_round() -> None:
    """A node whose preemption was announced in the round before is still in the next one."""
    scene = running(2, 2, "ab")
    scene.say("a", Notice("SIGTERM", 15.0))
    scene.fail("b")
    scene.stopped("a", "b")
    assert scene.group.round == 1
    reason = "node a is being preempted (SIGTERM)"
    for name in "ab":
        assert scene.last(name, Drain) == Drain(1, reason, 15.0, is_whole=False)
