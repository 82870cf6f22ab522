"""Before nodes leave or the world grows, all ranks save the state of one step."""

import pytest
from ft_run.rendezvous.group.group import GroupPhase
from ft_run.rendezvous.protocol.drain_messages import (
    CancelDrain,
    Drain,
    Drained,
    MayLeave,
    Notice,
)
from ft_run.rendezvous.protocol.messages import Leave, Stop
from ft_run.tests.harness.scene import Scene, claim_of, running


def drained(scene: Scene, *names: str, step: int = 8, number: int = 0) -> None:
    for name in names:
        scene.say(name, Drained(scene.group.round, step, number))


def test_a_node_is_told_once_that_it_may_leave() -> None:
    scene = running(1, 3, "abc")
    scene.say("b", Notice("SIGTERM", 15.0))
    drained(scene, *"abc")
    drained(scene, "c")
    assert scene.all_told("b", MayLeave) == [MayLeave(0, 8)]


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
    scene.attend("a", incarnation="another")
    assert len(scene.all_told("b", Drain)) == 1  # the new process is not being preempted


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


# --- the size of the next world ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("low", "high", "spares", "is_resized"),
    [
        (1, 2, [], True),  # a smaller world follows
        (2, 2, [], False),  # a replacement is waited for
        (2, 3, [], True),  # the others wait for one replacement, or two
        (2, 2, [1], False),  # a spare takes the place
        (2, 2, [2], True),  # it has more workers
    ],
)
def test_ranks_know_whether_the_world_will_have_another_size(
    low: int, high: int, spares: list[int], is_resized: bool
) -> None:
    scene = running(low, high)
    for workers in spares:
        scene.attend("s", workers=workers)
    scene.say("b", Notice("SIGTERM", 15.0))
    assert scene.last("a", Drain).resizes == is_resized


def test_a_spare_that_leaves_changes_the_size() -> None:
    scene = running(1, 2)
    scene.attend("s")
    scene.say("b", Notice("SIGTERM", 15.0))
    assert not scene.last("a", Drain).resizes
    scene.say("s", Leave("SIGTERM"))
    assert scene.last("a", Drain).resizes


# --- the world grows -----------------------------------------------------------------------------


def growing(names: str = "ab", high: int = 4) -> Scene:
    """A round for which another node has come, at the moment at which a larger one is planned."""
    scene = running(2, high, names, drain_timeout_s=60.0)
    scene.attend("n")
    scene.wait(10)
    return scene


def test_the_world_grows_when_all_ranks_have_saved_one_step() -> None:
    scene = growing()
    words = "scaling up from 2 to 3 nodes"
    for name in "ab":
        order = Drain(0, words, 60.0, is_whole=False, resizes=True, grows=True)
        assert scene.all_told(name, Drain) == [order]
        assert not scene.stops(name)
    assert f"{words}: saving a snapshot on all ranks first (up to 60 s)" in scene.notes
    assert not scene.all_told("n", Drain)
    drained(scene, "a")
    drained(scene, "b", step=7)
    assert not scene.stops("a")
    drained(scene, "b")
    assert scene.last("a", Stop).reason == f"{words}, all ranks saved the snapshot of step 8"
    scene.stopped(*"ab")
    assert (scene.group.round, scene.group.restarts) == (1, 0)
    assert scene.ranks(*"abn") == [0, 1, 2]
    scene.wait(3600)
    assert scene.group.phase is GroupPhase.RUNNING
    assert len(scene.all_told("a", Drain)) == 1


def test_workers_that_save_nothing_are_not_waited_for() -> None:
    scene = growing()
    drained(scene, "b", step=-1)
    assert scene.last("a", Stop).reason == "scaling up from 2 to 3 nodes"


def test_nothing_is_saved_where_there_is_no_time_for_it() -> None:
    scene = running(2, 4, drain_timeout_s=0.0)
    scene.attend("n")
    scene.wait(10)
    assert not scene.all_told("a", Drain)
    assert scene.last("a", Stop).reason == "scaling up from 2 to 3 nodes"


def test_the_world_grows_at_the_latest_when_the_time_is_over() -> None:
    scene = growing()
    drained(scene, "a")
    scene.wait(59.9)
    assert not scene.stops("a")
    scene.wait(0.1)
    assert scene.last("a", Stop).reason == (
        "scaling up from 2 to 3 nodes, without a snapshot: not all ranks saved it within 60 s"
    )


