"""The answer of ``ft-run status`` as JSON values, of a master here or elsewhere."""

import contextlib
import json
from typing import Any

from ...events.record import json_value
from ...rendezvous.protocol.status import StatusReply

_OF_SEVERAL = ("hosts", "leader", "term", "lease_s")
"""Fields that are there only if several hosts may lead."""


def status_dict(reply: StatusReply) -> dict[str, Any]:
    """Return the answer with all fields, including zeros; nodes in order of their rank."""
    status: dict[str, Any] = json_value(reply)
    if not reply.hosts:
        for name in _OF_SEVERAL:
            del status[name]
    status["nodes"].sort(key=lambda node: (node["node_rank"] < 0, node["node_rank"]))
    return status | _reported(status.pop("report"))


def _reported(report: str) -> dict[str, Any]:
    known: Any = {}
    with contextlib.suppress(ValueError):
        known = json.loads(report or "{}")
    if not isinstance(known, dict):
        known = {}
    return {
        "time_s": known.get("time_s"),
        "summary": known.get("summary"),
        "events": known.get("events") or [],
    }
