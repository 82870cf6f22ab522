"""Segments: which nodes are near each other, and worlds of whole units of near nodes. Pure.

A segment is an NVLink domain, a rack or a block of Slurm: nodes with the same label. With
``--node-unit N``, each N consecutive node ranks are of one segment. In a first world the units of
a segment are neighbours. Later, survivors keep their ranks as long as their unit is whole, and a
vacant rank goes to a node of its segment if there is one. Nodes without a label are of one segment
like all others; where no node has one, ``world.order`` decides alone.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from .roster import Node
from .world import order, preference


def order_by_segment(
    candidates: Sequence[Node], size: int, unit: int, last: Mapping[int, str]
) -> list[Node]:
    """Choose ``size`` of the candidates and return them by node rank.

    Args:
        candidates: the nodes that could be in the world.
        size: a result of ``usable_size`` for them.
        unit: ``--node-unit``.
        last: the segments of the last world by node rank, where they are known.
    """
    if not any(candidate.spec.segment for candidate in candidates):
        return order(candidates, size)
    pools: defaultdict[str, list[Node]] = defaultdict(list)
    for candidate in sorted(candidates, key=preference):
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
    """Return the segment of each unit of the world, and which unit of the last one it continues."""
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
