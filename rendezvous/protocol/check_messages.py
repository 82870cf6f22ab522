"""The messages about checks between nodes and the master, plain values like ``messages``."""

from typing import Annotated

from ... import defaults
from ...values import dataclass
from .bounds import Called, Count, Name, Real, Report, Rules, Seconds
from .offer import Offer

_Factor = Annotated[float, Real(1e9)]


@dataclass(frozen=True, slots=True)
class CheckSpec:
    """How nodes are checked before they enter a world (docs/reference/checks.md)."""

    level: Annotated[Name, Called("--check-level")] = defaults.CHECK_LEVEL
    """Light or full."""
    timeout_s: Annotated[Seconds, Called("--check-timeout in seconds")] = 0.0
    """For all phases together, in seconds; 0: the default, which is longer with GPUs."""
    on_restart: Annotated[Name, Called("--check-on-restart")] = "node"
    """Never, node or always."""
    is_binding: Annotated[bool, Called("--check-mode enforce")] = True
    """Whether a node that fails is rejected; false with ``--check-mode warn``."""
    straggler_threshold: _Factor = defaults.STRAGGLER_THRESHOLD
    exclude_straggler: bool = False
    only: Annotated[bool, Called("ft-run check")] = False
    """Whether the job consists of the checks."""
    is_strict: Annotated[bool, Called("--strict")] = False
    """Whether a warning changes the exit status; with ``only``."""
    minimums: Annotated[Rules, Called("the list of minimums (--min-..., --max-...)")] = ()
    """Minimums of metrics, e.g. ``compute_tflops=2.5``."""
    compute_threshold: Annotated[_Factor, Called("--compute-straggler-threshold")] = 0.0
    """0: ``straggler_threshold``."""


@dataclass(frozen=True, slots=True)
class CheckOrder:
    """Run this check now, together with the other nodes of a meeting; answer ``CheckResult``."""

    number: int
    """Increases with each step of the checks."""
    phase: str
    level: str
    rank_offset: int
    """Rank of this node's local rank 0 among the workers of the meeting."""
    world_size: int
    """Number of workers of the meeting."""
    master_addr: str
    """The address at which rank 0 hosts the store of the meeting."""
    master_port: int
    deadline_s: float
    """Seconds until answers are ignored."""
    progress: str = ""
    """The progress of the checks, for display."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """An order has been carried out, or has failed."""

    number: Count
    report: Report
    """The measurements, as JSON."""
    offer: Offer
    """A new offer: no store of an earlier order is used."""


@dataclass(frozen=True, slots=True)
class CheckVerdict:
    """The verdict on this node."""

    exit_code: int
    """The exit status of the agent; 0: the node has passed, and takes part."""
    sentence: str
    """Why it is rejected, or a warning."""
    conclusion: str
    """The result of all nodes, in one line."""
    report: str
    """The whole report, as JSON, on one node of the job; empty on the others."""
