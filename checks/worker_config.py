"""The protocol between a crew and its check workers: orders and answers. No I/O.

An order is sent to a worker's standard input, as a line of JSON. The worker writes to its standard
output:

    stage TEXT              what it is about to do: names the step in which it hung
    answer NUMBER RECORD    the result of an order, a record as JSON
    farewell NUMBER RECORD  the same, and it exits: it cannot clean up after the order
"""

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Final

STAGE: Final = "stage"
ANSWER: Final = "answer"
FAREWELL: Final = "farewell"

NOT_CARRIED_OUT: Final = "the check could not run"
"""Part of the reason of a failure that is not caused by the node and is worth a retry."""

NO_ANSWER: Final = "no answer within"
"""Start of the reason of a failure by timeout."""

WAITING: Final = "waiting for --preload imports"
STARTING: Final = "starting"
IMPORTING: Final = "importing torch"
IDLE: Final = "waiting for orders"
STARTUP_STAGES: Final = (WAITING, STARTING, IMPORTING)
"""The stages of a worker that is not ready in time, which a busy disk can explain."""

REASON_MAX: Final = 400
"""Maximum length of a reason, in characters."""
_LAST_ERROR: Final = "Last error:"

MEETING, SMALL, LARGE = "connecting to the other workers", "small all-reduce", "large all-reduce"
COLLECTIVE_STAGES: Final = (MEETING, SMALL, LARGE)
"""The stages in which a worker can hang because another one does."""


def no_answer(stage: str, limit_s: float, had_s: float, needed_s: float) -> str:
    """Return the failure of a worker that has not answered in time, during ``stage``.

    ``had_s`` is the time left after the import of torch; if it was less than ``needed_s``, the node
    is not the cause.
    """
    failure = f"{NO_ANSWER} {limit_s:.3g} s ({stage})"
    return (
        f"{NOT_CARRIED_OUT}: {failure}" if stage in STARTUP_STAGES or had_s < needed_s else failure
    )


def first_words(text: str) -> str:
    """Return the first line, and the last error that NCCL adds at the end."""
    first, *others = text.strip().splitlines() or [""]
    rest = "\n".join(others)
    _, found, last = rest.partition(_LAST_ERROR)
    if not found:
        return first
    return f"{first[: REASON_MAX // 2]} ({_LAST_ERROR.lower()} {' '.join(last.split())})"


@dataclass(frozen=True, slots=True)
class Order:
    """``CheckOrder`` in a check worker, whose interpreter may lack the packages of messages."""

    number: int
    phase: str
    level: str
    rank_offset: int
    world_size: int
    master_addr: str
    master_port: int
    deadline_s: float
    progress: str = ""


@dataclass(frozen=True, slots=True)
class Delivery:
    """An order on its way from the agent to a check worker."""

    order: Order
    unix_time_s: float = 0.0
    """The node's clock when the order arrived there; 0 if it was not read."""

    @property
    def age_s(self) -> float:
        """The age of the order, which waits while torch is imported."""
        if not self.unix_time_s:
            return 0.0
        return min(max(time.time() - self.unix_time_s, 0.0), self.order.deadline_s)

    def to_json(self) -> str:
        """Return the order as one line."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str | bytes) -> "Delivery":
        """Return the order of a line."""
        parts = json.loads(text)
        return Delivery(**parts | {"order": Order(**parts["order"])})


@dataclass(frozen=True, slots=True)
class CheckWorkerConfig:
    """The configuration of a check worker."""

    node: str
    local_rank: int = 0
    local_world_size: int = 1
    device_index: int = 0
    """The index of its GPU among the visible ones."""
    accelerator: str = "auto"
    """If ``cpu``, GPUs are not used; otherwise they are used if available."""
    gpus_asked_by: str = ""
    """The option that requests GPUs, if any: then a CPU is not checked instead."""
    gpus_shown: Mapping[str, str] = field(default_factory=dict)
    """The kinds of GPUs that the machine exposes to the workers, as values of ``--accelerator``,
    and how they were counted, as text."""
    devices: str | None = None
    """All GPUs of the node's workers, in the format of ``CUDA_VISIBLE_DEVICES``, if each worker can
    see only one; None for the GPUs that this worker can see."""
    log_dir: str | None = None
    script: str | None = None

    @property
    def mig_devices(self) -> int:
        """Number of MIG devices if several workers use one each, otherwise 0.

        NCCL before 2.30 does not connect two of one GPU ("Duplicate GPU detected").
        """
        is_mig = self.local_world_size > 1 and (self.devices or "").startswith("MIG-")
        return self.local_world_size if is_mig else 0

    def to_json(self) -> str:
        """Return the configuration as a command-line argument."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> "CheckWorkerConfig":
        """Return the configuration of a command-line argument."""
        return CheckWorkerConfig(**json.loads(text))
