"""Messages about checks between nodes and the master: plain values like ``messages``."""

from typing import Annotated

from msgspec import Struct

from ... import defaults
from .bounds import (
    Called,
    Count,
    Length,
    LongText,
    Name,
    Port,
    Real,
    Report,
    Rules,
    Seconds,
    SecondsOrNever,
    Whole,
)
from .offer import Offer

_Factor = Annotated[float, Real(1e9)]


class CheckSpec(Struct, frozen=True):
    """How nodes are checked before they enter a world (docs/reference/checks.md)."""

    level: Annotated[Name, Called("--check-level")] = defaults.CHECK_LEVEL
    """``light`` or ``full``."""
    timeout_s: Annotated[Seconds, Called("--check-timeout in seconds")] = 0.0
    """For all phases together, in seconds; 0 for the default, which is longer with GPUs."""
    on_restart: Annotated[Name, Called("--check-on-restart")] = "node"
    """``never``, ``node`` or ``always``."""
    is_binding: Annotated[bool, Called("--check-mode enforce")] = True
    """Whether a node that fails is rejected; false with ``--check-mode warn``."""
    straggler_threshold: _Factor = defaults.STRAGGLER_THRESHOLD
    exclude_straggler: bool = False
    only: Annotated[bool, Called("ft-run check")] = False
    """Whether the job consists of the checks."""
    is_strict: Annotated[bool, Called("--strict")] = False
    """Whether a warning changes the exit code; with ``only``."""
    minimums: Annotated[Rules, Called("the list of minimums (--min-..., --max-...)")] = ()
    """Minimums of metrics, e.g. ``compute_tflops=2.5``."""
    compute_threshold: Annotated[_Factor, Called("--compute-straggler-threshold")] = 0.0
    """0 for ``straggler_threshold``."""


class CheckOrder(Struct, frozen=True):
    """Run this check now, together with the other nodes of a meeting; answer: ``CheckResult``."""

    number: Count
    """Increases with each step of the checks."""
    phase: Name
    level: Name
    rank_offset: Count
    """Rank of this node's local rank 0 among the workers of the meeting."""
    world_size: Count
    """Number of workers of the meeting."""
    master_addr: Name
    """Address at which rank 0 hosts the store of the meeting."""
    master_port: Port
    deadline_s: SecondsOrNever
    """Seconds until answers are ignored."""
    progress: LongText = ""
    """Progress of the checks, for display."""


class CheckResult(Struct, frozen=True):
    """An order has been carried out, or has failed."""

    number: Count
    report: Report
    """Measurements, as JSON."""
    offer: Offer
    """A new offer, because the store of an earlier order is never reused."""


class CheckVerdict(Struct, frozen=True):
    """The verdict on this node."""

    exit_code: Annotated[int, Whole(0, 255)]
    """Exit code of the agent; 0 if the node has passed, and takes part."""
    sentence: LongText
    """Why it is rejected, or a warning."""
    conclusion: LongText
    """Result of all nodes, in one line."""
    report: Annotated[str, Length(defaults.CHECK_REPORT_MAX_BYTES)]
    """Complete report, as JSON, on one node of the job; empty on the others."""
