"""Creates the failure record of a worker: error file, last lines of stderr, OOM kill."""

import json
import os
import re
import signal
import time
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from ... import defaults
from ...rendezvous.protocol.failure import Failure, FailureKind
from ...rendezvous.protocol.messages import Assignment
from ..logs.error_file import MESSAGE_MAX_CHARS, read_error_of_exit
from ..machine.oom import OomWatch
from ..spawner.messages import Exited
from .smaller_parts import propose, read_samples
from .worker_group import WorkerGroup

STDERR_WAIT_S = 0.2
"""The maximum time that a failure report waits for the end of the worker's stderr."""

SHORTAGE = os.EX_TEMPFAIL
"""Exit code: the kernel had no free process or file descriptor; this may be transient."""


class FailureRecords:
    """Creates the failure records of one node."""

    def __init__(self, host: str, role: str) -> None:
        self._host, self._role = host, role
        self._oom = OomWatch()

    def begin(self) -> None:
        """Start a round."""
        self._oom.begin()

    async def of_worker(self, group: WorkerGroup, event: Exited, *, after_stop: bool) -> Failure:
        """Return the record of a worker that exited non-zero, with its last output."""
        local_rank, wait_s = event.local_rank, 0.0 if after_stop else STDERR_WAIT_S
        tail = await group.stderr_tail(local_rank, defaults.STDERR_TAIL_MAX_BYTES, wait_s)
        watch = group.watches[local_rank]
        return worker_failure(
            group.assignment,
            local_rank,
            host=self._host,
            role=self._role,
            pid=group.pids[local_rank],
            exit_code=event.exit_code,
            error_file=group.logs.workers[local_rank].error_file,
            stderr_tail=tail,
            out_of_memory=self._is_out_of_memory(event.exit_code),
            after_stop=after_stop,
            trial=watch.trial if watch is not None else "",
        )

    def of_start(self, at: Assignment, local_rank: int, exit_code: int, why: str) -> Failure:
        """Return the record of a worker that could not be started."""
        return self._failure(
            FailureKind.START,
            at,
            rank=at.rank_offset + local_rank,
            local_rank=local_rank,
            pid=0,
            exit_code=exit_code,
            message=why,
        )

    def of_store(self, group: WorkerGroup, exit_code: int, log: str) -> Failure:
        """Return the record of a store process that ended while workers needed it."""
        return self._failure(
            FailureKind.STORE,
            group.assignment,
            rank=-1,
            local_rank=-1,
            pid=group.store_pid or 0,
            exit_code=exit_code,
            message=_last_line(log),
            stderr_tail=log,
            out_of_memory=self._is_out_of_memory(exit_code),
        )

    def of_stuck(self, at: Assignment, pids: Sequence[int]) -> Failure:
        """Return the record of processes that survive SIGKILL."""
        named = ", ".join(map(str, pids)) or "unknown"
        return self._failure(
            FailureKind.STUCK,
            at,
            rank=at.rank_offset,
            local_rank=0,
            pid=pids[0] if pids else 0,
            exit_code=0,
            message=(
                f"process {named} survives SIGKILL (uninterruptible sleep: a hung file system or "
                "driver); the host needs attention"
            ),
        )

    def _failure(self, kind: FailureKind, at: Assignment, **fields: Any) -> Failure:
        node, now_s = at.node_rank, int(time.time())
        return Failure(
            kind=kind, node_rank=node, host=self._host, role=self._role, time_s=now_s, **fields
        )

    def _is_out_of_memory(self, exit_code: int) -> bool:
        return exit_code == -signal.SIGKILL and self._oom.has_struck()


_RANK_PREFIX = r"(?m)^\[rank[0-9]+\]: ?"
"""The prefix that torch writes before each line of an uncaught exception and of its warnings, once
its process group exists. The record has the rank in a field."""


_DEVICE_OOM = "OutOfMemoryError"
"""Occurs in the traceback of a worker whose accelerator ran out of memory, even as a cause."""


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
    trial: str = "",
) -> Failure:
    """Return the record of a worker that exited non-zero or by a signal; bounded in size."""
    now_s = time.time()
    error = read_error_of_exit(error_file, now_s)
    tail = re.sub(_RANK_PREFIX, "", _text(stderr_tail[-defaults.STDERR_TAIL_MAX_BYTES :]))
    written_at = error.time_s if error is not None else None
    words = error.text if error is not None else tail
    is_of_device = not out_of_memory and (not words or _DEVICE_OOM in words)
    samples = read_samples(error_file) if is_of_device else 0
    return Failure(
        kind=FailureKind.WORKER,
        rank=assignment.rank_offset + local_rank,
        local_rank=local_rank,
        node_rank=assignment.node_rank,
        host=host,
        pid=pid,
        exit_code=exit_code,
        time_s=int(now_s) if written_at is None else written_at,
        role=role,
        error_file=error.path if error is not None else "",
        error_json=error.text if error is not None else "",
        message=error.message if error is not None else _last_line(tail),
        stderr_tail=tail,
        out_of_memory=out_of_memory,
        after_stop=after_stop,
        trial=trial,
        proposal=propose(samples, assignment.carried),
    )


def ended_by_timer(failure: Failure, scope: str) -> Failure:
    """Return the record of a worker that was killed because a timer that it set has expired."""
    why = f"its timer {scope!r} expired (torch.distributed.elastic.timer)"
    return replace(failure, message=why, error_json=json.dumps({"message": {"message": why}}))


def _last_line(text: str) -> str:
    """Return the last line that is not blank; in a Python traceback, exception type and message."""
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip()[:MESSAGE_MAX_CHARS] if lines else ""


def _text(data: bytes) -> str:
    return data.decode("utf-8", errors="replace")
