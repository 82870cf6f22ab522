"""The world: which nodes are in a round and with which ranks. Pure functions.

Rules (docs/reference/faults.md): a survivor keeps its node rank whenever the world's size allows, a
replacement takes the vacant rank, ``--node-rank`` pins a rank that no survivor without a pin has,
and of newcomers the order is that of their hosts, numbers in names compared as numbers, then of
their arrival. Where nodes have segments, ``segments`` decides on ranks, by the same preference.
"""

import re
from collections import Counter
from collections.abc import Sequence

from ...values import replace
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
    """Return the number of nodes beyond which no world grows."""
    return max_nodes // unit * unit


def in_units(sizes: Sizes, unit: int) -> int:
    """Return how many nodes are in whole units of one segment each."""
    if unit == 1:
        return sizes.total()
    return sum(size // unit for size in sizes.values()) * unit


def usable_size(sizes: Sizes, min_nodes: int, max_nodes: int, unit: int) -> int:
    """Return how many of so many nodes of each segment a world takes; 0 when they are too few.

    As many whole units of one segment each as there are, and as ``max_nodes`` allows.
    """
    size = min(in_units(sizes, unit), largest_size(max_nodes, unit))
    return size if size >= min_nodes else 0


def preference(node: Node) -> tuple[object, ...]:
    """Return a sort key: survivors by rank, then pinned newcomers, then others by host."""
    previous, wanted = node.rank, node.spec.wanted_rank
    return (
        previous is None,
        previous or 0,
        wanted is None,
        wanted or 0,
        natural_key(node.spec.host),
        node.arrival,
    )


def order(candidates: Sequence[Node], size: int) -> list[Node]:
    """Choose ``size`` of the candidates and return them by node rank."""
    chosen = sorted(candidates, key=preference)[:size]
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
    """A newcomer's pin takes no rank from a survivor that has none."""
    return node.rank if node.spec.wanted_rank is None else None


def _pin(node: Node) -> int | None:
    return node.spec.wanted_rank


def _previous_rank(node: Node) -> int | None:
    return node.rank


def form(base: Assignment, members: Sequence[Node]) -> list[Assignment]:
    """Return the part of a world that each member gets.

    Args:
        base: has what is the same for all.
        members: by node rank.
    """
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
