"""The response of ``ft-run status`` as JSON values, from a master here or elsewhere."""

import contextlib
import json
from typing import Any

from ...events.record import json_value
from ...rendezvous.protocol.status import StatusReply
from .status_lines import status_lines

_OF_SEVERAL = ("hosts", "leader", "term", "lease_s")
"""Fields that exist only if several hosts may lead."""


def status_dict(reply: StatusReply) -> dict[str, Any]:
    """Return the response with all fields, including zeros; nodes in order of their rank."""
    status: dict[str, Any] = json_value(reply)
    if not reply.hosts:
        for name in _OF_SEVERAL:
            del status[name]
    status["nodes"].sort(key=lambda node: (node["node_rank"] < 0, node["node_rank"]))
    return _with_report(status, status.pop("report"))


def _with_report(status: dict[str, Any], report: str) -> dict[str, Any]:
    """Add the report of the master's process, if it is valid: versions may differ."""
    with contextlib.suppress(
        ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError
    ):
        known: dict[str, Any] = json.loads(report or "{}", parse_constant=_refuse)
        answer = status | {
            "time_s": known.get("time_s"),
            "summary": known.get("summary"),
            "events": known.get("events") or [],
        }
        ", ".join([*status_lines(answer), *(one["severity"] for one in answer["events"])])
        json.dumps(answer, allow_nan=False)
        return answer
    return status | {"time_s": None, "summary": None, "events": []}


def _refuse(constant: str) -> float:
    raise ValueError(constant)  # NaN or infinity: not JSON
