"""What the records of all ranks say together; ``test_verdicts`` has the whole cases."""

from ft_run.rendezvous.diagnosis.collectives import Evidence, Found, examine
from ft_run.rendezvous.protocol.collectives import GroupCollectives, RankCollectives
from ft_run.rendezvous.protocol.stacks import RankStack, RankState


def stack(rank: int, *groups: GroupCollectives, peers: tuple[int, ...] = ()) -> RankStack:
    recorded = RankCollectives(groups, peers, True)
    return RankStack(rank, 0, "h", RankState.ANSWERED, collectives=recorded)


def waiting(name: str, ranks: str, number: int = 5) -> GroupCollectives:
    return GroupCollectives(name, ranks, number, number, "barrier")


def test_ranks_outside_of_the_round_are_not_waited_for() -> None:
    everyone = waiting("0:dp", "0-9")
    found = examine([stack(0, everyone), stack(1, everyone)])
    words = "collective 5 (barrier) of group 0:dp"
    assert found == Evidence(Found.IN_FLIGHT, (0, 1), (0, 1), words)
    assert examine([stack(0, peers=(9,)), stack(1)]) is None


def test_ranks_may_wait_through_others_for_what_is_in_flight() -> None:
    flying, second, third = (waiting(*one) for one in (("a", "0,1"), ("b", "1,2"), ("c", "2,3")))
    behind_b = GroupCollectives("b", "1,2", 4, 0, "barrier")
    behind_c = GroupCollectives("c", "2,3", 4, 0, "barrier")
    stacks = [
        stack(0, flying),
        stack(1, flying, behind_b),
        stack(2, second, behind_c),
        stack(3, third),
    ]
    found = examine(stacks)
    assert found is not None
    assert (found.found, found.ranks) == (Found.IN_FLIGHT, (0, 1))


def test_of_several_operations_the_first_is_named() -> None:
    behind = [GroupCollectives(name, f"{rank},2", 0, 0, "") for rank, name in enumerate("ab")]
    stacks = [stack(0, waiting("a", "0,2", 9)), stack(1, waiting("b", "1,2", 3)), stack(2, *behind)]
    words = "collective 3 (barrier) of group b"
    assert examine(stacks) == Evidence(Found.MISSING, (2,), (0, 1), words)
