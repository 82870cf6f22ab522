"""Who is in a world and with which ranks."""

from collections import Counter

import pytest
from ft_run.rendezvous.group.roster import Node, NodePhase
from ft_run.rendezvous.group.world import (
    form,
    largest_size,
    natural_key,
    order,
    order_by_segment,
    usable_size,
)
from ft_run.rendezvous.protocol.messages import Assignment, NodeSpec
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
    segment: str = "",
) -> Node:
    spec = NodeSpec(host, "i", host, host, role, workers, wanted, segment=segment)
    return Node(spec, Offer(host, 1), arrival, NodePhase.READY, 1, rank=previous)


def hosts(ordered: list[Node]) -> list[str]:
    return [c.spec.host for c in ordered]


BASE = Assignment(7, "master", 0, 0, 0, 0, 0, 0, 0, "", "a", 1, "", None)


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
    parts = form(BASE, chosen)
    assert [part.node_rank for part in parts] == list(range(size))
    ranks = [part.rank_offset for part in parts]
    assert ranks == [sum(c.spec.local_world_size for c in chosen[:i]) for i in range(size)]


@given(_candidates)
def test_a_survivor_moves_only_for_a_pin_or_a_rival_or_a_smaller_world(candidates):
    size = len(candidates)
    chosen = order(candidates, size)
    pins = {c.spec.wanted_rank for c in candidates}
    for rank in range(size):
        claimants = [c for c in candidates if c.rank == rank]
        if len(claimants) == 1 and claimants[0].spec.wanted_rank is None and rank not in pins:
            assert chosen[rank] is claimants[0]


def placed(*names: str, previous: dict[str, int] | None = None) -> list[Node]:
    """Nodes named by their segments and a number: ``x1``; ``-1`` has no segment."""
    former = previous or {}
    return [
        candidate(name, arrival=at, previous=former.get(name), segment=name.rstrip("0123456789-"))
        for at, name in enumerate(names)
    ]


@pytest.mark.parametrize(
    ("sizes", "unit", "size"),
    [
        ({"x": 9, "y": 7}, 8, 8),
        ({"x": 9, "y": 8}, 8, 16),
        ({"x": 3, "": 3}, 2, 4),  # nodes without a label are a segment of their own
        ({"x": 3, "": 3}, 1, 6),
        ({"x": 40}, 8, 16),
        ({"x": 7, "y": 7}, 8, 0),
    ],
)
def test_only_whole_units_of_one_segment_count(sizes, unit, size):
    assert usable_size(Counter(sizes), 1, 16, unit) == size


