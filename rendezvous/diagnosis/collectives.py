"""Which ranks others wait for, according to NCCL's records. No I/O, no clock.

A rank waits in a collective that it has entered and that is not completed there, for the ranks of
the group that have not entered it. A collective has the same number on all ranks of its group. The
result is the first of these that applies:

1. Ranks have entered different operations with the same number: both sides are named.
2. Ranks for which others wait, and which wait in no collective themselves, hang.
3. Others wait for ranks without a complete record: the cause is unknown.
4. All ranks wait, possibly through others, for a collective that all of its ranks have entered: the
   network, or a GPU; no rank is named.
5. Ranks wait for each other in several groups.

A ``send`` or ``recv`` has two ranks; both have entered it if each waits for the other.

A rank that may wait in an operation that its recorder does not show (``RankCollectives.unseen``) is
treated as one without a record: its own waits count, but it is never reported as hanging.
"""

import enum
import re
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet

from msgspec import Struct

from ..protocol.collectives import GroupCollectives
from ..protocol.stacks import RankStack


class Found(enum.Enum):
    """Result of the records."""

    DIFFERENT = 1
    """Ranks have entered different operations with the same number."""
    MISSING = 2
    """Some ranks have not entered a collective, and do not wait in one."""
    UNRECORDED = 3
    """Ranks wait for ranks without a complete record."""
    IN_FLIGHT = 4
    """All ranks have entered a collective that does not complete."""
    CROSSED = 5
    """Ranks wait for each other in several groups."""


class Evidence(Struct, frozen=True):
    """The result."""

    found: Found
    ranks: tuple[int, ...]
    """The smaller side, the missing ranks, …, as described at ``found``."""
    waiting: tuple[int, ...]
    """Ranks that wait in ``operation``."""
    operation: str
    """As text: ``collective 41 (all_reduce Float[4]) of group 0:default_pg``."""
    other: str = ""
    """Operation of ``ranks``, if it differs."""


class _Wait(Struct, frozen=True):
    rank: int
    missing: frozenset[int]
    """Ranks that have not entered it."""
    operation: str
    order: int = 0
    """Its number; the first of several operations counts."""


_Group = Mapping[int, GroupCollectives]
"""Records of the ranks of one process group."""
_RUN = re.compile(r"([0-9]{1,9})-([0-9]{1,9})(?:/([0-9]{1,9}))?$")


def examine(stacks: Sequence[RankStack]) -> Evidence | None:
    """Return the result of all ranks' records; None if nothing is pending or recorded."""
    world = frozenset(stack.rank for stack in stacks)
    known = {stack.rank: stack.collectives for stack in stacks if stack.collectives is not None}
    groups: dict[tuple[str, str], dict[int, GroupCollectives]] = {}
    for rank, recorded in known.items():
        for state in recorded.groups:
            groups.setdefault((state.group, state.ranks), {})[rank] = state
    waits: list[_Wait] = []
    unknown: set[int] = set()
    for (_, ranks), states in groups.items():
        if (different := _different(states)) is not None:
            return different
        entered = {rank: state.entered for rank, state in states.items()}
        others = _members(ranks) & world - states.keys()
        unknown |= {rank for rank in others if rank not in known or not known[rank].is_whole}
        waits += _waits(states, entered | dict.fromkeys(others, 0))
    peers = {rank: frozenset(recorded.peers) & world for rank, recorded in known.items()}
    waits += (
        _Wait(rank, frozenset(p for p in waited if rank not in peers.get(p, ())), "send or recv")
        for rank, waited in peers.items()
        if waited
    )
    unknown |= {rank for rank, recorded in known.items() if recorded.unseen}
    return _concluded(waits, known.keys() - unknown)


def _waits(states: _Group, entered: Mapping[int, int]) -> Iterator[_Wait]:
    for rank, state in states.items():
        if state.pending:
            missing = frozenset(r for r, number in entered.items() if number < state.pending)
            yield _Wait(rank, missing, _words(state), state.pending)


def _different(states: _Group) -> Evidence | None:
    sides: dict[int, dict[str, list[int]]] = {}
    for rank, state in sorted(states.items()):
        if state.pending:
            sides.setdefault(state.pending, {}).setdefault(state.operation, []).append(rank)
    for by_operation in sides.values():
        if len(by_operation) > 1:
            fewest, *_, most = sorted(by_operation.values(), key=lambda ranks: (len(ranks), ranks))
            words, other = _words(states[most[0]]), _words(states[fewest[0]])
            return Evidence(Found.DIFFERENT, tuple(fewest), tuple(most), words, other)
    return None


def _concluded(waits: Sequence[_Wait], known: AbstractSet[int]) -> Evidence | None:
    if not waits:
        return None
    waiting = frozenset(wait.rank for wait in waits)
    awaited = frozenset(rank for wait in waits for rank in wait.missing)
    if missing := (awaited - waiting) & known:
        return _evidence(Found.MISSING, missing, waits)
    if absent := awaited - known:
        return _evidence(Found.UNRECORDED, absent, waits)
    in_flight = frozenset(wait.rank for wait in waits if not wait.missing)
    explained = in_flight
    while more := {w.rank for w in waits if w.missing & explained} - explained:
        explained |= more
    if explained == waiting:
        flying = [wait for wait in waits if not wait.missing]
        return _evidence(Found.IN_FLIGHT, in_flight, flying)
    return _evidence(Found.CROSSED, awaited - explained, waits)


def _evidence(found: Found, ranks: frozenset[int], waits: Sequence[_Wait]) -> Evidence:
    of_these = [w for w in waits if found is Found.IN_FLIGHT or w.missing & ranks]
    first = min(of_these, key=lambda wait: (wait.order, wait.rank))
    waiting = {wait.rank for wait in of_these}
    return Evidence(found, tuple(sorted(ranks)), tuple(sorted(waiting)), first.operation)


def _words(state: GroupCollectives) -> str:
    return f"collective {state.pending} ({state.operation}) of group {state.group}"


def _members(ranks: str) -> frozenset[int]:
    if run := _RUN.match(ranks):
        low, high, step = int(run[1]), int(run[2]), int(run[3] or 1)
        # A world has at most as many ranks as reports; the string can be arbitrary.
        return frozenset(range(low, min(high, low + 1_000_000) + 1, max(1, step)))
    return frozenset(int(rank) for rank in ranks.split(",") if rank.isdecimal())
