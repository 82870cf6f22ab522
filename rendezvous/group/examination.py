"""An examination of nodes from the master's view: steps, answers and a conclusion.

``checks.ladder`` implements it: measurements, meetings and faulty nodes.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from ..protocol.check_messages import CheckSpec


class CheckStep(Struct, frozen=True):
    """The next step of the nodes of an examination; all meetings take place simultaneously."""

    phase: str
    meetings: tuple[tuple[str, ...], ...]
    """Node identities; the first node of each meeting hosts its store."""
    limit_s: float
    """Time limit, at most the time that is left for all steps."""
    progress: str = ""
    """Progress of the checks, for display."""


class NodeFinding(Struct, frozen=True):
    """Findings about one node."""

    exit_code: int
    """Exit code for its agent; 0 if it stays."""
    sentence: str
    """Reason or remark; can be empty."""
    has_met: bool = False
    """Whether it has passed together with another node."""


class Conclusion(Struct, frozen=True):
    """Findings about all nodes."""

    findings: Mapping[str, NodeFinding]
    """Findings by node identity."""
    bad_links: tuple[tuple[str, str], ...]
    """Nodes that stay, but cannot be in one world together."""
    sentence: str
    report: str
    """Complete findings, as JSON."""


class Examination(Protocol):
    """One pass through the steps of the checks."""

    def next_step(self, remaining_s: float) -> CheckStep | None:
        """Return the next step, given the time left (> 0); None if there is a conclusion."""

    def answered(self, node_id: str, report: str, took_s: float) -> None:
        """Process a node's report on the current step, and the seconds that it took."""

    def silent(self, node_id: str, why: str) -> None:
        """Record that a node has not answered in the current step, which counts as its failure."""

    def lost(self, node_id: str) -> None:
        """Record that a node is gone, which implies nothing about the nodes that it was to meet."""

    def conclude(self) -> Conclusion:
        """Return the conclusion; before the last step, unknown results count as failures."""


Examiner = Callable[[CheckSpec, Sequence[str], Sequence[str]], Examination]
"""Starts an examination of the nodes in the first sequence; those in the second have passed
before."""
