"""What a check measured, and what is to be checked: plain values and their JSON. Pure.

Check workers read orders and write records as JSON lines, agents send records to the master, and
reports hold them: this is the one place that knows their form. What is read here may come from a
network: everything is looked at before it is believed.
"""

import enum
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

Fact = str | int | float


class RecordError(ValueError):
    """Raised when a text is not the JSON of a record or an order."""


class Phase(enum.Enum):
    """The steps of the ladder, in this order (docs/checks.md)."""

    FACTS = "facts"
    """What the node says of itself, without torch."""
    SOLO = "solo"
    """Each device alone, then an all-reduce among the node's own workers."""
    PAIR = "pair"
    """Nodes meet in pairs."""
    SUSPECTS = "suspects"
    """Nodes of bad pairs meet other partners."""
    ALL = "all"
    """One all-reduce over all nodes that are left."""


class Level(enum.Enum):
    """How much is measured: ``--check-level``."""

    LIGHT = "light"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class Metrics:
    """What one node measured in one order; None: not measured. Units are in the names."""

    compute_tflops: float | None = None
    """Matrix product in the training precision, the slowest device, 10^12 operations/s."""
    memory_gb_per_s: float | None = None
    """Memory of the device, the slowest one, 10^9 bytes/s."""
    copy_gb_per_s: float | None = None
    """Host to device, the slowest device."""
    intra_gb_per_s: float | None = None
    """All-reduce among the node's own workers, bus bandwidth as nccl-tests defines it."""
    latency_us: float | None = None
    """All-reduce of few bytes among the nodes that meet."""
    bandwidth_gb_per_s: float | None = None
    """All-reduce of many bytes among the nodes that meet, bus bandwidth."""


@dataclass(frozen=True, slots=True)
class Record:
    """What became of one order on one node."""

    node: str
    """Identity of the node."""
    phase: Phase
    failure: str = ""
    """Empty when the node passed, else the reason in words."""
    metrics: Metrics = Metrics()
    facts: Mapping[str, Fact] = field(default_factory=dict)
    """What the node says of itself, by name; units are in the names."""


@dataclass(frozen=True, slots=True)
class Order:
    """What one node is to check now."""

    number: int
    """Grows with each order of the job: an answer to an earlier one is told from this one's."""
    phase: Phase
    level: Level
    rank_offset: int
    """Rank of this node's local rank 0 among the workers that meet."""
    world_size: int
    """All workers that meet, this node's included."""
    master_addr: str
    """Where the workers that meet find their store; rank 0 hosts it."""
    master_port: int
    deadline_s: float
    """Seconds, from the moment the order arrives, after which no answer counts."""
    interface: str = ""
    """The network interface that leads to the store; empty where it is not known."""
    unix_time_s: float = 0.0
    """The node's clock when the order arrived there; 0 where it was not looked at."""


def metric_values(metrics: Metrics) -> dict[str, float]:
    """Return what was measured, by name."""
    return {name: value for name, value in asdict(metrics).items() if value is not None}


def record_to_json(record: Record) -> str:
    """Return a record as one line; what is empty or was not measured is left out."""
    metrics = metric_values(record.metrics)
    parts: dict[str, Any] = {"node": record.node, "phase": record.phase.value}
    parts |= {"failure": record.failure} if record.failure else {}
    parts |= {"metrics": metrics} if metrics else {}
    parts |= {"facts": dict(record.facts)} if record.facts else {}
    return _line(parts)


def record_from_json(text: str | bytes) -> Record:
    """Return the record that a line stands for.

    Raises:
        RecordError: it is none, with what is wrong in words.
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


def order_to_json(order: Order) -> str:
    """Return an order as one line."""
    return _line(asdict(order) | {"phase": order.phase.value, "level": order.level.value})


def order_from_json(text: str | bytes) -> Order:
    """Return the order that a line stands for.

    Raises:
        RecordError: it is none, with what is wrong in words.
    """
    parts = _parse(text, *(part.name for part in fields(Order)))
    return Order(
        number=_whole(parts, "number"),
        phase=_member(Phase, parts, "phase"),
        level=_member(Level, parts, "level"),
        rank_offset=_whole(parts, "rank_offset"),
        world_size=_whole(parts, "world_size"),
        master_addr=_text(parts, "master_addr"),
        master_port=_whole(parts, "master_port"),
        deadline_s=_number(parts, "deadline_s"),
        interface=_text(parts, "interface"),
        unix_time_s=_number(parts, "unix_time_s"),
    )


# --- the forms of values ---------------------------------------------------------------------


def _line(parts: Mapping[str, Any]) -> str:
    """Return JSON on one line; a number that is none (NaN, infinity) is a bug of the caller."""
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
        raise RecordError(f"{name} must be an object; given was {value!r}")
    return value


def _text(parts: Mapping[str, Any], name: str) -> str:
    value = parts.get(name)
    if not isinstance(value, str):
        raise RecordError(f"{name} must be a text; given was {value!r}")
    return value


def _whole(parts: Mapping[str, Any], name: str) -> int:
    value = parts.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise RecordError(f"{name} must be a whole number from 0; given was {value!r}")
    return value


def _number(parts: Mapping[str, Any], name: str) -> float:
    value = parts.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise RecordError(f"{name} must be a number; given was {value!r}")
    try:
        number = float(value)
    except OverflowError as error:
        raise RecordError(f"{name} is too large: {error}") from error
    if not math.isfinite(number) or number < 0:
        raise RecordError(f"{name} must be finite and not negative; given was {value!r}")
    return number


def _fact(name: str, value: Any) -> Fact:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise RecordError(f"the fact {name} must be a text or a number; given was {value!r}")
    if isinstance(value, float) and not math.isfinite(value):
        raise RecordError(f"the fact {name} must be finite; given was {value!r}")
    return value


def _member(kind: Any, parts: Mapping[str, Any], name: str) -> Any:
    value = parts.get(name)
    try:
        return kind(value)
    except ValueError:
        right = ", ".join(member.value for member in kind)
        raise RecordError(f"{name} must be one of {right}; given was {value!r}") from None
