"""The world: which nodes are in a round and with which ranks. Pure functions.

Rules (docs/reference/faults.md): a survivor keeps its node rank whenever the world's size allows, a
replacement takes the vacant rank, ``--node-rank`` pins a rank that no survivor without a pin has,
and of newcomers the order is that of their hosts, numbers in names compared as numbers, then of
their arrival. Where nodes have segments, ``segments`` decides on ranks, by the same preference.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Sequence

from ...values import dataclass, replace
from ..protocol.messages import Assignment, NodeSpec
from ..protocol.offer import Offer

Sizes = Counter[str]
"""The number of nodes of each segment."""

_DIGITS = re.compile(r"([0-9]+)")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node that could be a member of the next world."""

    spec: NodeSpec
    offer: Offer
    arrival: int
    """Position in the order of first arrivals."""
    previous_rank: int | None
    """Its node rank in the last world, or the one of the incarnation it replaces."""


@dataclass(frozen=True, slots=True)
class Member:
    """A node in a world. Ranks are those of its local rank 0."""

    node_id: str
    node_rank: int
    rank_offset: int
    role_rank_offset: int
    role_world_size: int


@dataclass(frozen=True, slots=True)
class World:
    """The immutable outcome of a round; ``members[i]`` has node rank ``i``."""

    round: int
    members: tuple[Member, ...]
    world_size: int
    master: Offer

    def successor(self, member: Member) -> Member:
        """Return the member with the next node rank; of the last one, the first."""
        return self.members[(member.node_rank + 1) % len(self.members)]

    def assignment(self, member: Member, base: Assignment) -> Assignment:
        """Return a member's share of the world; ``base`` has what is the same for all."""
        return replace(
            base,
            node_rank=member.node_rank,
            rank_offset=member.rank_offset,
            role_rank_offset=member.role_rank_offset,
            role_world_size=member.role_world_size,
            successor=self.successor(member).node_id,
        )


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


def preference(candidate: Candidate) -> tuple[object, ...]:
    """Return a sort key: survivors by rank, then pinned newcomers, then others by host."""
    previous, wanted = candidate.previous_rank, candidate.spec.wanted_rank
    return (
        previous is None,
        previous or 0,
        wanted is None,
        wanted or 0,
        natural_key(candidate.spec.host),
        candidate.arrival,
    )


def order(candidates: Sequence[Candidate], size: int) -> list[Candidate]:
    """Choose ``size`` of the candidates and return them by node rank."""
    chosen = sorted(candidates, key=preference)[:size]
    slots: list[Candidate | None] = [None] * size
    unplaced = chosen
    for rank_of in (_survivors_pin, _unpinned_rank, _pin, _previous_rank):
        rest = []
        for candidate in unplaced:
            rank = rank_of(candidate)
            if rank is not None and rank < size and slots[rank] is None:
                slots[rank] = candidate
            else:
                rest.append(candidate)
        unplaced = rest
    remaining = iter(unplaced)
    return [slot if slot is not None else next(remaining) for slot in slots]


def _survivors_pin(candidate: Candidate) -> int | None:
    return None if candidate.previous_rank is None else candidate.spec.wanted_rank


def _unpinned_rank(candidate: Candidate) -> int | None:
    """A newcomer's pin takes no rank from a survivor that has none."""
    return candidate.previous_rank if candidate.spec.wanted_rank is None else None


def _pin(candidate: Candidate) -> int | None:
    return candidate.spec.wanted_rank


def _previous_rank(candidate: Candidate) -> int | None:
    return candidate.previous_rank


def form(round_number: int, ordered: Sequence[Candidate]) -> World:
    """Return the world of nodes that are already ordered by node rank."""
    role_sizes: dict[str, int] = defaultdict(int)
    placed: list[tuple[Candidate, int, int]] = []
    offset = 0
    for candidate in ordered:
        spec = candidate.spec
        placed.append((candidate, offset, role_sizes[spec.role]))
        offset += spec.local_world_size
        role_sizes[spec.role] += spec.local_world_size
    members = tuple(
        Member(
            node_id=candidate.spec.node_id,
            node_rank=node_rank,
            rank_offset=rank_offset,
            role_rank_offset=role_rank_offset,
            role_world_size=role_sizes[candidate.spec.role],
        )
        for node_rank, (candidate, rank_offset, role_rank_offset) in enumerate(placed)
    )
    return World(round_number, members, offset, ordered[0].offer)
