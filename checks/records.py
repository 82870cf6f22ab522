"""The results of a check, and their JSON format. No I/O, no clock.

Check workers write records as JSON lines, agents send them to the master, and reports contain them.
Input may come from a network, so everything is validated before use.
"""

import enum
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

Fact = str | int | float
CLOCK_FACT: Final = "unix_time_s"
"""A node's clock when it received the order, in seconds since 1970."""
Metrics = Mapping[str, float]
"""The measurements that one node made for one order, by name (``METRICS``)."""

METRICS: Final = {
    # Matrix product in the training precision, of the slowest device, in 10^12 operations/s.
    "compute_tflops": ("compute", "TFLOP/s"),
    # Memory bandwidth of the slowest device, in 10^9 bytes/s.
    "memory_gb_per_s": ("memory", "GB/s"),
    # Host to device, of the slowest device.
    "copy_gb_per_s": ("host-to-device copy", "GB/s"),
    # All-reduce among the node's own workers: bus bandwidth as nccl-tests defines it.
    "intra_gb_per_s": ("intra-node bandwidth", "GB/s"),
    # Small all-reduce among the nodes of a meeting.
    "latency_us": ("inter-node latency", "µs"),
    # Large all-reduce among the nodes of a meeting: bus bandwidth.
    "bandwidth_gb_per_s": ("inter-node bandwidth", "GB/s"),
}
"""All metrics in the order of a report: the name in messages, and the unit."""
LOWER_IS_BETTER: Final = frozenset({"latency_us"})


class RecordError(ValueError):
    """Raised if a text is not the JSON of a record."""


class Phase(enum.Enum):
    """The steps of the ladder, in order (docs/internals/check-method.md)."""

    FACTS = "facts"
    """System information of the node, without torch."""
    SOLO = "solo"
    """Each device alone, then an all-reduce among the node's own workers."""
    PAIR = "pair"
    SUSPECTS = "suspects"
    """Nodes of bad pairs meet other partners."""
    ALL = "all"
    """One all-reduce over all remaining nodes."""

    @property
    def title(self) -> str:
        """The phase's display name; the enum value is used in messages and reports."""
        return "system information" if self is Phase.FACTS else self.value


class Level(enum.Enum):
    """The amount of measurements: ``--check-level``."""

    LIGHT = "light"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class Record:
    """The result of one order on one node."""

    node: str
    phase: Phase
    failure: str = ""
    """The reason as text; empty if the node passed."""
    metrics: Metrics = field(default_factory=dict)
    facts: Mapping[str, Fact] = field(default_factory=dict)


def record_to_json(record: Record) -> str:
    """Return a record as one line, without empty and unmeasured values."""
    parts: dict[str, Any] = {"node": record.node, "phase": record.phase.value}
    parts |= {"failure": record.failure} if record.failure else {}
    parts |= {"metrics": dict(record.metrics)} if record.metrics else {}
    parts |= {"facts": dict(record.facts)} if record.facts else {}
    # A number that is not finite is a bug of the caller.
    return json.dumps(parts, allow_nan=False, separators=(",", ":"))


def record_from_json(text: str | bytes) -> Record:
    """Return the record of a line; raise ``RecordError`` with the reason if it is not a record."""
    try:
        parts = {"failure": "", "metrics": {}, "facts": {}} | json.loads(text)
        node, phase, failure, metrics, facts = (
            parts.pop(name) for name in ("node", "phase", "failure", "metrics", "facts")
        )
        if unknown := parts.keys() | metrics.keys() - METRICS.keys():
            raise ValueError(f"unknown parts: {', '.join(sorted(unknown))}")
        return Record(
            _text(node),
            Phase(phase),
            _text(failure),
            {name: _number(value) for name, value in metrics.items()},
            {name: _fact(value) for name, value in facts.items()},
        )
    except (
        *(ValueError, KeyError, TypeError, AttributeError),
        *(OverflowError, RecursionError),
    ) as error:
        raise RecordError(f"not a record of a check: {error!r}") from error


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"invalid value {value!r}: expected a text")
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool) or not 0 <= value < math.inf:  # includes NaN
        raise ValueError(f"invalid value {value!r}: expected a finite number >= 0")
    return float(value)


def _fact(value: Any) -> Fact:
    if isinstance(value, str) or (not isinstance(value, bool) and math.isfinite(value)):
        return value
    raise ValueError(f"invalid value {value!r}: expected a text or a finite number")
