"""The gate between the nodes that are ready and a world: which may pass, and what it takes. Pure.

The rounds are given one: ``Gate`` itself where a job has no checks, ``checks.Checks`` where it has.
"""

from collections.abc import Sequence

from ...values import dataclass
from ..policy.postmortem import Postmortem
from ..protocol.check_messages import CheckResult
from ..protocol.messages import Claim, NodeSpec
from .roster import Node


@dataclass(frozen=True, slots=True)
class Findings:
    """What an examination that is over means for the next world."""

    sentence: str
    ends_job: bool
    """The job was to check its nodes, and nothing else."""
    costs_nodes: bool
    """Nodes were sent away, or cannot be in one world with another."""


class Gate:
    """What the rounds ask before they form a world, and tell when one is over.

    This one lets every node pass, and remembers nothing.
    """

    def may_join(self, ready: int) -> int:
        """Return how many of that many ready nodes may turn out to be fit for one world."""
        return ready

    def fit(self, ready: Sequence[Node]) -> list[Node]:
        """Return which of the ready nodes are known to be fit for one world."""
        return list(ready)

    def must_examine(self, size: int) -> bool:  # noqa: ARG002 - none does
        """Return whether an examination comes before a world of that many nodes."""
        return False

    def begin(self, now: float) -> None:
        """Begin to examine all nodes that are ready."""

    def advance(self, now: float) -> Findings | None:
        """Go on with the examination; return what was found, once, when it is over."""

    def deadline(self) -> float | None:
        """Return when the examination has something to do if nothing happens."""

    def give_up(self) -> None:
        """Forget the examination: there is no use for what it would find."""

    def result(self, node: Node, result: CheckResult, now: float) -> None:
        """A node has carried out an order."""

    def repeat_order(self, node: Node) -> None:
        """A node is back: the order, or the answer to it, may be lost."""

    def admit(self, node: Node, claim: Claim | None) -> None:
        """A node has joined: take over what it has passed already."""

    def tell_again(self, link: int, spec: NodeSpec) -> bool:  # noqa: ARG002 - nothing was found
        """Tell a node on a new stream what was found of it; return whether it has to go."""
        return False

    def round_ended(self, postmortem: Postmortem) -> None:
        """A round is over: its failures may cast doubt on nodes."""

    def lost(self, node_id: str) -> None:
        """A node was lost: there is doubt about it, should it come back."""

    def forget(self, node_id: str) -> None:
        """A node is gone, for whatever reason."""
