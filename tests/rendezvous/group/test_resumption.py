"""Which snapshots the ranks of the next round resume from."""

import pytest
from ft_run.rendezvous.group.resumption import Line, resumption, savings
from ft_run.rendezvous.group.roster import Node, NodePhase
from ft_run.rendezvous.protocol.messages import (
    NodeSpec,
    Outcome,
    PolicySpec,
    Stopped,
    Verdict,
    Waiting,
)
from ft_run.rendezvous.protocol.offer import (
    Offer,
    Replica,
    Resumption,
    Saving,
    Snapshot,
    Snapshots,
)
from ft_run.tests.harness.scene import Scene, running
from msgspec.structs import replace

LINE = Line(3, "master")


def nodes_of(*offered: Snapshots | None, workers: int = 2) -> list[Node]:
    """Return nodes that have snapshots, by node rank."""
    return [
        Node(
            NodeSpec(f"n{n}", "i", "h", "h", "", workers, None),
            Offer("h", 1, snapshots),
            n,
            NodePhase.READY,
            n,
        )
        for n, snapshots in enumerate(offered)
    ]


def left(*steps: int, offset: int = 0, size: int = 4, is_replicated: bool = True) -> Snapshots:
    return Snapshots(*LINE, tuple(Snapshot(n, size, offset, is_replicated) for n in steps))


def chosen(*offered: Snapshots | None) -> int | None:
    """Return the step from which a world resumes whose nodes have these snapshots."""
    found = resumption(nodes_of(*offered), LINE)
    assert found is None or found == Resumption(found.step, *LINE)
    return None if found is None else found.step


@pytest.mark.parametrize("is_replicated", [False, True])
def test_the_newest_step_that_all_nodes_have(is_replicated: bool) -> None:
    first = left(8, 9, is_replicated=is_replicated)
    second = left(7, 8, offset=2, is_replicated=is_replicated)
    assert chosen(first, second) == 8
    both = left(8, 9, offset=2, is_replicated=is_replicated)
    assert chosen(first, both) == 9


@pytest.mark.parametrize(("is_replicated", "step"), [(False, None), (True, 9)])
def test_a_node_that_has_nothing_is_sent_what_is_replicated(
    is_replicated: bool, step: int | None
) -> None:
    assert chosen(left(8, 9, is_replicated=is_replicated), None) == step


@pytest.mark.parametrize(("is_replicated", "step"), [(False, None), (True, 9)])
def test_another_world_resumes_from_what_is_replicated(
    is_replicated: bool, step: int | None
) -> None:
    assert chosen(left(8, 9, offset=2, is_replicated=is_replicated)) == step
    assert chosen(*[left(9, is_replicated=is_replicated)] * 3) == step


def replica(*steps: int, ranks: tuple[int, ...], size: int = 4) -> tuple[Replica, ...]:
    return tuple(Replica(step, size, ranks) for step in steps)


def test_a_lost_nodes_shares_come_from_their_replica() -> None:
    first = replace(left(8, 9, is_replicated=False), replicas=replica(8, ranks=(2, 3)))
    assert chosen(first, None) == 8
    newer = replace(first, replicas=replica(8, 9, ranks=(2, 3)))
    assert chosen(newer, None) == 9
    for bad in (replica(9, ranks=(2,)), replica(9, ranks=(2, 3), size=6)):
        assert chosen(replace(first, replicas=bad), None) is None


def test_shares_of_nodes_that_have_changed_places_are_there() -> None:
    swapped = [left(9, offset=2, is_replicated=False), left(9, offset=0, is_replicated=False)]
    assert chosen(*swapped) == 9


def test_the_same_shares_twice_are_not_those_of_all_ranks() -> None:
    assert chosen(*[left(9, is_replicated=False)] * 2) is None


def test_a_replica_is_of_no_use_in_a_world_of_another_size() -> None:
    first = replace(left(9, is_replicated=False), replicas=replica(9, ranks=(2, 3)))
    assert chosen(first) is None
    assert chosen(first, None, None) is None


def test_what_each_node_has_goes_before_a_newer_replica() -> None:
    first = replace(left(8, 9, is_replicated=False), replicas=replica(9, ranks=(2, 3)))
    assert chosen(first, left(7, 8, offset=2, is_replicated=False)) == 8


def test_what_another_round_left_is_the_state_of_another_step() -> None:
    for line in ((2, "master"), (3, "another")):
        stale = Snapshots(*line, left(9).held)
        assert chosen(stale) is None
        assert chosen(left(8), stale) == 8


def test_nothing_is_left() -> None:
    assert chosen(None, None) is None


class Holding(Scene):
    """Of nodes that have snapshots."""

    def offer(self, name: str) -> Offer:
        return replace(super().offer(name), snapshots=left(9))


def test_a_spare_gives_up_what_it_has() -> None:
    scene = Holding(1)
    scene.attend("a")
    scene.attend("spare")
    assert scene.last("spare", Waiting).spare
    held = {node.spec.node_id: node.offer.snapshots for node in scene.group.roster}
    assert held == {"a": left(9), "spare": None}


# --- what is saved when the job ends without success ---------------------------------------------


def shards(*steps: int, offset: int = 0, size: int = 4) -> Snapshots:
    return left(*steps, offset=offset, size=size, is_replicated=False)


def saved(*offered: Snapshots | None) -> dict[str, Saving]:
    """Return what nodes of two ranks save."""
    return savings(nodes_of(*offered), LINE)


def test_each_node_saves_its_shares_of_the_newest_step_that_all_have() -> None:
    found = saved(shards(8, 9), shards(7, 8, offset=2))
    assert found == {"n0": Saving(8, (0, 1)), "n1": Saving(8, (2, 3))}
    assert saved(shards(8, 9, size=2)) == {"n0": Saving(9, (0, 1))}


