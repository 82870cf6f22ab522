"""Which snapshots the ranks of the next round resume from, or nodes save at the end. Pure."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ..protocol.offer import Resumption, Saving, Snapshot, Snapshots
from .world import World


class Line(NamedTuple):
    """A round. What is left of another one may be the state of a step that was done again since."""

    round: int
    formed_by: str


class Holder(NamedTuple):
    """A node, and what it has when the job ends."""

    node_id: str
    workers: int
    snapshots: Snapshots | None


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


def savings(nodes: Iterable[Holder], line: Line) -> dict[str, Saving]:
    """Return what each node saves when the job ends without success, by node.

    It is the newest step of which every rank's share is there. A node saves its own; those of nodes
    that are lost come from a replica. What is the same on all ranks is no business of the master.

    Args:
        nodes: those that are there.
        line: the last round.
    """
    own: dict[tuple[int, int], dict[int, str]] = {}
    replicas: dict[tuple[int, int], dict[int, str]] = {}
    alike: set[int] = set()
    for node_id, workers, there in nodes:
        if there is None or (there.round, there.formed_by) != line:
            continue
        for one in there.held:
            ranks = range(one.rank_offset, one.rank_offset + workers)
            own.setdefault((one.step, one.world_size), {}).update(dict.fromkeys(ranks, node_id))
            if one.is_replicated:
                alike.add(one.step)
        for replica in there.replicas:
            held = replicas.setdefault((replica.step, replica.world_size), {})
            held.update(dict.fromkeys(replica.ranks, node_id))
    for step, size in sorted(own.keys() | replicas.keys(), reverse=True):
        holders = replicas.get((step, size), {}) | own.get((step, size), {})
        of_nodes: dict[str, list[int]] = {}
        for rank in sorted(rank for rank in holders if rank < size):
            of_nodes.setdefault(holders[rank], []).append(rank)
        if sum(map(len, of_nodes.values())) == size > 0 and step not in alike:
            return {node_id: Saving(step, tuple(ranks)) for node_id, ranks in of_nodes.items()}
    return {}


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
