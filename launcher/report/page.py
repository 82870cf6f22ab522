"""The report as JSON, and as one page of HTML that needs no other file and sends no request.

Everything in events is untrusted text: it is in the page as JSON only, in a script element that no
browser executes, and the page's own script shows it as text.
"""

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any, Final

from ...events.record import json_value
from ..history.accounting import Account
from ..reporting.time_report import accounted
from .job_report import JobReport
from .lanes import Lane
from .reading import Reading

_HERE: Final = Path(__file__).parent
_SCRIPTS: Final = ("fills.js", "timeline.js", "timeline_input.js", "page.js")
_PER_S: Final = 100
"""Times of lanes are in 1/100 s."""
_OF_ATTEMPT: Final = ("number", "began_s", "nodes", "exit_code", "ended")
_OF_LANE: Final = ("node", "host", "address", "machine_id", "release", "workers", "failures")
_NUMBERS: Final = 64
"""Each entry of a lane is the time since the previous one times this, plus the phase number."""


def json_of(report: JobReport, reading: Reading) -> str:
    """Return the report as JSON, without the lanes of the nodes."""
    return json.dumps(_data(report, reading), indent=2)


def page_of(report: JobReport, reading: Reading) -> str:
    """Return the page."""
    began_s = report.began_s
    data = _data(report, reading) | {
        "began_s": began_s,
        "phases": list(report.names),
        "job_lane": _coded(report.job_lane, began_s),
        "rates": [[round(at_s - began_s, 2), *more] for at_s, *more in report.rates],
    }
    for node, lane in zip(data["nodes"], report.lanes, strict=True):
        node["lane"] = _coded(lane, began_s)
    style = (_HERE / "page.css").read_text()
    script = "".join((_HERE / name).read_text() for name in _SCRIPTS)
    parts = {
        "policy": f"default-src 'none'; img-src data:; style-src '{_hash(style)}'; "
        f"script-src '{_hash(script)}'",
        "style": style,
        "script": script,
        "data": _embedded(data),
    }
    page = (_HERE / "page.html").read_text()
    return re.sub(r"\{\{(\w+)\}\}", lambda mark: parts[mark[1]], page)


def _hash(text: str) -> str:
    """Return the source expression of a Content-Security-Policy that allows ``text``."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _embedded(data: dict[str, Any]) -> str:
    """Return JSON for a script element: nothing in it ends the element."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").encode(errors="replace").decode()


def _data(report: JobReport, reading: Reading) -> dict[str, Any]:
    return {
        "version": 2,
        "summary": json_value(report.summary),
        "time": _time(report.account),
        "attempts": [
            _fields(one, *_OF_ATTEMPT) | {"time": _time(one.account)} for one in report.attempts
        ],
        "restarts": [
            json_value(one) | {"down_s": json_value(one.down_s)} for one in report.restarts
        ],
        "failures": [
            _fields(one, "run", "node", "is_root", "others") | json_value(one.note)
            for one in report.failures
        ],
        "checkpoints": json_value(report.checkpoints),
        "checks": json_value(report.checks),
        "notices": json_value(report.notices),
        "nodes": [_node(lane) for lane in report.lanes],
        "events": reading.events,
        "note": reading.note,
    }


def _time(account: Account) -> dict[str, Any]:
    """Return an account with the keys of ``time.accounted``."""
    found: dict[str, Any] = json_value(accounted(account))
    return found


def _node(lane: Lane) -> dict[str, Any]:
    return _fields(lane, *_OF_LANE) | {
        "starts": len(lane.processes),
        "last_s": lane.at_s,
        "phases": {phase.value: round(s, 2) for phase, s in lane.account.phases.items()},
    }


def _fields(value: object, *names: str) -> dict[str, Any]:
    return {name: getattr(value, name) for name in names}


def _coded(lane: Lane, began_s: float) -> list[int]:
    coded, last = [], 0
    for at_s, phase in zip(lane.starts_s, lane.phases, strict=True):
        at = round((at_s - began_s) * _PER_S)
        coded.append((at - last) * _NUMBERS + phase)
        last = at
    return coded
