"""What the master knows of its nodes is told at once, however many there are."""

import random
from collections import Counter

import pytest
from ft_run.rendezvous.group.events import Detached, GroupSettings, Received
from ft_run.rendezvous.group.group import Group
from ft_run.rendezvous.group.roster import NodePhase, Roster
from ft_run.rendezvous.protocol.messages import PROTOCOL_VERSION, Attend, JobSpec, NodeSpec
from ft_run.rendezvous.protocol.offer import Offer

OFFER = Offer("10.0.0.1", 2000)


class CountedName(str):
    """An identity that counts how often it is looked up: what the master has to do."""

    lookups = 0

    def __hash__(self):
        CountedName.lookups += 1
        return super().__hash__()


def node(number):
    name = CountedName(f"host{number}/0")
    place = (name, f"i{number}", f"host{number}", "10.0.0.1", "default", 1, None)
    return NodeSpec(*place, segment=f"rack{number % 2}")


@pytest.mark.parametrize("seed", range(20))
def test_who_could_enter_a_world_is_counted_whatever_comes_and_goes(seed):
    chance = random.Random(seed)
    roster = Roster()
    moves = {
        NodePhase.READY: NodePhase.RUNNING,
        NodePhase.RUNNING: NodePhase.STOPPING,
        NodePhase.STOPPING: NodePhase.READY,
    }
    for number in range(200):
        there = list(roster)
        one = chance.choice(there) if there else None
        step = chance.choice(("add", "move", "attach", "detach", "await", "remove"))
        if one is None or step == "add":
            roster.add(node(number), OFFER, number, NodePhase.READY)
        elif step == "move":
            roster.move(one, moves[one.phase])
        elif step == "attach":
            roster.attach(one, number)
        elif step == "detach" and one.link is not None:
            roster.detach(one, float(number))
        elif step == "await":
            roster.await_return(float(number))
        elif step == "remove":
            roster.remove(one)
        ready = [one for one in roster.in_phase(NodePhase.READY) if one.link is not None]
        assert roster.ready_attached() == len(ready)
        assert roster.ready_sizes == Counter(node.spec.segment for node in ready)
        assert roster.detached == sum(one.link is None for one in roster)


def lookups(count):
    """How often nodes are looked up while all that wait for one more lose the master."""
    group = Group(GroupSettings(), "master")
    job = JobSpec("job", count + 1, count + 1, 1, 3)
    attends = [Attend(PROTOCOL_VERSION, "1", job, node(n), OFFER, None) for n in range(count)]
    CountedName.lookups = 0
    for number, attend in enumerate(attends):
        group.handle(Received(number, attend), 0.0)
    for number in range(count):
        group.handle(Detached(number), 1.0)
        group.deadline()
    for number, attend in enumerate(attends):
        group.handle(Received(count + number, attend), 1.5)
        group.deadline()
    return CountedName.lookups


def test_the_work_for_a_link_that_breaks_does_not_grow_with_those_that_broke_before():
    assert lookups(160) < 6 * lookups(40)
