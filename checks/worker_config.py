"""Between a crew and its check workers: what a worker is told, and the words of its answers. Pure.

An order goes to a worker's standard input, as a line of JSON. On its standard output come:

    stage TEXT              what it is about to do: names the step in which it hung
    answer NUMBER RECORD    the outcome of an order, a record as JSON
    farewell NUMBER RECORD  the same, and it ends: what it did cannot be undone in order
"""

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Final

from ..rendezvous.protocol.check_messages import CheckOrder

STAGE: Final = "stage"
ANSWER: Final = "answer"
FAREWELL: Final = "farewell"

NOT_CARRIED_OUT: Final = "the check could not run"
"""In the reason of a failure that says nothing of the node: worth trying again."""

NO_ANSWER: Final = "no answer within"
"""So begins the reason of a failure where time was over."""

WAITING: Final = "waiting for --preload imports"
STARTING: Final = "starting"
IMPORTING: Final = "importing torch"
IDLE: Final = "waiting for orders"
STARTUP_STAGES: Final = (WAITING, STARTING, IMPORTING)
"""Where a worker that is not ready in time is, for which a busy disk is reason enough."""

REASON_MAX: Final = 400
"""What a reason may have, in characters."""
_LAST_ERROR: Final = "Last error:"

MEETING, SMALL, LARGE = "connecting to the other workers", "small all-reduce", "large all-reduce"
COLLECTIVE_STAGES: Final = (MEETING, SMALL, LARGE)
"""Where a worker can hang because another one does."""


def no_answer(stage: str, limit_s: float, had_s: float, needed_s: float) -> str:
    """Return the failure of a worker that has not answered in time.

    Args:
        stage: what it was about to do.
        limit_s: how long the order could take.
        had_s: how much of that was left when torch had been imported.
        needed_s: how long the measurements take in any case: a node that had less is not to blame.
    """
    failure = f"{NO_ANSWER} {limit_s:.3g} s ({stage})"
    return (
        f"{NOT_CARRIED_OUT}: {failure}" if stage in STARTUP_STAGES or had_s < needed_s else failure
    )


def first_words(text: str) -> str:
    """Return the first line, and what NCCL adds as the last error at its end."""
    first, *others = text.strip().splitlines() or [""]
    rest = "\n".join(others)
    _, found, last = rest.partition(_LAST_ERROR)
    if not found:
        return first
    return f"{first[: REASON_MAX // 2]} ({_LAST_ERROR.lower()} {' '.join(last.split())})"


@dataclass(frozen=True, slots=True)
class Delivery:
    """An order on its way from the agent to a check worker."""

    order: CheckOrder
    interface: str = ""
    """The network interface that leads to the store; empty where it is not known."""
    unix_time_s: float = 0.0
    """The node's clock when the order arrived there; 0 where it was not looked at."""

    @property
    def age_s(self) -> float:
        """How long ago the order came: it waits while torch is imported."""
        if not self.unix_time_s:
            return 0.0
        return min(max(time.time() - self.unix_time_s, 0.0), self.order.deadline_s)

    def to_json(self) -> str:
        """Return it as one line."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str | bytes) -> "Delivery":
        """Return what a line stands for."""
        parts = json.loads(text)
        return Delivery(**parts | {"order": CheckOrder(**parts["order"])})


@dataclass(frozen=True, slots=True)
class CheckWorkerConfig:
    """What a check worker is told when it is started."""

    node: str
    """Identity of the node, as records have it."""
    local_rank: int = 0
    local_world_size: int = 1
    device_index: int = 0
    """Its GPU among those it can see."""
    accelerator: str = "auto"
    """``cpu``: leave the GPUs alone; else they are used where there are any."""
    gpus_asked_by: str = ""
    """The option that asks for GPUs, if one does: a CPU is not checked in their place."""
    gpus_shown: Mapping[str, str] = field(default_factory=dict)
    """The kinds of GPUs that the machine shows to the workers, as values of ``--accelerator``, and
    how they were counted, in words."""
    devices: str | None = None
    """All GPUs of the node's workers, as ``CUDA_VISIBLE_DEVICES`` names them, where each worker can
    see only one; None: what this worker can see."""
    log_dir: str | None = None
    script: str | None = None
    cpu_cgroups: tuple[str, ...] = ()
    """Directories of this process's cgroups of the CPU controller, from its own upwards."""
    cpu_share: float = 1.0
    """The part of a CPU that quotas leave it while all workers of the node are busy, at most 1."""
    memory_cgroups: tuple[str, ...] = ()
    ft_run_version: str = ""

    def to_json(self) -> str:
        """Return it as an argument of the worker's command line."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> "CheckWorkerConfig":
        """Return the configuration that an argument stands for."""
        parts = json.loads(text)
        for name in ("cpu_cgroups", "memory_cgroups"):
            parts[name] = tuple(parts[name])
        return CheckWorkerConfig(**parts)
