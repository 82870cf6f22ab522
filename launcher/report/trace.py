"""The report in Chrome's trace event format, for Perfetto and ``chrome://tracing``.

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
"""Threads of the job; nodes have only the first."""


def trace_of(report: JobReport) -> str:
    """Return the trace as JSON."""
    began_s = report.began_s
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
        about = {"round": restart.round, "cause": restart.cause, "rule": restart.rule}
        at_us, dur = _us(restart.began_s, began_s), round(restart.seconds * 1e6)
        name, args = f"restart: {restart.kind}", about | restart.phases
        yield _event("X", name, _JOB, _RESTARTS, at_us, cat="restart", dur=dur, args=args)
    for failure in report.failures:
        note, pid = failure.note, pids.get(failure.node, _JOB)
        args = {"kind": note.kind, "rank": note.rank, "lines": "\n".join(note.lines)}
        at_us = _us(note.at_s, began_s)
        yield _event("i", note.summary, pid, _PHASES, at_us, cat="failure", s="p", args=args)
    for at_s, step, steps_per_s in report.rates:
        for name, value in (("step", step), ("steps per second", steps_per_s)):
            if value >= 0:
                yield _event("C", name, _JOB, _PHASES, _us(at_s, began_s), args={name: value})


def _named(pid: int, name: str) -> Iterator[dict[str, Any]]:
    yield _event("M", "process_name", pid, args={"name": name})
    yield _event("M", "process_sort_index", pid, args={"sort_index": pid})
    yield _thread(pid, _PHASES, "phases")


def _thread(pid: int, tid: int, name: str) -> dict[str, Any]:
    return _event("M", "thread_name", pid, tid, args={"name": name})


def _phases(lane: Lane, pid: int, began_s: float) -> Iterator[dict[str, Any]]:
    names = list(lane.names)
    for number, phase in enumerate(lane.phases[:-1]):
        at_s, end_s = lane.starts_s[number : number + 2]
        if phase != GONE:
            at_us, dur = _us(at_s, began_s), round((end_s - at_s) * 1e6)
            yield _event("X", names[phase], pid, _PHASES, at_us, cat="phase", dur=dur)


def _event(
    ph: str, name: str, pid: int, tid: int = _PHASES, ts: int = 0, **more: object
) -> dict[str, Any]:
    return {"ph": ph, "name": name, "pid": pid, "tid": tid, "ts": ts, **more}


def _us(at_s: float, began_s: float) -> int:
    return max(0, round((at_s - began_s) * 1e6))
