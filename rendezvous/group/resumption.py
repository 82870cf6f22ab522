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

    A step of which each node has its own shares is taken before a newer one that is replicated and
    of which some node has none: that node is sent it.

    Args:
        world: of the next round.
        offered: what each of its nodes holds, by node rank.
        line: the last round.
    """
    held = [
        {one.step: one for one in snapshots.held}
        if snapshots is not None and (snapshots.round, snapshots.formed_by) == line
        else {}
        for snapshots in offered
    ]
    steps = sorted({step for of_node in held for step in of_node}, reverse=True)
    for step in steps:
        if all(
            _is_own(of_node.get(step), world, member.rank_offset)
            for of_node, member in zip(held, world.members, strict=True)
        ):
            return Resumption(step, *line)
    for step in steps:
        if all(of_node[step].is_replicated for of_node in held if step in of_node):
            return Resumption(step, *line)
    return None


def _is_own(snapshot: Snapshot | None, world: World, rank_offset: int) -> bool:
    """Return whether a node's shares are those of the ranks that it has in the next round."""
    return snapshot is not None and (snapshot.world_size, snapshot.rank_offset) == (
        world.world_size,
        rank_offset,
    )
