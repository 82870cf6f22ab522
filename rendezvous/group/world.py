"""The world: which nodes are in a round and with which ranks.

Rules (docs/reference/faults.md): a survivor keeps its node rank if the world's size allows it, a
replacement takes the vacant rank, ``--node-rank`` pins a rank that no unpinned survivor has, and
new nodes are ordered by host, with numbers in names compared as numbers, then by arrival.

A segment is an NVLink domain, a rack or a Slurm block: nodes with the same label. With
``--node-unit N``, each N consecutive node ranks are in one segment. In a first world, the units of
a segment are neighbors. Later, survivors keep their ranks as long as their unit is complete, and a
vacant rank goes to a node of its segment if there is one. Nodes without a label form one segment.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from ..protocol.messages import Assignment
from .roster import Node, Sizes

_DIGITS = re.compile(r"([0-9]+)")


def natural_key(host: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key that orders ``node-2`` before ``node-10``."""
    return tuple(
        (0, int(part), "") if part.isdecimal() else (1, 0, part)
        for part in _DIGITS.split(host)
        if part
    )


def largest_size(max_nodes: int, unit: int) -> int:
    """Return the maximum number of nodes in a world."""
    return max_nodes // unit * unit


def in_units(sizes: Sizes, unit: int) -> int:
    """Return how many nodes are in complete units of one segment each."""
    if unit == 1:
        return sizes.total()
    return sum(size // unit for size in sizes.values()) * unit


def usable_size(sizes: Sizes, min_nodes: int, max_nodes: int, unit: int) -> int:
    """Return how many of these nodes a world takes, in units of one segment; 0 if too few."""
    size = min(in_units(sizes, unit), largest_size(max_nodes, unit))
    return size if size >= min_nodes else 0


def _preference(node: Node) -> tuple[object, ...]:
    """Sort key: survivors by rank, then pinned newcomers, then others by host."""
    previous, wanted = node.rank, node.spec.wanted_rank
    return (
        previous is None,
        previous or 0,
        wanted is None,
        wanted or 0,
        natural_key(node.spec.host),
        node.arrival,
    )


def order_by_segment(
    candidates: Sequence[Node], size: int, unit: int, last: Mapping[int, str]
) -> list[Node]:
    """Choose ``size`` candidates, a result of ``usable_size``; return them by node rank.

    ``last`` has the known segments of the last world, by node rank.
    """
    if not any(candidate.spec.segment for candidate in candidates):
        return order(candidates, size)
    pools: defaultdict[str, list[Node]] = defaultdict(list)
    for candidate in sorted(candidates, key=_preference):
        pools[candidate.spec.segment].append(candidate)
    units = _assigned(pools, size // unit, unit, last)
    slots: list[Node | None] = [None] * size
    rest: dict[str, Iterator[Node]] = {}
    first_ranks = {(segment, home): at * unit for at, (segment, home) in enumerate(units)}
    for segment, pool in pools.items():
        left = []
        for candidate in pool:
            rank = candidate.rank
            home = None if rank is None else first_ranks.get((segment, rank // unit))
            at = -1 if home is None or rank is None else home + rank % unit
            if at >= 0 and slots[at] is None:
                slots[at] = candidate
            else:
                left.append(candidate)
        rest[segment] = iter(left)
    return [
        slot if slot is not None else next(rest[units[rank // unit][0]])
        for rank, slot in enumerate(slots)
    ]


def _assigned(
    pools: Mapping[str, Sequence[Node]], count: int, unit: int, last: Mapping[int, str]
) -> list[tuple[str, int | None]]:
    room = {segment: len(pool) // unit for segment, pool in pools.items()}
    survivors = Counter(
        (candidate.rank // unit, segment)
        for segment, pool in pools.items()
        for candidate in pool
        if candidate.rank is not None
    )
    kept: dict[int, str] = {}
    for home, segment in sorted(survivors, key=lambda key: (-survivors[key], key)):
        if len(kept) < count and home not in kept and room[segment]:
            kept[home] = segment
            room[segment] -= 1
    units: list[tuple[str, int | None] | None] = [
        (kept[at], at) if at in kept else None for at in range(count)
    ]
    moving = [(segment, home) for home, segment in sorted(kept.items()) if home >= count]
    new = count - len(kept)
    for at in range(count):
        vacated = last.get(at * unit)
        if new and units[at] is None and vacated is not None and room.get(vacated):
            units[at] = (vacated, None)
            room[vacated] -= 1
            new -= 1
    others = iter([*moving, *((name, None) for name, left in room.items() for _ in range(left))])
    return [chosen if chosen is not None else next(others) for chosen in units]


def order(candidates: Sequence[Node], size: int) -> list[Node]:
    """Choose like ``order_by_segment``, for nodes without segments."""
    chosen = sorted(candidates, key=_preference)[:size]
    slots: list[Node | None] = [None] * size
    unplaced = chosen
    for rank_of in (_survivors_pin, _unpinned_rank, _pin, _previous_rank):
        rest = []
        for node in unplaced:
            rank = rank_of(node)
            if rank is not None and rank < size and slots[rank] is None:
                slots[rank] = node
            else:
                rest.append(node)
        unplaced = rest
    remaining = iter(unplaced)
    return [slot if slot is not None else next(remaining) for slot in slots]


def _survivors_pin(node: Node) -> int | None:
    return None if node.rank is None else node.spec.wanted_rank


def _unpinned_rank(node: Node) -> int | None:
    """A newcomer's pin does not take a rank from a survivor without a pin."""
    return node.rank if node.spec.wanted_rank is None else None


def _pin(node: Node) -> int | None:
    return node.spec.wanted_rank


def _previous_rank(node: Node) -> int | None:
    return node.rank


def form(base: Assignment, members: Sequence[Node]) -> list[Assignment]:
    """Return each member's part of a world."""
    role_sizes: Counter[str] = Counter()
    for node in members:
        role_sizes[node.spec.role] += node.spec.local_world_size
    offset, role_offsets = 0, Counter[str]()
    parts: list[Assignment] = []
    for node_rank, node in enumerate(members):
        role, workers = node.spec.role, node.spec.local_world_size
        parts.append(
            replace(
                base,
                node_rank=node_rank,
                rank_offset=offset,
                role_rank_offset=role_offsets[role],
                role_world_size=role_sizes[role],
                successor=members[(node_rank + 1) % len(members)].spec.node_id,
            )
        )
        offset += workers
        role_offsets[role] += workers
    return parts
