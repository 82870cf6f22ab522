"""The report of a failed job, in torchrun's format, which users and log scrapers know.

Additions to torchrun's report: the first line names the root cause; the failures of all nodes are
listed; the last lines of standard error follow the root cause; an OOM kill is named. Workers that
the launcher itself stopped are not listed as failures.
"""

from collections.abc import Iterable
from datetime import datetime

from ...rendezvous.protocol.failure import Evidence, Failure, FailureKind, evidence, signal_name
from ...rendezvous.protocol.messages import Verdict
from ..history.recorded_error import recorded, recorded_traceback

_MAX_RULE = 60
_OF_NODE = {FailureKind.NODE_LOST: "lost", FailureKind.PREEMPTED: "left"}
"""Failures of a node, not of a worker: they have no rank, process or exit code."""
_NO_TRACEBACK = "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"


def final_report(verdict: Verdict, script: str) -> str:
    """Return the report of a failed job; nodes differ only in the script's name."""
    cause = verdict.cause
    if cause is None:
        return f"{script} FAILED: {verdict.sentence}"
    rest = [failure for failure in verdict.failures if failure != cause]
    others = [failure for failure in rest if not failure.after_stop]
    stopped = len(rest) - len(others)
    entries = [_entry(index, failure) for index, failure in enumerate(others, start=1)]
    unlisted = verdict.failure_count - len(verdict.failures)
    if unlisted > 0:
        entries.append(f"  and {unlisted} more")
    if stopped:
        entries.append(f"  {stopped} worker(s) ended while they were being stopped")
    root = _entry(0, cause) + _stderr_lines(cause) + _uncertainty(cause, others)
    title = f"{script} FAILED"
    width = min(_MAX_RULE, max(len(line) for line in [title, *root.splitlines()]))
    return "\n".join(
        [
            f"Root cause: {cause.summary()}",
            "=" * width,
            title,
            "-" * width,
            "Failures:",
            "\n".join(entries) if entries else "  <NO_OTHER_FAILURES>",
            "-" * width,
            "Root Cause (first observed failure):",
            root,
            "=" * width,
        ]
    )


def _entry(index: int, failure: Failure) -> str:
    if failure.kind in _OF_NODE:
        number = "<N/A>" if failure.node_rank < 0 else str(failure.node_rank)
        return (
            f"[{index}]:\n"
            f"  host      : {failure.host}\n"
            f"  node      : {number}\n"
            f"  reason    : {_OF_NODE[failure.kind]}, {failure.message}"
        )
    if failure.kind is FailureKind.HANG:
        return f"[{index}]:\n  reason    : {failure.message}\n  stacks    : " + _joined(
            failure.stderr_tail.splitlines()
        )
    if failure.kind is FailureKind.STORE:
        return (
            f"[{index}]:\n"
            f"  host      : {failure.host}\n"
            f"  node      : {failure.node_rank}\n"
            f"  exitcode  : {failure.exit_code} (pid: {failure.pid})\n"
            f"  reason    : {failure.summary()}"
        )
    name = f" ({signal_name(-failure.exit_code)})" if failure.exit_code < 0 else ""
    return (
        f"[{index}]:\n"
        f"  time      : {_time(failure.time_s)}\n"
        f"  host      : {failure.host}\n"
        f"  rank      : {failure.rank} (local_rank: {failure.local_rank})\n"
        f"  exitcode  : {failure.exit_code} (pid: {failure.pid}){name}\n"
        f"  error_file: {failure.error_file or '<N/A>'}\n"
        f"  traceback : {_traceback(failure)}"
    )


def _time(time_s: int) -> str:
    try:
        return datetime.fromtimestamp(time_s).isoformat(sep="_") if time_s > 0 else "<N/A>"
    except (OverflowError, OSError, ValueError):  # nodes are not trusted
        return "<N/A>"


def _traceback(failure: Failure) -> str:
    error = recorded(failure)
    if error is not None:
        return recorded_traceback(error).replace("\n", "\n  ").rstrip()
    if failure.out_of_memory:
        return (
            f"Signal 9 (SIGKILL) received by PID {failure.pid}: out of memory, by the kernel's "
            "OOM killer"
        )
    if failure.exit_code < 0:
        number = -failure.exit_code
        return f"Signal {number} ({signal_name(number)}) received by PID {failure.pid}"
    if failure.kind is not FailureKind.WORKER:
        return failure.message
    return _NO_TRACEBACK


def _stderr_lines(failure: Failure) -> str:
    """Return the last lines of standard error, without a traceback that is already shown."""
    tail = failure.stderr_tail.strip()
    error = recorded(failure)
    if error is not None:
        traceback = recorded_traceback(error).strip()
        tail = tail.rpartition(traceback)[0].strip() if traceback else ""
    if failure.kind is FailureKind.HANG or not tail:
        return ""
    return "\n  stderr    : " + _joined(tail.splitlines()[-20:])


def _uncertainty(cause: Failure, others: Iterable[Failure]) -> str:
    """Return a line for a root cause that is the first of several similar failures."""
    alike = [failure for failure in others if evidence(failure) is Evidence.UNSAID]
    if evidence(cause) is not Evidence.UNSAID or not alike:
        return ""
    workers = "1 other worker" if len(alike) == 1 else f"{len(alike)} other workers"
    same = all(failure.exit_code == cause.exit_code for failure in alike)
    how = f"exited with {cause.exit_code}" if same and cause.exit_code > 0 else "ended"
    return f"\n  note      : {workers} also {how}; the root cause is uncertain"


def _joined(lines: Iterable[str]) -> str:
    return "\n              ".join(lines)
