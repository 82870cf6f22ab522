"""Shows the progress of a job in its Kubeflow TrainJob, from the node with rank 0.

Kubeflow Trainer 2.2 and later, with the feature gate ``TrainJobStatus``, sets three variables in
each container: the URL of its status server, and files with the server's CA certificate and with a
token, which is replaced now and then. A POST sets ``status.trainerStatus``:
https://github.com/kubeflow/trainer/tree/master/docs/proposals/2779-trainjob-progress
"""

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from msgspec import Struct

from ...events.event import Event
from ...events.metrics import ProgressUnsent
from ...tasks import in_thread
from .node_metrics import Observed
from .status_server import Request, StatusServer

URL: Final = "KUBEFLOW_TRAINER_SERVER_URL"
CA_FILE: Final = "KUBEFLOW_TRAINER_SERVER_CA_CERT"
TOKEN_FILE: Final = "KUBEFLOW_TRAINER_SERVER_TOKEN"  # noqa: S105 - a name
DISABLED: Final = "DISABLE_KUBEFLOW_INTEGRATION"
"""``TRUE`` turns progress off, as with transformers."""
INTERVAL_S: Final = 5.0
"""The shortest time between two requests that Kubeflow's documents allow."""
_PAUSE_MAX_S: Final = 60.0
"""Delay after several failures; after the first one it is twice the shortest time."""
_LAST_WORDS_S: Final = 2.0
_SECONDS_MAX: Final = (1 << 31) - 1


class Status(Struct, frozen=True):
    """The values that a TrainJob shows."""

    step: int
    """Completed steps."""
    total: int = 0
    """Steps of the whole training; 0 if unknown."""
    steps_per_s: float = 0.0
    restarts: int = 0
    is_complete: bool = False
    """Whether the job has succeeded."""

    @property
    def percentage(self) -> int | None:
        """Progress in whole percent; 100 only when the job has succeeded; None if unknown."""
        if self.is_complete:
            return 100
        return None if not self.total else min(99, 100 * self.step // self.total)

    @property
    def remaining_s(self) -> int | None:
        """Estimated time until the end, in seconds; None if unknown."""
        if self.is_complete:
            return 0
        if not self.total or self.steps_per_s <= 0:
            return None
        left_s = max(0, self.total - self.step) / self.steps_per_s
        return min(_SECONDS_MAX, round(left_s))

    def body(self, now_s: float) -> bytes:
        """Return the body of the request: ``UpdateTrainJobStatusRequest`` of Kubeflow Trainer.

        A request replaces the whole status, so unknown values disappear.
        """
        metrics: dict[str, object] = {"current_step": self.step, "restarts": self.restarts}
        if self.total:
            metrics["total_steps"] = self.total
        if self.steps_per_s > 0:
            metrics["steps_per_second"] = f"{self.steps_per_s:.4g}"
        status: dict[str, object] = {
            "lastUpdatedTime": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now_s)),
            "metrics": [{"name": name, "value": str(value)} for name, value in metrics.items()],
        }
        if self.percentage is not None:
            status["progressPercentage"] = self.percentage
        if self.remaining_s is not None:
            status["estimatedRemainingSeconds"] = self.remaining_s
        return json.dumps({"trainerStatus": status}).encode()


class TrainJobProgress:
    """Polls and reports the progress of rank 0 while this node has it."""

    def __init__(
        self, server: StatusServer, agent: Observed, note: Callable[[Event], None]
    ) -> None:
        self._server, self._agent, self._note = server, agent, note
        self._sent: Status | None = None
        self._request: Request | None = None
        """The last request, until its result is handled."""
        self._failing = 0
        """The severity of the outage that was reported; 0 if there is none."""
        self._pause_s = INTERVAL_S
        self._timer = asyncio.get_running_loop().call_later(INTERVAL_S, self._look)

    async def close(self, *, has_succeeded: bool) -> None:
        """Send the last progress, within a few seconds."""
        self._timer.cancel()
        await self._await_request()
        if self._sent is not None and has_succeeded:
            sent = self._sent
            self._put(Status(sent.step, sent.total, restarts=sent.restarts, is_complete=True))
            await self._await_request()

    async def _await_request(self) -> None:
        if self._request is not None:
            await in_thread(partial(self._request.join, _LAST_WORDS_S))
            self._conclude(self._request)

    def _look(self) -> None:
        if self._request is not None and not self._request.is_alive():
            self._conclude(self._request)
        if self._request is None:
            status = self._status()
            if status is not None and (self._failing or status != self._sent):
                self._put(status)
        self._timer = asyncio.get_running_loop().call_later(self._pause_s, self._look)

    def _put(self, status: Status) -> None:
        try:
            self._request = Request(self._server, status.body(time.time()))
        except RuntimeError:  # no thread can be started now: the next poll retries
            return
        self._sent = status

    def _conclude(self, request: Request) -> None:
        self._request = None
        if request.error is None:
            self._failing, self._pause_s = 0, INTERVAL_S
            return
        self._pause_s = min(_PAUSE_MAX_S, 2 * self._pause_s)
        severity = request.error.severity
        if severity > self._failing:
            self._failing = severity
            self._note(ProgressUnsent(self._server.url, str(request.error), severity))

    def _status(self) -> Status | None:
        """Return the progress of rank 0; None if it is elsewhere, unknown, or reports itself."""
        at = self._agent.assignment
        first = next((worker for worker in self._agent.running if worker.rank == 0), None)
        if at is None or first is None or first.watch is None:
            return None
        progress = first.watch.progress()
        total, is_sent_by_itself = first.watch.trainjob()
        if progress is None or not progress.ticks or is_sent_by_itself:
            return None
        return Status(progress.steps, total, progress.steps_per_s, at.restarts)


def trainjob_progress(
    environ: Mapping[str, str], agent: Observed, note: Callable[[Event], None]
) -> TrainJobProgress | None:
    """Return the sender of this node's progress; None if Kubeflow does not request it."""
    url, ca, token = (environ.get(name, "") for name in (URL, CA_FILE, TOKEN_FILE))
    if not (url and ca and token) or environ.get(DISABLED, "").upper() == "TRUE":
        return None
    return TrainJobProgress(StatusServer(url, ca, token), agent, note)
