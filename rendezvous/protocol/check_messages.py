"""What nodes and the master say to each other of checks, as plain values like ``messages``."""

from ... import defaults
from ...values import dataclass
from .bounded import Count, Name, Report, Rules, Setting
from .offer import Offer


@dataclass(frozen=True, slots=True)
class CheckSpec:
    """How nodes are checked before they enter a world (docs/reference/checks.md)."""

    level: Name = defaults.CHECK_LEVEL
    """``--check-level``: light or full."""
    timeout_s: Setting = 0.0
    """For all phases together; 0: the default, which is longer with GPUs."""
    on_restart: Name = "node"
    """``--check-on-restart``: never, node or always."""
    is_binding: bool = True
    """What fails stays out; not with ``--check-mode warn``."""
    straggler_threshold: Setting = defaults.STRAGGLER_THRESHOLD
    exclude_straggler: bool = False
    only: bool = False
    """The job is the checks: ``ft-run check``."""
    is_strict: bool = False
    """A warning is told by the exit status; with ``only``."""
    floors: Rules = ()
    """What metrics must reach, such as ``compute_tflops=2.5``."""
    compute_threshold: Setting = 0.0
    """``--compute-straggler-threshold``; 0: ``straggler_threshold``."""


@dataclass(frozen=True, slots=True)
class CheckOrder:
    """Check this now, together with the others of a meeting; answer ``CheckResult``."""

    number: int
    """Grows with each step of the checks."""
    phase: str
    level: str
    rank_offset: int
    """Rank of this node's local rank 0 among the workers that meet."""
    world_size: int
    """Workers that meet."""
    master_addr: str
    """Where rank 0 hosts the store of the meeting."""
    master_port: int
    deadline_s: float
    """Seconds from now after which no answer counts."""
    progress: str = ""
    """How far the checks are, for people."""


@dataclass(frozen=True, slots=True)
class CheckProgress:
    """How far the checks are, where a step takes long; to one node of the job."""

    text: str
    """For people."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """An order has been carried out, or has failed."""

    number: Count
    report: Report
    """What was measured, as JSON."""
    offer: Offer
    """Fresh: no store of an earlier order is ever met."""


@dataclass(frozen=True, slots=True)
class CheckVerdict:
    """What was found of this node."""

    exit_code: int
    """What the agent ends with; 0: the node has passed, and stays."""
    sentence: str
    """Why it does not stay, or a remark."""
    conclusion: str
    """What was found of all nodes, in one line."""
    report: str
    """All of it, as JSON, on one node of the job; empty on the others."""
