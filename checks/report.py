"""The verdicts on all nodes as JSON, for ``--check-report`` and the table. No I/O, no clock."""

import json
from collections.abc import Mapping
from itertools import compress
from typing import Any, Final

from .verdict import NodeVerdict, Standing, Verdicts

_PASSED: Final = Standing.PASSED.value
_COMMA: Final = ", "
_FRAME_BYTES: Final = 64
"""Bytes for the names around the nodes and for larger counts."""


def report_to_json(verdicts: Verdicts, most_bytes: int | None = None) -> str:
    """Return a report; units are in the names of the metrics.

    A report larger than ``most_bytes`` omits the system information of nodes that passed without a
    warning. If that is not enough, it includes nodes with something to report, then others, up to
    this size. It counts the omissions.
    """
    entries = [_entry(found) for found in verdicts.nodes]
    frame: dict[str, Any] = {
        "conclusion": verdicts.sentence,
        "bad_links": [list(link) for link in verdicts.bad_links],
        "facts_left_out": 0,
        "nodes_left_out": verdicts.left_out,
    }
    if most_bytes is not None:
        _cut(entries, frame, most_bytes)
    return _dump(frame | {"nodes": [entry for entry in entries if entry]})


def _entry(found: NodeVerdict) -> dict[str, Any]:
    return {
        "node": found.node,
        "verdict": found.standing.value,
        "reason": found.reason,
        "slow": list(found.slow),
        "remarks": list(found.warnings),
        "metrics": dict(found.metrics),
        "facts": dict(found.facts),
    }


def _cut(entries: list[dict[str, Any]], frame: dict[str, Any], most_bytes: int) -> None:
    """Leave out system information, then whole entries, which become empty."""
    is_plain = [e["verdict"] == _PASSED and not e["remarks"] for e in entries]
    room = most_bytes - len(_dump(frame)) - _FRAME_BYTES
    if sum(map(_size, entries)) > room:
        frame["facts_left_out"] = sum(is_plain)
        for entry in compress(entries, is_plain):
            entry["facts"] = {}
    for position in sorted(range(len(entries)), key=lambda position: is_plain[position]):
        room -= _size(entries[position])
        if room < 0:
            entries[position].clear()
            frame["nodes_left_out"] += 1
            frame["facts_left_out"] -= is_plain[position]


def _size(entry: Mapping[str, Any]) -> int:
    return len(_dump(entry)) + len(_COMMA)


def _dump(part: Any) -> str:
    return json.dumps(part, allow_nan=False)


def report_from_json(text: str) -> Verdicts:
    """Return the verdicts from ``report_to_json``; raise ``ValueError`` for other text."""
    try:
        report = json.loads(text)
        return Verdicts(
            nodes=tuple(_node(entry) for entry in report["nodes"]),
            bad_links=tuple((str(one), str(other)) for one, other in report["bad_links"]),
            sentence=str(report["conclusion"]),
            left_out=int(report.get("nodes_left_out", 0)),
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a report of checks: {error!r}") from error


def _node(entry: Mapping[str, Any]) -> NodeVerdict:
    return NodeVerdict(
        node=str(entry["node"]),
        standing=Standing(entry["verdict"]),
        reason=str(entry["reason"]),
        metrics={str(name): float(value) for name, value in entry["metrics"].items()},
        slow=tuple(map(str, entry["slow"])),
        warnings=tuple(map(str, entry["remarks"])),
        facts=dict(entry["facts"]),
    )