@pytest.mark.parametrize(
    ("names", "previous", "last", "unit", "expected"),
    [
        ("y1 x1 y2 x2", {}, {}, 2, "x1 x2 y1 y2"),
        ("y1 x1 -1 y2 x2", {}, {}, 1, "-1 x1 x2 y1 y2"),
        # A vacant rank goes to a node of its segment, then to any.
        ("x1 x2 a9 y3", {"x1": 0, "x2": 1}, {2: "y"}, 1, "x1 x2 y3"),
        ("x1 x2 a9 b3", {"x1": 0, "x2": 1}, {2: "y"}, 1, "x1 x2 a9"),
        ("x1 x3 y1 y2", {"x1": 1, "y1": 2, "y2": 3}, {0: "x"}, 2, "x3 x1 y1 y2"),
        # A unit that is not whole makes room for one that is; survivors of others stay.
        ("x1 y1 y2 z1 z2", {"x1": 1, "y1": 2, "y2": 3}, {0: "x"}, 2, "z1 z2 y1 y2"),
        ("x1 y1 z1 z2", {"x1": 1, "y1": 2}, {}, 2, "z1 z2"),
        # Two units of a segment that have lost one each become one.
        ("x1 x2 x3 y1 y2 y3 y4", {"x1": 0, "x2": 1, "x3": 2}, {}, 2, "x1 x2 y1 y2"),
        ("x1 x2 y1 y2", {"x1": 1, "x2": 2, "y1": 4, "y2": 5}, {}, 2, "x2 x1 y1 y2"),
        # Of two units that could stay, the one with more survivors does.
        ("x1 x2 x3 y1 y2", {"x1": 0, "x2": 2, "x3": 3}, {}, 2, "y1 y2 x2 x3"),
        # In a smaller world whole units move.
        ("y1 y2 z1 z2", {"y1": 2, "y2": 3, "z1": 4, "z2": 5}, {}, 2, "z1 z2 y1 y2"),
        # There the unit with more survivors stays, and all that stay go before newcomers.
        ("x1 x5 y1 y2", {"x1": 0, "y1": 2, "y2": 3}, {}, 2, "y1 y2"),
        ("a9 y1", {"y1": 2}, {}, 1, "y1"),
        ("x9 y1", {"y1": 2}, {0: "x"}, 1, "y1"),
        ("x8 x9 y1", {"y1": 5}, {0: "x", 1: "x"}, 1, "x8 y1"),
        # A vacant unit goes to the segment that it was of.
        ("x1 x2 a1 a2 y3 y4", {"x1": 0, "x2": 1}, {0: "x", 1: "x", 2: "y"}, 2, "x1 x2 y3 y4"),
        # Of two that had one rank, or one unit, each has a place.
        ("x1 x2", {"x1": 0, "x2": 0}, {}, 2, "x1 x2"),
        ("x1 x2 y1 y2", {"x1": 0, "y1": 1}, {}, 2, "x1 x2 y1 y2"),
    ],
)
def test_order_by_segment(names, previous, last, unit, expected):
    size = len(expected.split())
    chosen = order_by_segment(placed(*names.split(), previous=previous), size, unit, last)
    assert " ".join(hosts(chosen)) == expected


@given(st.data())
def test_units_are_of_one_segment_and_survivors_of_whole_ones_stay(data):
    unit = data.draw(st.integers(1, 3))
    before = data.draw(st.integers(0, 4)) * unit
    segments = [data.draw(st.sampled_from(("", "x", "y", "z"))) for _ in range(before // unit)]
    last = {rank: segments[rank // unit] for rank in range(before)}
    alive = [rank for rank in last if data.draw(st.booleans())]
    names = [f"{last[rank] or '-'}{rank}" for rank in alive]
    previous = dict(zip(names, alive, strict=True))
    spares = data.draw(st.lists(st.sampled_from("-xyz"), max_size=12))
    nodes = placed(*names, *(f"{s}{100 + n}" for n, s in enumerate(spares)), previous=previous)
    sizes = Counter(c.spec.segment for c in nodes)
    size = usable_size(sizes, 0, before or 6, unit)
    if not any(sizes):
        return  # no node has a label
    chosen = order_by_segment(nodes, size, unit, last)
    assert len({id(c) for c in chosen}) == size
    blocks = [chosen[at : at + unit] for at in range(0, size, unit)]
    assert all(len({c.spec.segment for c in block}) == 1 for block in blocks)
    if not alive and not before:  # a first world: neighbours
        order_of = [block[0].spec.segment for block in blocks]
        assert order_of == sorted(order_of, key=order_of.index)
    for at, block in enumerate(blocks):
        here = [rank for rank in alive if rank // unit == at]
        if len(here) == unit and size == before:  # no member was lost
            assert [c.rank for c in block] == here
    if unit == 1 and size == before:
        # No survivor moves, and no vacant rank gets a stranger while a node of its segment waits.
        assert all(chosen[rank].rank == rank for rank in alive)
        inside = {id(c) for c in chosen}
        waiting = {c.spec.segment for c in nodes if id(c) not in inside}
        assert all(
            chosen[rank].spec.segment == last[rank] or last[rank] not in waiting for rank in last
        )
