"""Which snapshots the ranks of the next round resume from, or nodes save at the end. Pure."""

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from ..protocol.offer import Resumption, Saving, Snapshots
from .roster import Node


class Line(NamedTuple):
    """A round. What is left of another one may be the state of a step that was done again since."""

    round: int
    formed_by: str


def resumption(members: Sequence[Node], line: Line) -> Resumption | None:
    """Return the newest step of which every share is there; None: there is none.

    A step of which each node has its own shares is taken before a newer one of which some node is
    sent its shares: what is the same on all ranks by any node, else by those that hold replicas.

    Args:
        members: of the next round, by node rank.
        line: the last round.
    """
    there = [_left(node, line) for node in members]
    held = [{one.step: one for one in snapshots.held} for snapshots in there]
    known = {step for of_node in held for step in of_node}
    known |= {replica.step for snapshots in there for replica in snapshots.replicas}
    steps = sorted(known, reverse=True)
    size = sum(node.spec.local_world_size for node in members)
    own: set[int] | None = None
    offset = 0
    for node, of_node in zip(members, held, strict=True):
        place = size, offset
        fit = {n for n, one in of_node.items() if (one.world_size, one.rank_offset) == place}
        own = fit if own is None else own & fit
        offset += node.spec.local_world_size
    if own:
        return Resumption(max(own), *line)
    shares = _shares(members, line)
    for step in steps:
        alike = [of_node[step].is_replicated for of_node in held if step in of_node]
        if (alike and all(alike)) or shares[step, size].keys() >= set(range(size)):
            return Resumption(step, *line)
    return None


def savings(nodes: Sequence[Node], line: Line) -> dict[str, Saving]:
    """Return what each node saves when the job ends without success, by node.

    It is the newest step of which every rank's share is there. A node saves its own; those of nodes
    that are lost come from a replica. What is the same on all ranks is no business of the master.

    Args:
        nodes: those that are there.
        line: the last round.
    """
    held = [one for node in nodes for one in _left(node, line).held]
    alike = {one.step for one in held if one.is_replicated}
    for (step, size), holders in sorted(_shares(nodes, line).items(), reverse=True):
        of_nodes: dict[str, list[int]] = {}
        for rank in sorted(rank for rank in holders if rank < size):
            of_nodes.setdefault(holders[rank], []).append(rank)
        if sum(map(len, of_nodes.values())) == size > 0 and step not in alike:
            return {node_id: Saving(step, tuple(ranks)) for node_id, ranks in of_nodes.items()}
    return {}


def _left(node: Node, line: Line) -> Snapshots:
    """Return the snapshots that a node has of a round."""
    snapshots = node.offer.snapshots
    is_of_it = snapshots is not None and (snapshots.round, snapshots.formed_by) == line
    return snapshots if snapshots is not None and is_of_it else Snapshots(*line, ())


def _shares(nodes: Sequence[Node], line: Line) -> defaultdict[tuple[int, int], dict[int, str]]:
    """Return by step and world size which node has each rank's share, its own before a replica."""
    shares: defaultdict[tuple[int, int], dict[int, str]] = defaultdict(dict)
    there = [(node, _left(node, line)) for node in nodes]
    for node, snapshots in there:
        for replica in snapshots.replicas:
            ranks = dict.fromkeys(replica.ranks, node.spec.node_id)
            shares[replica.step, replica.world_size].update(ranks)
    for node, snapshots in there:
        for one in snapshots.held:
            own = range(one.rank_offset, one.rank_offset + node.spec.local_world_size)
            shares[one.step, one.world_size].update(dict.fromkeys(own, node.spec.node_id))
    return shares
