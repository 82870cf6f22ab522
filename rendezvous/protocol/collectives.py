"""Summary of NCCL's records of the collectives of one rank."""

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
    """Name and description in torch, the same on all its ranks."""
    ranks: _Text
    """``0-7``, ``0-56/8`` (every eighth), ``0,3,5``; ``#`` and a digest if they are too many."""
    entered: Count
    """Sequence number of the last collective that this rank has entered; 0 if none."""
    pending: Count
    """Sequence number of the first one that is not completed here; 0 if all are."""
    operation: _Text
    """The pending collective, else the last one; with its size if it is the same on all ranks."""


class RankCollectives(Struct, frozen=True):
    """The process groups of one rank."""

    groups: Annotated[tuple[GroupCollectives, ...], Length(GROUPS_MAX)] = ()
    peers: Ranks = ()
    """Ranks with which it has an incomplete ``send`` or ``recv``."""
    is_whole: bool = False
    """Whether all collectives of this process are recorded, so that a missing group has none."""
    unseen: _Text = ""
    """Why this rank may wait for others although nothing pending is recorded; empty if it
    cannot."""
