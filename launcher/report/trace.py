"""The report in Chrome's trace event format, which Perfetto and ``chrome://tracing`` show.

A process is a node, and its phases are complete events (``ph: X``) of its one thread; process 0 is
the job, with its restarts as complete events, failures as instants and steps as counters. Times are
in microseconds since the first start of the job.

Format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

import json
from collections.abc import Iterator
from typing import Any

from .job_report import JobReport
from .lanes import GONE, Lane

_JOB = 0
_PHASES, _RESTARTS = 1, 2
"""Threads of the job: nodes have the first only."""


def trace_of(report: JobReport) -> str:
    """Return the trace as JSON."""
    starts = [lane.starts_s[0] for lane in report.lanes if lane.starts_s]
    began_s = min(starts, default=0.0)
    events = list(_events(report, began_s))
    about = {"job": report.summary.job, "began_s": began_s}
    trace = {"displayTimeUnit": "ms", "otherData": about, "traceEvents": events}
    return json.dumps(trace, separators=(",", ":"))


def _events(report: JobReport, began_s: float) -> Iterator[dict[str, Any]]:
    pids = {lane.node: number for number, lane in enumerate(report.lanes, start=1)}
    yield from _named(_JOB, f"job {report.summary.job}")
    yield _thread(_JOB, _RESTARTS, "restarts")
    yield from _phases(report.job_lane, _JOB, began_s)
    for lane in report.lanes:
        yield from _named(pids[lane.node], f"node {lane.node}")
        yield from _phases(lane, pids[lane.node], began_s)
    for restart in report.restarts:
        yield {
            "ph": "X",
            "name": f"restart: {restart.kind}",
            "cat": "restart",
            "pid": _JOB,
            "tid": _RESTARTS,
            "ts": _us(restart.began_s, began_s),
            "dur": round(restart.seconds * 1e6),
            "args": {"round": restart.round, "cause": restart.cause, "rule": restart.rule}
            | restart.phases,
        }
    for failure in report.failures:
        note = failure.note
        yield {
            "ph": "i",
            "name": note.summary,
            "cat": "failure",
            "s": "p",
            "pid": pids.get(failure.node, _JOB),
            "tid": _PHASES,
            "ts": _us(note.at_s, began_s),
            "args": {"kind": note.kind, "rank": note.rank, "lines": "\n".join(note.lines)},
        }
    for at_s, step, steps_per_s in report.rates:
        for name, value in (("step", step), ("steps per second", steps_per_s)):
            if value >= 0:
                ts = _us(at_s, began_s)
                yield {"ph": "C", "name": name, "pid": _JOB, "ts": ts, "args": {name: value}}


def _named(pid: int, name: str) -> Iterator[dict[str, Any]]:
    yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}
    yield {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": pid}}
    yield _thread(pid, _PHASES, "phases")


def _thread(pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}


def _phases(lane: Lane, pid: int, began_s: float) -> Iterator[dict[str, Any]]:
    names = list(lane.names)
    for number, phase in enumerate(lane.phases[:-1]):
        at_s, end_s = lane.starts_s[number : number + 2]
        if phase != GONE:
            yield {
                "ph": "X",
                "name": names[phase],
                "cat": "phase",
                "pid": pid,
                "tid": _PHASES,
                "ts": _us(at_s, began_s),
                "dur": round((end_s - at_s) * 1e6),
            }


def _us(at_s: float, began_s: float) -> int:
    return max(0, round((at_s - began_s) * 1e6))
