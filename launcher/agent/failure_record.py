"""From the exit of a worker to its failure record: error file, last lines, OOM killer."""

import json
import os
import time
from collections.abc import Mapping
from typing import Any

from ... import defaults
from ...rendezvous.protocol.failure import Failure, FailureKind
from ...rendezvous.protocol.messages import Assignment
from ...values import replace

_MESSAGE_MAX_CHARS = 4096
_TRACEBACK_MARGIN = 2048
"""What JSON, the message and escapes may need beside the traceback in a bounded record."""


def worker_failure(
    assignment: Assignment,
    local_rank: int,
    *,
    host: str,
    role: str,
    pid: int,
    exit_code: int,
    error_file: str,
    stderr_tail: bytes,
    out_of_memory: bool,
    after_stop: bool,
) -> Failure:
    """Return the record of a worker that exited non-zero or by a signal; bounded in size."""
    error = _read_error_file(error_file)
    timestamp = _timestamp(error)
    return Failure(
        kind=FailureKind.WORKER,
        rank=assignment.rank_offset + local_rank,
        local_rank=local_rank,
        node_rank=assignment.node_rank,
        host=host,
        pid=pid,
        exit_code=exit_code,
        time_s=int(time.time()) if timestamp is None else timestamp,
        role=role,
        error_file=error_file if error is not None else "",
        error_json=json.dumps(error) if error is not None else "",
        message=_message(error) if error is not None else _last_line(_text(stderr_tail)),
        stderr_tail=_text(stderr_tail[-defaults.STDERR_TAIL_MAX_BYTES :]),
        out_of_memory=out_of_memory,
        after_stop=after_stop,
    )


def ended_by_timer(failure: Failure, scope: str) -> Failure:
    """Return the record of a worker that was killed because a timer of its own ran out."""
    why = f"its timer {scope!r} expired (torch.distributed.elastic.timer)"
    return replace(failure, message=why, error_json=json.dumps({"message": {"message": why}}))


SHORTAGE = os.EX_TEMPFAIL
"""There was no process or file for it, which may pass."""


def start_failure(
    assignment: Assignment, local_rank: int, *, host: str, role: str, exit_code: int, why: str
) -> Failure:
    """Return the record of a worker that could not be started.

    Args:
        assignment: of the node.
        local_rank: of the worker.
        host: of the node.
        role: of the node.
        exit_code: ``NOT_EXECUTED`` or ``SHORTAGE``.
        why: a clause for people.
    """
    return Failure(
        kind=FailureKind.START,
        rank=assignment.rank_offset + local_rank,
        local_rank=local_rank,
        node_rank=assignment.node_rank,
        host=host,
        pid=0,
        exit_code=exit_code,
        time_s=int(time.time()),
        role=role,
        message=why,
    )


def store_failure(
    assignment: Assignment,
    *,
    host: str,
    role: str,
    pid: int,
    exit_code: int,
    log: str,
    out_of_memory: bool,
) -> Failure:
    """Return the record of a store process that ended while workers needed it.

    Args:
        assignment: of the node that hosted it.
        host: of that node.
        role: of that node.
        pid: of the process; 0 if it could not be started.
        exit_code: as ``subprocess`` has it.
        log: the last lines of what it wrote.
        out_of_memory: the kernel's OOM killer did it.
    """
    return Failure(
        kind=FailureKind.STORE,
        rank=-1,
        local_rank=-1,
        node_rank=assignment.node_rank,
        host=host,
        pid=pid,
        exit_code=exit_code,
        time_s=int(time.time()),
        role=role,
        message=_last_line(log),
        stderr_tail=log,
        out_of_memory=out_of_memory,
    )


def stuck_failure(assignment: Assignment, *, host: str, role: str, pids: list[int]) -> Failure:
    """Return the record of workers that survived SIGKILL."""
    named = ", ".join(map(str, pids)) or "unknown"
    return Failure(
        kind=FailureKind.STUCK,
        rank=assignment.rank_offset,
        local_rank=0,
        node_rank=assignment.node_rank,
        host=host,
        pid=pids[0] if pids else 0,
        exit_code=0,
        time_s=int(time.time()),
        role=role,
        message=(
            f"process {named} survives SIGKILL (uninterruptible sleep: a hung file system or "
            "driver); the host needs attention"
        ),
    )


def _read_error_file(path: str) -> dict[str, Any] | None:
    """Return the content of an ``@record`` file, its traceback cut to the record's bound."""
    if not path:
        return None
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read(16 * defaults.ERROR_FILE_MAX_BYTES)
        error = json.loads(text)
    except (OSError, ValueError):
        return None
    if not isinstance(error, dict) or "message" not in error:
        return None
    if len(json.dumps(error)) > defaults.ERROR_FILE_MAX_BYTES:
        return _shortened(error)
    return error


def _shortened(error: Mapping[str, Any]) -> dict[str, Any]:
    """Keep what names the error: the message, and the end of the traceback."""
    stack = str(_extra(error).get("py_callstack", ""))
    # JSON may write six bytes for one character.
    kept = (defaults.ERROR_FILE_MAX_BYTES - _TRACEBACK_MARGIN - 6 * 512) // 6
    return {
        "message": {
            "message": _message(error)[:512],
            "extraInfo": {
                "py_callstack": stack[-kept:],
                "timestamp": str(_extra(error).get("timestamp", "0"))[:20],
            },
        }
    }


def _extra(error: Mapping[str, Any]) -> Mapping[str, Any]:
    message = error["message"]
    extra = message.get("extraInfo", {}) if isinstance(message, dict) else {}
    return extra if isinstance(extra, dict) else {}


def _message(error: Mapping[str, Any]) -> str:
    message = error["message"]
    text = message.get("message", "") if isinstance(message, dict) else message
    return str(text)[:_MESSAGE_MAX_CHARS]


def _timestamp(error: Mapping[str, Any] | None) -> int | None:
    if error is None:
        return None
    given = str(_extra(error).get("timestamp", error.get("timestamp")))
    return int(given) if given.isascii() and given.isdecimal() else None


def _last_line(text: str) -> str:
    """Return the last line that says something: of a Python traceback, type and text."""
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip()[:_MESSAGE_MAX_CHARS] if lines else ""


def _text(data: bytes) -> str:
    return data.decode("utf-8", errors="replace")