def test_what_is_not_whole_is_not_saved() -> None:
    assert saved() == saved(None, None) == saved(shards(9), None) == {}
    assert saved(shards(8), shards(9, offset=2)) == {}
    assert saved(shards(9), shards(9)) == {}
    assert saved(shards(9), shards(9, offset=2, size=6)) == {}
    assert saved(shards(9), Snapshots(2, "master", shards(9, offset=2).held)) == {}


def test_a_replica_is_saved_in_the_place_of_a_lost_node() -> None:
    holder = replace(shards(8, 9), replicas=replica(8, 9, ranks=(2, 3)))
    assert saved(holder) == {"n0": Saving(9, (0, 1, 2, 3))}
    assert saved(holder, None) == {"n0": Saving(9, (0, 1, 2, 3))}
    both = saved(holder, shards(9, offset=2))
    assert both == {"n0": Saving(9, (0, 1)), "n1": Saving(9, (2, 3))}  # its own, if it is there
    # Of three nodes the second is lost: the third has it.
    third = replace(shards(9, offset=4, size=6), replicas=replica(9, ranks=(2, 3), size=6))
    found = saved(shards(9, size=6), third)
    assert found == {"n0": Saving(9, (0, 1)), "n1": Saving(9, (2, 3, 4, 5))}


def test_what_all_ranks_have_alike_is_not_saved_by_shares() -> None:
    assert saved(left(9), left(9, offset=2)) == {}


def leave(scene: Scene, name: str, *steps: int, replicas: tuple[Replica, ...] = ()) -> Stopped:
    """Return what a node of one of two ranks says that has left its share of some steps."""
    number, offset = scene.group.round, scene.assignment(name).rank_offset
    held = tuple(Snapshot(step, 2, offset, False) for step in steps)
    left = Snapshots(number, scene.group.state.formed_by, held, replicas)
    return Stopped(number, replace(scene.offer(name), snapshots=left))


def test_the_verdict_says_to_each_node_what_it_saves() -> None:
    scene = running(restarts=0)
    scene.fail("a")
    for name in "ab":
        scene.say(name, leave(scene, name, 4, 5))
    verdicts = [scene.last(name, Verdict) for name in "ab"]
    assert [verdict.saving for verdict in verdicts] == [Saving(5, (0,)), Saving(5, (1,))]
    assert {replace(verdict, saving=None) for verdict in verdicts} == {scene.group.verdict}
    scene.detach("b")
    scene.attend("b", claim=None)
    assert scene.last("b", Verdict) == verdicts[1]  # it may not have heard it
    assert len(scene.all_told("b", Verdict)) == 2


def test_a_job_that_has_succeeded_saves_nothing() -> None:
    scene = running(restarts=1, policy=PolicySpec(rank0_decides=True))
    scene.fail("b")
    scene.say("b", leave(scene, "b", 5, replicas=replica(5, ranks=(0,), size=2)))
    scene.done("a")
    assert scene.last("b", Verdict).outcome is Outcome.SUCCEEDED
    assert scene.last("b", Verdict).saving is None


def test_a_node_that_is_away_saves_nothing() -> None:
    scene = running(restarts=0)
    scene.fail("a")
    scene.say("a", leave(scene, "a", 5, replicas=replica(5, ranks=(1,), size=2)))
    scene.detach("a")
    scene.say("b", leave(scene, "b", 5, replicas=replica(5, ranks=(0,), size=2)))
    assert scene.last("b", Verdict).saving == Saving(5, (0, 1))


def owned(*held: tuple[int, int, int], offset: int = 0, is_replicated: bool = False) -> Snapshots:
    """Return the snapshots of a node: owner, step and generation of each."""
    return Snapshots(
        *LINE,
        tuple(Snapshot(step, 4, offset, is_replicated, owner, age) for owner, step, age in held),
    )


def test_second_owner_with_smaller_step_is_newer() -> None:
    first, second = (1, 12, 12), (2, 1, 13)
    both = [owned(first, second), owned(first, second, offset=2)]
    assert resumption(nodes_of(*both), LINE) == Resumption(1, *LINE, 2)
    assert savings(nodes_of(*both), LINE) == {
        "n0": Saving(1, (0, 1), 2),
        "n1": Saving(1, (2, 3), 2),
    }
    partly = [both[0], owned(first, offset=2)]  # one node has not completed the second one's
    assert resumption(nodes_of(*partly), LINE) == Resumption(12, *LINE, 1)


def test_same_step_of_two_owners_is_not_one_state() -> None:
    nodes = nodes_of(owned((1, 5, 5)), owned((2, 5, 6), offset=2))
    assert resumption(nodes, LINE) is None
    assert savings(nodes, LINE) == {}


def test_replicated_state_of_newer_owner_is_not_assigned() -> None:
    """One of the nodes saves it, and not the older sharded state."""
    sharded = Snapshot(9, 2, 0, False, 1, 9)
    newer = Snapshot(1, 2, 0, True, 2, 10)
    nodes = nodes_of(Snapshots(*LINE, (sharded, newer)))
    assert savings(nodes, LINE) == {}


def test_replicas_are_ordered_by_generation() -> None:
    own = owned((1, 12, 12), (2, 1, 13))
    replicas = (Replica(12, 4, (2, 3), 1, 12), Replica(1, 4, (2, 3), 2, 13))
    nodes = nodes_of(replace(own, replicas=replicas), None)
    assert resumption(nodes, LINE) == Resumption(1, *LINE, 2)
