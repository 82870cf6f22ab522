"""Selects the snapshots to resume from in the next round, or to save at the end.

A snapshot is identified by its owner and its step, and ordered by its generation: a second training
in the same job has smaller steps than the first.
"""

from collections.abc import Sequence
from typing import NamedTuple

from ..protocol.offer import Replica, Resumption, Saving, Snapshot, Snapshots
from .roster import Node


class Line(NamedTuple):
    """A round. A snapshot of another round may be the state of a step that was repeated since."""

    round: int
    formed_by: str


class State(NamedTuple):
    """The state of one training after one step."""

    owner: int
    step: int


_Shares = dict[tuple[State, int], dict[int, str]]
"""Node that holds the shard of each rank, by state and world size."""


def resumption(members: Sequence[Node], line: Line) -> Resumption | None:
    """Return the newest state with all shards available; None if there is none.

    A state of which each node has its own shards is preferred to a newer one that some node must
    receive: a replicated state from any node, a sharded one from the nodes that hold replicas.
    """
    held = [_held(node, line) for node in members]
    order = _order(members, line)
    size = sum(node.spec.local_world_size for node in members)
    own: set[State] | None = None
    offset = 0
    for node, of_node in zip(members, held, strict=True):
        place = size, offset
        fit = {
            state for state, one in of_node.items() if (one.world_size, one.rank_offset) == place
        }
        own = fit if own is None else own & fit
        offset += node.spec.local_world_size
    shares = _shares(members, line)

    def is_available(state: State) -> bool:
        alike = [of_node[state].is_replicated for of_node in held if state in of_node]
        is_covered = shares.get((state, size), {}).keys() >= set(range(size))
        return (bool(alike) and all(alike)) or is_covered

    found = next((state for state in order if state in (own or ())), None)
    if found is None:
        found = next((state for state in order if is_available(state)), None)
    return None if found is None else Resumption(found.step, *line, found.owner)


def savings(nodes: Sequence[Node], line: Line) -> dict[str, Saving]:
    """Return the shards that each node saves when the job ends without success, by node.

    They belong to the newest state with all shards available. A node saves its own shards; a
    replica provides those of lost nodes. A replicated state is not assigned: one of its nodes saves
    it.
    """
    held = [one for node in nodes for one in _left(node, line).held]
    replicated = {State(one.owner, one.step) for one in held if one.is_replicated}
    shares = _shares(nodes, line)
    for state in _order(nodes, line):
        if state in replicated:
            return {}
        for size in sorted({size for of, size in shares if of == state}, reverse=True):
            of_nodes: dict[str, list[int]] = {}
            for rank, holder in sorted(shares[state, size].items()):
                if rank < size:
                    of_nodes.setdefault(holder, []).append(rank)
            if sum(map(len, of_nodes.values())) == size > 0:
                return {
                    node_id: Saving(state.step, tuple(ranks), state.owner)
                    for node_id, ranks in of_nodes.items()
                }
    return {}


def _left(node: Node, line: Line) -> Snapshots:
    snapshots = node.offer.snapshots
    is_of_it = snapshots is not None and (snapshots.round, snapshots.formed_by) == line
    return snapshots if snapshots is not None and is_of_it else Snapshots(*line, ())


def _held(node: Node, line: Line) -> dict[State, Snapshot]:
    return {State(one.owner, one.step): one for one in _left(node, line).held}


def _order(nodes: Sequence[Node], line: Line) -> list[State]:
    generations: dict[State, int] = {}
    for node in nodes:
        left = _left(node, line)
        found: tuple[Snapshot | Replica, ...] = (*left.held, *left.replicas)
        for one in found:
            state = State(one.owner, one.step)
            generations[state] = max(generations.get(state, 0), one.generation)
    return sorted(generations, key=lambda state: (generations[state], state.step), reverse=True)


def _shares(nodes: Sequence[Node], line: Line) -> _Shares:
    """Return the holders of all shards: a rank's own node is preferred to one with a replica."""
    shares: _Shares = {}
    for node in nodes:
        for replica in _left(node, line).replicas:
            key = State(replica.owner, replica.step), replica.world_size
            ranks = dict.fromkeys(replica.ranks, node.spec.node_id)
            shares.setdefault(key, {}).update(ranks)
    for node in nodes:
        for state, one in _held(node, line).items():
            own = range(one.rank_offset, one.rank_offset + node.spec.local_world_size)
            ranks = dict.fromkeys(own, node.spec.node_id)
            shares.setdefault((state, one.world_size), {}).update(ranks)
    return shares
