"""The verdict on all nodes as JSON: what ``--check-report`` writes and the table shows. Pure."""

import json
from collections.abc import Mapping
from typing import Any

from .verdict import NodeVerdict, Standing, Verdicts


def report_to_json(verdicts: Verdicts) -> str:
    """Return a report; units are in the names of the metrics."""
    report = {
        "conclusion": verdicts.sentence,
        "bad_links": [list(link) for link in verdicts.bad_links],
        "nodes": [
            {
                "node": found.node,
                "verdict": found.standing.value,
                "reason": found.reason,
                "slow": list(found.slow),
                "remarks": list(found.remarks),
                "metrics": dict(found.metrics),
                "facts": dict(found.facts),
            }
            for found in verdicts.nodes
        ],
    }
    return json.dumps(report, allow_nan=False)


def report_from_json(text: str) -> Verdicts:
    """Return the verdicts of a report that ``report_to_json`` has written.

    Raises:
        ValueError: it is no such report.
    """
    try:
        report = json.loads(text)
        return Verdicts(
            nodes=tuple(_node(entry) for entry in report["nodes"]),
            bad_links=tuple((str(one), str(other)) for one, other in report["bad_links"]),
            sentence=str(report["conclusion"]),
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
        remarks=tuple(map(str, entry["remarks"])),
        facts=dict(entry["facts"]),
    )