@pytest.mark.parametrize("has_saved", [True, False])
def test_a_node_that_comes_meanwhile_is_in_the_larger_world(has_saved: bool) -> None:
    scene = growing()
    scene.attend("o")
    scene.wait(20)
    assert len(scene.all_told("a", Drain)) == 1
    if has_saved:
        drained(scene, *"ab")
    else:
        scene.wait(40)  # the time limit stays
    assert "from 2 to 4 nodes" in scene.last("a", Stop).reason


@pytest.mark.parametrize("way", ["leaves", "is lost"])
def test_training_continues_when_the_new_node_is_gone(way: str) -> None:
    scene = growing()
    drained(scene, "a")
    if way == "leaves":
        scene.say("n", Leave("SIGTERM"))
    else:
        scene.detach("n")
    for name in "ab":
        assert scene.all_told(name, CancelDrain) == [CancelDrain(0, 1)]
    drained(scene, "b")  # on its way
    scene.wait(3600)
    assert scene.group.phase is GroupPhase.RUNNING
    assert not scene.stops("a")
    assert scene.group.deadline() is None
    scene.attend("m")
    scene.wait(10)
    assert scene.last("a", Drain).number == 1
    drained(scene, *"ab")  # for the order that was cancelled
    assert not scene.stops("a")
    drained(scene, *"ab", step=9, number=1)
    assert scene.stops("a") == [0]


def test_world_of_fixed_size_does_not_grow() -> None:
    """The workers report it before a node joins, or in answer to the order of another master."""
    scene = growing()
    scene.say("a", Drained(0, -1, 0, is_fixed=True))
    assert [scene.last(name, CancelDrain) for name in "ab"] == [CancelDrain(0, 1)] * 2
    scene.attend("m")
    scene.wait(3600)
    assert len(scene.all_told("a", Drain)) == 1
    assert not scene.stops("a")
    scene.wait(3600)
    assert scene.group.phase is GroupPhase.RUNNING


def test_the_cancellation_is_sent_again_on_another_stream() -> None:
    scene = growing()
    scene.detach("b")
    scene.say("n", Leave("SIGTERM"))
    scene.attend("b", claim=claim_of(0, 1))
    assert scene.told["b"][-1] == CancelDrain(0, 1)
    assert len(scene.all_told("b", Drain)) == 1


def test_a_member_that_has_succeeded_ends_the_plan() -> None:
    scene = growing()
    scene.done("a")
    assert scene.last("b", CancelDrain) == CancelDrain(0, 1)
    scene.done("b")
    assert scene.group.phase is GroupPhase.FINISHED


def test_what_was_saved_for_a_larger_world_does_not_count_once_it_is_cancelled() -> None:
    scene = growing()
    drained(scene, "a")
    scene.say("n", Leave("SIGTERM"))
    scene.say("b", Notice("gcp", 20.0))
    drained(scene, "b", number=scene.last("b", Drain).number)
    assert not scene.all_told("b", MayLeave)  # a trains on, and may save a later step


def test_a_member_that_is_preempted_meanwhile_leaves_first() -> None:
    scene = growing(high=3)
    drained(scene, "a")
    scene.say("b", Notice("SIGTERM", 15.0))
    order = scene.last("a", Drain)
    assert (order.grows, order.resizes, order.number) == (False, False, 0)  # n takes its place
    drained(scene, "b")
    assert not scene.stops("a")
    assert scene.all_told("b", MayLeave) == [MayLeave(0, 8)]
    scene.say("b", Leave("SIGTERM"))
    scene.stopped(*"ab")
    assert scene.group.round == 1
    assert scene.ranks(*"an") == [0, 1]


def test_a_larger_world_waits_for_a_node_that_leaves_but_not_for_long() -> None:
    scene = running(2, 4, drain_timeout_s=60.0)
    scene.say("b", Notice("gcp", 600.0))
    scene.attend("n")
    scene.attend("o")
    scene.wait(69.9)
    drained(scene, *"ab")
    assert not scene.stops("a")
    scene.wait(0.1)
    assert scene.stops("a") == [0]


def test_a_new_master_cancels_what_the_one_before_may_have_ordered() -> None:
    scene = Scene(2, 3, drain_timeout_s=60.0)
    for rank, name in enumerate("ab"):
        scene.attend(name, claim=claim_of(0, rank, formed_by="before"))
    assert scene.group.phase is GroupPhase.RUNNING
    for name in "ab":
        (cancelled,) = scene.all_told(name, CancelDrain)
        assert cancelled.number > 0
    drained(scene, *"ab")  # of the order before
    scene.attend("n")
    scene.wait(10)
    assert not scene.stops("a")
    drained(scene, *"ab", step=9, number=scene.last("a", Drain).number)
    assert scene.stops("a") == [0]
