"""How a node's part in its job ends: by the verdict, by a signal, or for a local reason."""

import signal
import time

from ... import events as ev
from ... import exit_codes
from ...rendezvous.policy.matches import exit_status
from ...rendezvous.protocol.messages import Outcome, Verdict
from ..options import LaunchOptions
from ..reporting.failure_report import final_report
from .parts import NodeParts

_FAREWELL_S = 5.0
"""The longest time that a leaving node waits for an absent master, to tell it why."""


class NodeEnd:
    """What is known of the end so far. The first of several reasons gives the exit status."""

    def __init__(self, options: LaunchOptions) -> None:
        self._options = options
        self._exit_code: int | None = None
        self._error: Exception | None = None
        self.signal: int | None = None
        """The signal that asked this node to leave."""
        self._signalled_at = 0.0
        self.verdict: Verdict | None = None
        """How the job ended; None while it runs, or if this node left before the end."""

    @property
    def is_pending(self) -> bool:
        """Whether neither the job has ended nor this node has begun to leave."""
        return self.signal is None and self._exit_code is None

    @property
    def is_known(self) -> bool:
        """Whether the outcome for this node is known."""
        return self._exit_code is not None or self._error is not None

    def asked_by(self, number: int) -> None:
        """Note a signal that asks this node to leave."""
        self.signal, self._signalled_at = number, time.monotonic()

    def patience_s(self) -> float:
        """Return how many seconds this node may wait for an absent master, to say that it leaves.

        None after Ctrl-C, and never more than is left of ``--shutdown-timeout``: SIGKILL may
        follow the signal after that.
        """
        if self.signal in (None, signal.SIGINT):
            return 0.0
        return min(_FAREWELL_S, self.time_left_s())

    def time_left_s(self) -> float:
        """Return how many seconds are left of ``--shutdown-timeout``, once the workers are gone."""
        limit_s = self._options.shutdown_timeout_s
        if self.signal is None:
            return limit_s
        return max(0.0, limit_s - (time.monotonic() - self._signalled_at))

    def set_verdict(self, verdict: Verdict, override: Exception | None = None) -> None:
        """Note the verdict; ``override`` is why this node ends differently from the job."""
        self.verdict = verdict
        if override is not None:
            self.failed(override)
        elif self.signal is None:
            self._exit_code = self._exit_code_of(verdict)

    def failed(self, error: Exception) -> None:
        """Note a local reason for which this node ends."""
        if self.is_pending:
            self._error = error
        else:
            self.left()

    def left(self) -> None:
        """Note that no worker is left: a node that a signal asked to leave has now left."""
        if self.signal is not None and self._exit_code is None:
            self._exit_code = exit_codes.SIGNAL_BASE + self.signal

    def status(self) -> int:
        """Return the exit status, or raise the error that ended this node."""
        if self._error is not None:
            raise self._error
        assert self._exit_code is not None
        return self._exit_code

    def _exit_code_of(self, verdict: Verdict) -> int:
        """Return the verdict's exit status, or with --propagate-exit-code the root cause's."""
        if not self._options.propagate_exit_code or verdict.outcome is not Outcome.WORKERS_FAILED:
            return verdict.exit_code
        status = exit_status(verdict.cause) if verdict.cause is not None else None
        return status or verdict.exit_code


def show_verdict(verdict: Verdict, parts: NodeParts) -> None:
    """Print how the job ended, after everything else."""
    options, display, log_dir = parts.options, parts.display, parts.log_dir
    if verdict.outcome in (Outcome.WORKERS_FAILED, Outcome.POLICY_ENDED):
        display.report(final_report(verdict, options.name or options.script))
        if log_dir.keeps_files:
            display.event(ev.LogsKept(str(log_dir.path)))
    display.event(ev.JobEnded(verdict))
