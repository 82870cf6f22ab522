"""The live line at the bottom of a terminal: state and running time of the job."""

import time
from collections.abc import Callable, Iterable
from typing import Any

from ...events.node import nodes_wanted
from ...rendezvous.protocol.messages import Assignment, Waiting
from ...rendezvous.protocol.steps import RankSteps
from ..history.steps import is_late, rate
from ..options import LaunchOptions


def restarts_used(assignment: Assignment, options: LaunchOptions) -> int:
    """Return how much of the restart budget is used; within the window, if there is one."""
    has_window = options.policy is not None and options.policy.restart_window_s
    return assignment.restarts_in_window if has_window else assignment.restarts


class LiveStatus:
    """The text of the live line. ``steps`` returns the current steps of this node's workers."""

    def __init__(
        self, options: LaunchOptions, steps: Callable[[], Iterable[RankSteps]] = tuple
    ) -> None:
        self._options = options
        self._steps = steps
        self._since = time.monotonic()
        self.assignment: Assignment | None = None
        """The assignment of the last round that was started here."""
        self.waiting: Waiting | None = None
        self.connected = True
        self.checking = ""
        """Progress of the checks; empty while there are none."""

    def started(self, assignment: Assignment) -> None:
        """Record that a round was started here."""
        self.assignment, self.waiting = assignment, None

    def summary(self) -> dict[str, Any]:
        """Return the state of the job as seen by this node, as JSON values; times in seconds."""
        options, assignment = self._options.rendezvous, self.assignment
        furthest = max(self._steps(), key=lambda rank: rank.steps, default=None)
        waiting = self.waiting
        return {
            "job_id": options.job_id,
            "script": self._options.name or self._options.script,
            "phase": self._phase(),
            "round": assignment.round if assignment is not None else -1,
            "nodes": waiting.joined
            if waiting is not None
            else assignment.nodes
            if assignment
            else 0,
            "min_nodes": options.min_nodes,
            "max_nodes": options.max_nodes,
            "restarts": restarts_used(assignment, self._options) if assignment is not None else 0,
            "max_restarts": options.max_restarts,
            "steps": furthest.steps if furthest is not None else None,
            "steps_per_s": furthest.steps_per_s if furthest is not None else None,
            "idle_s": furthest.idle_s if furthest is not None else None,
            "uptime_s": time.monotonic() - self._since,
        }

    def _phase(self) -> str:
        if not self.connected:
            return "no connection to the master"
        if self.checking:
            return "checking nodes"
        if self.waiting is not None:
            return "spare" if self.waiting.spare else "waiting for nodes"
        return "running" if self.assignment is not None else "starting"

    def text(self) -> str:
        """Return the current line."""
        options, assignment, waiting_ = self._options.rendezvous, self.assignment, self.waiting
        wanted = nodes_wanted(options.min_nodes, options.max_nodes)
        parts = [f"ft-run {options.job_id}"]
        if self.checking:
            parts.append(f"checks {self.checking}")
        elif waiting_ is not None:
            parts.append(f"{waiting_.joined}/{wanted} nodes")
            if waiting_.missing:
                parts.append("missing " + ", ".join(waiting_.missing))
            if waiting_.spare:
                parts.append("spare")
        elif assignment is not None:
            parts.append(f"{assignment.nodes}/{wanted} nodes")
        if assignment is not None:
            parts += [
                f"round {assignment.round}",
                f"restarts {restarts_used(assignment, self._options)}/{options.max_restarts}",
            ]
        # Ranks that train together differ by one step, and some may do none by design.
        furthest = max(self._steps(), key=lambda rank: rank.steps, default=None)
        if furthest is not None:
            parts.append(f"step {furthest.steps}")
            if is_late(furthest.steps_per_s, furthest.idle_s):
                parts.append(f"no step for {duration(furthest.idle_s)}")
            elif furthest.steps_per_s:
                parts.append(f"{rate(furthest.steps_per_s)} steps/s")
        if not self.connected:
            parts.append("no connection to the master")
        parts.append("up " + duration(time.monotonic() - self._since))
        return " · ".join(parts)


def duration(seconds: float) -> str:
    """Return ``1:02:03``."""
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}"
