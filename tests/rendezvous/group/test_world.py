"""Who is in a world and with which ranks."""

from collections import Counter

import pytest
from ft_run.rendezvous.group.world import (
    Candidate,
    World,
    form,
    largest_size,
    natural_key,
    order,
    usable_size,
)
from ft_run.rendezvous.protocol.messages import NodeSpec
from ft_run.rendezvous.protocol.offer import Offer
from hypothesis import given
from hypothesis import strategies as st


def candidate(
    host: str,
    *,
    arrival: int = 0,
    previous: int | None = None,
    wanted: int | None = None,
    role: str = "default",
    workers: int = 1,
) -> Candidate:
    spec = NodeSpec(host, "i", host, host, role, workers, wanted)
    return Candidate(spec, Offer(host, 1), arrival, previous)


def hosts(ordered: list[Candidate]) -> list[str]:
    return [c.spec.host for c in ordered]


def world_of(*candidates: Candidate) -> World:
    return form(0, candidates)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["node-10", "node-2", "node-1"], ["node-1", "node-2", "node-10"]),
        (["b1", "a10", "a9"], ["a9", "a10", "b1"]),
        (["r2n10", "r2n9", "r10n1"], ["r2n9", "r2n10", "r10n1"]),
        (["10.0.0.10", "10.0.0.9"], ["10.0.0.9", "10.0.0.10"]),
        (["node", "7", "node-0"], ["7", "node", "node-0"]),
    ],
)
def test_hosts_are_ordered_as_people_count(names, expected):
    assert sorted(names, key=natural_key) == expected


@given(st.lists(st.text(max_size=6), max_size=6))
def test_every_host_name_has_a_place_in_the_order(names):
    sorted(names, key=natural_key)


@pytest.mark.parametrize(
    ("count", "low", "high", "unit", "size"),
    [
        (0, 1, 4, 1, 0),
        (1, 2, 4, 1, 0),
        (3, 2, 4, 1, 3),
        (9, 2, 4, 1, 4),
        (5, 2, 8, 2, 4),
        (9, 4, 7, 4, 4),
        (3, 4, 8, 4, 0),
    ],
)
def test_size_of_a_world(count, low, high, unit, size):
    assert usable_size(Counter({"": count}), low, high, unit) == size


@pytest.mark.parametrize(("high", "unit", "size"), [(5, 2, 4), (4, 2, 4), (7, 1, 7)])
def test_largest_size_is_a_multiple_of_the_unit(high, unit, size):
    assert largest_size(high, unit) == size


def test_newcomers_are_ordered_by_host_then_by_arrival():
    chosen = order(
        [
            candidate("node-10", arrival=0),
            candidate("node-2", arrival=2),
            candidate("node-2", arrival=1),
        ],
        3,
    )
    assert [(c.spec.host, c.arrival) for c in chosen] == [
        ("node-2", 1),
        ("node-2", 2),
        ("node-10", 0),
    ]


def test_survivors_keep_their_ranks_and_a_replacement_takes_the_vacant_one():
    chosen = order(
        [candidate("d", previous=2), candidate("a"), candidate("z", previous=0)],
        3,
    )
    assert hosts(chosen) == ["z", "a", "d"]


def test_in_a_smaller_world_those_beyond_its_size_fill_the_gaps():
    chosen = order([candidate("a", previous=0), candidate("c", previous=2)], 2)
    assert hosts(chosen) == ["a", "c"]
    chosen = order([candidate("c", previous=2), candidate("b", previous=1)], 2)
    assert hosts(chosen) == ["c", "b"]


def test_survivors_are_chosen_before_newcomers():
    assert hosts(order([candidate("a"), candidate("b"), candidate("z", previous=5)], 1)) == ["z"]


def test_a_wanted_rank_pins():
    chosen = order(
        [candidate("a"), candidate("b", wanted=0), candidate("c", previous=0, wanted=2)],
        3,
    )
    assert hosts(chosen) == ["b", "a", "c"]


def test_a_newcomer_that_wants_a_rank_takes_it_from_no_survivor_without_one():
    """Otherwise a stranger could make itself the master address of all."""
    stranger = candidate("x", wanted=0)
    chosen = order([stranger, candidate("a", previous=0), candidate("b", previous=1)], 3)
    assert hosts(chosen) == ["a", "b", "x"]
    assert hosts(order([stranger, candidate("b", previous=1)], 2)) == ["x", "b"]


def test_a_wanted_rank_beyond_the_world_is_no_reason_to_leave_a_gap():
    assert hosts(order([candidate("a", wanted=3), candidate("b", wanted=0)], 2)) == ["b", "a"]


def test_offsets_follow_the_number_of_workers_and_roles_count_for_themselves():
    world = world_of(
        candidate("a", role="trainer", workers=2),
        candidate("b", role="reader", workers=1),
        candidate("c", role="trainer", workers=3),
    )
    assert world.world_size == 6
    assert [m.rank_offset for m in world.members] == [0, 2, 3]
    assert [m.role_rank_offset for m in world.members] == [0, 0, 2]
    assert [m.role_world_size for m in world.members] == [5, 1, 5]
    assert world.master == Offer("a", 1)


_candidates = st.lists(
    st.builds(
        candidate,
        st.sampled_from(["n1", "n2", "n10"]),
        arrival=st.integers(0, 9),
        previous=st.none() | st.integers(0, 5),
        wanted=st.none() | st.integers(0, 5),
        workers=st.integers(1, 3),
    ),
    min_size=1,
    max_size=6,
)


@given(_candidates, st.data())
def test_every_world_is_whole(candidates, data):
    size = data.draw(st.integers(1, len(candidates)))
    chosen = order(candidates, size)
    assert len(chosen) == size
    assert all(any(c is given for given in candidates) for c in chosen)
    assert len({id(c) for c in chosen}) == size
    world = form(7, chosen)
    assert [m.node_rank for m in world.members] == list(range(size))
    ranks = [m.rank_offset for m in world.members]
    assert ranks == [sum(c.spec.local_world_size for c in chosen[:i]) for i in range(size)]


@given(_candidates)
def test_a_survivor_moves_only_for_a_pin_or_a_rival_or_a_smaller_world(candidates):
    size = len(candidates)
    chosen = order(candidates, size)
    pins = {c.spec.wanted_rank for c in candidates}
    for rank in range(size):
        claimants = [c for c in candidates if c.previous_rank == rank]
        if len(claimants) == 1 and claimants[0].spec.wanted_rank is None and rank not in pins:
            assert chosen[rank] is claimants[0]
