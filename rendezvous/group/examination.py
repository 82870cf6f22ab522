"""An examination of nodes, as the master sees it: steps, answers and a conclusion.

What is measured, which nodes meet and which is at fault is decided behind it (``checks.ladder``).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from ..protocol.check_messages import CheckSpec


class CheckStep(Struct, frozen=True):
    """What the nodes of an examination do next, all meetings at once."""

    phase: str
    meetings: tuple[tuple[str, ...], ...]
    """By identity; the first node of each hosts the store of its meeting."""
    limit_s: float
    """How long it may take: no longer than what is left for all."""
    progress: str = ""
    """How far the checks are, for people."""


class NodeFinding(Struct, frozen=True):
    """What an examination found of one node."""

    exit_code: int
    """What its agent is to end with; 0: it stays."""
    sentence: str
    """The reason, or a remark; empty where there is nothing to say."""
    has_met: bool = False
    """It has passed together with another node."""


class Conclusion(Struct, frozen=True):
    """What an examination found of all nodes."""

    findings: Mapping[str, NodeFinding]
    """By identity."""
    bad_links: tuple[tuple[str, str], ...]
    """Nodes that stay, but cannot be in one world together."""
    sentence: str
    report: str
    """All of it, as JSON."""


class Examination(Protocol):
    """One way up the ladder."""

    def next_step(self, remaining_s: float) -> CheckStep | None:
        """Return what is to be done next; None when there is a conclusion.

        Args:
            remaining_s: what is left of the time for all steps, above 0.
        """

    def answered(self, node_id: str, report: str, took_s: float) -> None:
        """Take what a node says of the present step, and how many seconds it took to."""

    def silent(self, node_id: str, why: str) -> None:
        """A node has not answered in the present step: that is a failure of it."""

    def lost(self, node_id: str) -> None:
        """A node is gone: that says nothing of those that it was to meet."""

    def conclude(self) -> Conclusion:
        """Return the conclusion; before the last step, what is not yet known has failed."""


Examiner = Callable[[CheckSpec, Sequence[str], Sequence[str]], Examination]
"""Begins an examination of nodes, the second sequence of which have passed before."""
