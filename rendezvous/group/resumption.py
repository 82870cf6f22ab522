"""Which snapshots the ranks of the next round resume from. Pure."""

from collections.abc import Sequence
from typing import NamedTuple

from ..protocol.offer import Resumption, Snapshot, Snapshots
from .world import World


class Line(NamedTuple):
    """A round. What is left of another one may be the state of a step that was done again since."""

    round: int
    formed_by: str


def resumption(world: World, offered: Sequence[Snapshots | None], line: Line) -> Resumption | None:
    """Return the newest step of which every share is there; None: there is none.

    A step of which each node has its own shares is taken before a newer one of which some node is
    sent its shares: what is the same on all ranks by any node, else by those that hold replicas.

    Args:
        world: of the next round.
        offered: what each of its nodes holds, by node rank.
        line: the last round.
    """
    there = [
        snapshots
        if snapshots is not None and (snapshots.round, snapshots.formed_by) == line
        else Snapshots(*line, ())
        for snapshots in offered
    ]
    held = [{one.step: one for one in snapshots.held} for snapshots in there]
    known = {step for of_node in held for step in of_node}
    known |= {replica.step for snapshots in there for replica in snapshots.replicas}
    steps = sorted(known, reverse=True)
    for step in steps:
        if all(
            _is_own(of_node.get(step), world, member.rank_offset)
            for of_node, member in zip(held, world.members, strict=True)
        ):
            return Resumption(step, *line)
    for step in steps:
        shares = [of_node[step] for of_node in held if step in of_node]
        is_replicated = bool(shares) and all(share.is_replicated for share in shares)
        if is_replicated or _ranks_held(world, there, step) >= set(range(world.world_size)):
            return Resumption(step, *line)
    return None


def _is_own(snapshot: Snapshot | None, world: World, rank_offset: int) -> bool:
    """Return whether a node's shares are those of the ranks that it has in the next round."""
    return snapshot is not None and (snapshot.world_size, snapshot.rank_offset) == (
        world.world_size,
        rank_offset,
    )


def _ranks_held(world: World, there: Sequence[Snapshots], step: int) -> set[int]:
    """Return the ranks whose shares of a step any node has, its own or another's."""
    ends = [member.rank_offset for member in world.members[1:]] + [world.world_size]
    ranks: set[int] = set()
    for snapshots, member, end in zip(there, world.members, ends, strict=True):
        for one in snapshots.held:
            if (one.step, one.world_size) == (step, world.world_size):
                ranks.update(range(one.rank_offset, one.rank_offset + end - member.rank_offset))
        for replica in snapshots.replicas:
            if (replica.step, replica.world_size) == (step, world.world_size):
                ranks.update(replica.ranks)
    return ranks
