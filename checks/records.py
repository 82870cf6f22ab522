"""The results of a check: plain values and their JSON. Pure.

Check workers write records as JSON lines, agents send them to the master, and reports contain them.
Only this module knows their format. Input may come from a network, so that everything is validated
before it is used.
"""

import enum
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

Fact = str | int | float


class RecordError(ValueError):
    """Raised when a text is not the JSON of a record."""


class Phase(enum.Enum):
    """The steps of the ladder, in this order (docs/internals/check-method.md)."""

    FACTS = "facts"
    """System information of the node, without torch."""
    SOLO = "solo"
    """Each device alone, then an all-reduce among the node's own workers."""
    PAIR = "pair"
    """Nodes meet in pairs."""
    SUSPECTS = "suspects"
    """Nodes of bad pairs meet other partners."""
    ALL = "all"
    """One all-reduce over all remaining nodes."""

    @property
    def title(self) -> str:
        """The phase's display name; the enum value is that of messages and reports."""
        return "system information" if self is Phase.FACTS else self.value


class Level(enum.Enum):
    """How much is measured: ``--check-level``."""

    LIGHT = "light"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class Metrics:
    """The measurements of one node in one order; None: not measured. Units are in the names."""

    compute_tflops: float | None = None
    """Matrix product in the training precision, of the slowest device, in 10^12 operations/s."""
    memory_gb_per_s: float | None = None
    """Memory bandwidth of the slowest device, in 10^9 bytes/s."""
    copy_gb_per_s: float | None = None
    """Host to device, of the slowest device."""
    intra_gb_per_s: float | None = None
    """All-reduce among the node's own workers: bus bandwidth as nccl-tests defines it."""
    latency_us: float | None = None
    """Small all-reduce among the nodes of a meeting."""
    bandwidth_gb_per_s: float | None = None
    """Large all-reduce among the nodes of a meeting: bus bandwidth."""


@dataclass(frozen=True, slots=True)
class Record:
    """The result of one order on one node."""

    node: str
    """Identity of the node."""
    phase: Phase
    failure: str = ""
    """Empty when the node passed, else the reason as text."""
    metrics: Metrics = Metrics()
    facts: Mapping[str, Fact] = field(default_factory=dict)
    """System information by name; units are in the names."""


def metric_values(metrics: Metrics) -> dict[str, float]:
    """Return the measured values by name."""
    return {name: value for name, value in asdict(metrics).items() if value is not None}


def record_to_json(record: Record) -> str:
    """Return a record as one line; empty and unmeasured values are left out."""
    metrics = metric_values(record.metrics)
    parts: dict[str, Any] = {"node": record.node, "phase": record.phase.value}
    parts |= {"failure": record.failure} if record.failure else {}
    parts |= {"metrics": metrics} if metrics else {}
    parts |= {"facts": dict(record.facts)} if record.facts else {}
    return _line(parts)


def record_from_json(text: str | bytes) -> Record:
    """Return the record of a line.

    Raises:
        RecordError: the line is not a record; the message says why.
    """
    parts = _parse(text, "node", "phase", "failure", "metrics", "facts")
    metrics = _mapping(parts, "metrics")
    unknown = metrics.keys() - {metric.name for metric in fields(Metrics)}
    if unknown:
        raise RecordError(f"unknown metrics: {', '.join(sorted(unknown))}")
    facts = _mapping(parts, "facts")
    return Record(
        node=_text(parts, "node"),
        phase=_member(Phase, parts, "phase"),
        failure=_text(parts, "failure") if "failure" in parts else "",
        metrics=Metrics(**{name: _number(metrics, name) for name in metrics}),
        facts={name: _fact(name, value) for name, value in facts.items()},
    )


# --- the forms of values ---------------------------------------------------------------------


def _line(parts: Mapping[str, Any]) -> str:
    """Return JSON on one line; a non-finite number (NaN, infinity) is a bug of the caller."""
    return json.dumps(parts, allow_nan=False, separators=(",", ":"))


def _parse(text: str | bytes, *names: str) -> dict[str, Any]:
    try:
        parts = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"not JSON: {error}") from error
    if not isinstance(parts, dict):
        raise RecordError(f"not a JSON object: {str(text)[:80]}")
    unknown = parts.keys() - set(names)
    if unknown:
        raise RecordError(f"unknown parts: {', '.join(sorted(unknown))}")
    return parts


def _mapping(parts: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = parts.get(name, {})
    if not isinstance(value, dict):
        raise RecordError(f"{name} must be an object; got {value!r}")
    return value


def _text(parts: Mapping[str, Any], name: str) -> str:
    value = parts.get(name)
    if not isinstance(value, str):
        raise RecordError(f"{name} must be a text; got {value!r}")
    return value


def _number(parts: Mapping[str, Any], name: str) -> float:
    value = parts.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise RecordError(f"{name} must be a number; got {value!r}")
    try:
        number = float(value)
    except OverflowError as error:
        raise RecordError(f"{name} is too large: {error}") from error
    if not math.isfinite(number) or number < 0:
        raise RecordError(f"{name} must be finite and not negative; got {value!r}")
    return number


def _fact(name: str, value: Any) -> Fact:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise RecordError(f"the fact {name} must be a text or a number; got {value!r}")
    if isinstance(value, float) and not math.isfinite(value):
        raise RecordError(f"the fact {name} must be finite; got {value!r}")
    return value


def _member(kind: Any, parts: Mapping[str, Any], name: str) -> Any:
    value = parts.get(name)
    try:
        return kind(value)
    except ValueError:
        right = ", ".join(member.value for member in kind)
        raise RecordError(f"{name} must be one of {right}; got {value!r}") from None
