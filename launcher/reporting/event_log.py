"""``--event-log-handler console``: one line of JSON for each event, in torchrun's format.

The names of the events and of their fields are those of ``torch.distributed.elastic.events``.
``ASSIGN_WORKER_RANKS`` is not written: ft-run has no such step.
"""

import json
import os
import time
from collections.abc import Callable, Sequence

from ...rendezvous.protocol.messages import Assignment, Outcome, Verdict
from ..options import LaunchOptions


class EventLog:
    """Writes the events of this node's agent and workers to standard error."""

    def __init__(
        self, options: LaunchOptions, host: str, entry_point: str, line: Callable[[str], None]
    ) -> None:
        """Create a log that writes if the options enable it.

        Args:
            options: the options of the agent.
            host: the name of this host.
            entry_point: the program that the workers execute.
            line: writes a line to standard error, without waiting for a reader.
        """
        self._wanted = options.event_log_handler == "console"
        self._options = options
        self._host = host
        self._line = line
        self._entry_point = os.path.basename(entry_point)
        self._began = self._waits_since = time.monotonic()
        self._assignment: Assignment | None = None
        self._pids: Sequence[int] = ()
        self._exit_codes: dict[int, int] = {}

    def waits(self) -> None:
        """Record that this node waits for a round from now on."""
        self._waits_since = time.monotonic()

    def started(self, assignment: Assignment, pids: Sequence[int]) -> None:
        """Write that a round was formed, and that its workers were started here."""
        waited_ms = (time.monotonic() - self._waits_since) * 1000
        self._agent("RENDEZVOUS", duration_ms=waited_ms, agent_restarts=assignment.restarts)
        self._assignment, self._pids = assignment, pids
        self._exit_codes.clear()
        for local_rank in range(len(pids)):
            self._worker("START", local_rank)

    def exited(self, local_rank: int, exit_code: int) -> None:
        """Record how a worker ended; ``ended`` writes it."""
        self._exit_codes[local_rank] = exit_code

    def ended(self, verdict: Verdict) -> None:
        """Write how the workers of the last round ended, and how the agent ended."""
        for local_rank in range(len(self._pids)):
            exit_code = self._exit_codes.get(local_rank)
            if verdict.outcome is Outcome.SUCCEEDED:
                self._worker("SUCCEEDED", local_rank)
            elif exit_code:
                self._worker("FAILED", local_rank, exit_code)
            else:
                self._worker("TERMINATED", local_rank)
        # As torchrun: the agent has done its work, whether or not the workers succeeded.
        self._agent("SUCCEEDED")

    def _agent(self, state: str, **fields: object) -> None:
        self._write(state, "AGENT", {}, **fields)

    def _worker(self, state: str, local_rank: int, exit_code: int | None = None) -> None:
        assert self._assignment is not None
        pid = self._pids[local_rank]
        # torchrun has each of these in a list.
        more = {
            "local_rank": [local_rank],
            "role_rank": [self._assignment.role_rank_offset + local_rank],
            "role_world_size": [self._assignment.role_world_size],
            "exit_code": [exit_code],
            "worker_pid": [pid if exit_code else None],
        }
        rank = self._assignment.rank_offset + local_rank
        self._write(state, "WORKER", more, global_rank=rank, worker_id=str(pid))

    def _write(self, state: str, source: str, more: dict[str, object], **fields: object) -> None:
        if not self._wanted:
            return
        assignment, rendezvous = self._assignment, self._options.rendezvous
        details = {
            "group_world_size": assignment.nodes if assignment is not None else None,
            "entry_point": self._entry_point,
        }
        metadata: dict[str, object] = {
            "run_id": rendezvous.job_id,
            "global_rank": None,
            "group_rank": assignment.node_rank if assignment is not None else None,
            "worker_id": None,
            "role": self._options.role,
            "hostname": self._host,
            "state": state,
            "total_run_time": int(time.monotonic() - self._began),
            "rdzv_backend": "grpc",
            "raw_error": None,
            "metadata": json.dumps(details | more),
            "agent_restarts": assignment.restarts if assignment is not None else 0,
            "duration_ms": None,
        }
        event = {
            "name": f"torchelastic.worker.status.{state}",
            "source": source,
            "timestamp": 0,
            "metadata": metadata | fields,
        }
        self._line(json.dumps(event))
