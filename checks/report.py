"""The verdict on all nodes as JSON, for ``--check-report`` and the table. Pure."""

import json
from collections.abc import Mapping
from typing import Any, Final

from .verdict import NodeVerdict, Standing, Verdicts

_PASSED: Final = Standing.PASSED.value
_COMMA: Final = ", "
_FRAME_BYTES: Final = 64
"""Bytes for the names around the nodes and for larger counts."""


def report_to_json(verdicts: Verdicts, most_bytes: int | None = None) -> str:
    """Return a report; units are in the names of the metrics.

    Args:
        verdicts: the verdicts on all nodes.
        most_bytes: maximum size. A report that would be larger leaves out, in this order: the
            system information of nodes that passed without a warning, then such nodes, then other
            nodes, each from the last to the first. The report counts what is left out. None: no
            limit.
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
    """Reduce the size: remove system information from entries, then empty whole entries."""
    sizes = [len(_dump(entry)) + len(_COMMA) for entry in entries]
    excess = sum(sizes) + len(_dump(frame)) + _FRAME_BYTES - most_bytes
    is_plain = [e["verdict"] == _PASSED and not e["remarks"] for e in entries]
    last_first = range(len(entries) - 1, -1, -1)
    without_facts = set()
    for position in last_first:
        if excess > 0 and is_plain[position] and entries[position]["facts"]:
            saved = len(_dump(entries[position]["facts"])) - len(_dump({}))
            entries[position]["facts"] = {}
            without_facts.add(position)
            sizes[position] -= saved
            excess -= saved
    for position in sorted(last_first, key=lambda position: not is_plain[position]):
        if excess > 0:
            entries[position].clear()
            without_facts.discard(position)
            frame["nodes_left_out"] += 1
            excess -= sizes[position]
    frame["facts_left_out"] = len(without_facts)


def _dump(part: Any) -> str:
    return json.dumps(part, allow_nan=False)


def report_from_json(text: str) -> Verdicts:
    """Return the verdicts of a report that ``report_to_json`` has written.

    Raises:
        ValueError: the text is not such a report.
    """
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
