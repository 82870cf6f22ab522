"""What NCCL has recorded of the collectives of one rank, in short. Values only."""

from typing import Annotated

from msgspec import Struct

from .bounds import Count, Length, Ranks

GROUPS_MAX = 64
GROUPS_OF_NODE_MAX = 512
"""All groups of all ranks of a node: at most 150 kB in a message."""
TEXT_MAX = 100
_Text = Annotated[str, Length(TEXT_MAX)]


class GroupCollectives(Struct, frozen=True):
    """One process group, as one of its ranks has recorded it."""

    group: _Text
    """Its name and description in torch, the same on all its ranks."""
    ranks: _Text
    """Its ranks: ``0-7``, ``0-56/8`` (every eighth), ``0,3,5``; ``#`` and a digest: too many."""
    entered: Count
    """The sequence number of the last collective that this rank has entered; 0: none."""
    pending: Count
    """That of the first one that is not completed here; 0: all are."""
    operation: _Text
    """The pending collective, else the last one; with its size where all ranks have the same."""


class RankCollectives(Struct, frozen=True):
    """The process groups of one rank."""

    groups: Annotated[tuple[GroupCollectives, ...], Length(GROUPS_MAX)] = ()
    peers: Ranks = ()
    """The ranks with which it has a ``send`` or ``recv`` that is not completed."""
    is_whole: bool = False
    """Whether all collectives of this process are recorded: a group that is missing has none."""
    unseen: _Text = ""
    """Why this rank may wait for others although nothing pending is recorded; empty: it cannot."""
