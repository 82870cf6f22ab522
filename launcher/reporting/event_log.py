"""``--event-log-handler console``: one line of JSON for each event, in torchrun's format.

Events and fields have the names of ``torch.distributed.elastic.events``. ``ASSIGN_WORKER_RANKS`` is
not written, because ft-run does not have this step.
"""

import json
import os
import socket
import time
from collections.abc import Callable

from ...events.record import Record
from ..options import LaunchOptions


class EventLog:
    """Writes the events of agent and workers; ``line`` must not wait for a reader."""

    NAMES = frozenset(
        ("round.started", "workers.started", "worker.exited", "round.ended", "job.ended")
    )
    """The events whose records it needs."""

    def __init__(
        self, options: LaunchOptions, entry_point: str, line: Callable[[str], None]
    ) -> None:
        self._options = options
        self._host = socket.gethostname()
        self._line = line
        self._entry_point = os.path.basename(entry_point)
        self._began = self._waits_since = time.monotonic()
        self._next_round: Record | None = None
        self._round: Record | None = None
        self._workers: Record | None = None
        self._exit_codes: dict[int, int] = {}

    def add(self, record: Record) -> None:
        """Write what torchrun would write for an event, if anything."""
        match record["name"]:
            case "round.started":
                self._next_round = record
            case "workers.started" if self._next_round is not None:
                self._started(self._next_round, record)
            case "worker.exited":
                self._exit_codes[record["local_rank"]] = record["exit_code"]
            case "round.ended":
                self._waits_since = time.monotonic()
            case "job.ended":
                self._ended(has_succeeded=record["verdict"]["outcome"] == "succeeded")

    def _started(self, round_: Record, workers: Record) -> None:
        """Write that a round was formed, and that its workers were started here."""
        waited_ms = (time.monotonic() - self._waits_since) * 1000
        self._agent("RENDEZVOUS", duration_ms=waited_ms, agent_restarts=round_["restarts"])
        self._round, self._workers = round_, workers
        self._exit_codes.clear()
        for local_rank in range(len(workers["pids"])):
            self._worker("START", local_rank)

    def _ended(self, *, has_succeeded: bool) -> None:
        """Write how the workers of the last round ended, and how the agent ended."""
        for local_rank in range(len(self._workers["pids"]) if self._workers is not None else 0):
            exit_code = self._exit_codes.get(local_rank)
            if has_succeeded:
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
        round_, workers = self._round, self._workers
        assert round_ is not None
        assert workers is not None
        pid = workers["pids"][local_rank]
        # torchrun puts each of these in a list.
        more: dict[str, object] = {
            "local_rank": [local_rank],
            "role_rank": [round_["role_rank_offset"] + local_rank],
            "role_world_size": [round_["role_world_size"]],
            "exit_code": [exit_code],
            "worker_pid": [pid if exit_code else None],
        }
        rank = workers["first_rank"] + local_rank
        self._write(state, "WORKER", more, global_rank=rank, worker_id=str(pid))

    def _write(self, state: str, source: str, more: dict[str, object], **fields: object) -> None:
        workers, rendezvous = self._workers, self._options.rendezvous
        details = {
            "group_world_size": workers["nodes"] if workers is not None else None,
            "entry_point": self._entry_point,
        }
        metadata: dict[str, object] = {
            "run_id": rendezvous.job_id,
            "global_rank": None,
            "group_rank": workers["node_rank"] if workers is not None else None,
            "worker_id": None,
            "role": self._options.role,
            "hostname": self._host,
            "state": state,
            "total_run_time": int(time.monotonic() - self._began),
            "rdzv_backend": "grpc",
            "raw_error": None,
            "metadata": json.dumps(details | more),
            "agent_restarts": self._round["restarts"] if self._round is not None else 0,
            "duration_ms": None,
        }
        event = {
            "name": f"torchelastic.worker.status.{state}",
            "source": source,
            "timestamp": 0,
            "metadata": metadata | fields,
        }
        self._line(json.dumps(event))
