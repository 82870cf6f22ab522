"""How a node's part in its job ends: by the verdict, by a signal, or for a reason of its own."""

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
"""How long a node that leaves waits at most for a master that is away, to say why."""


class NodeEnd:
    """What is known of the end so far. Of several reasons the first gives the exit status."""

    def __init__(self, options: LaunchOptions) -> None:
        self._options = options
        self._exit_code: int | None = None
        self._error: Exception | None = None
        self.signal: int | None = None
        """The signal that asked this node to leave."""
        self._signalled_at = 0.0
        self.verdict: Verdict | None = None
        """How the job ended; None while it has not, or where this node left before."""

    @property
    def is_pending(self) -> bool:
        """Whether nothing has come yet by which this node leaves or the job is over."""
        return self.signal is None and self._exit_code is None

    @property
    def is_known(self) -> bool:
        """Whether the outcome for this node is known."""
        return self._exit_code is not None or self._error is not None

    def asked_by(self, number: int) -> None:
        """A signal asks this node to leave."""
        self.signal, self._signalled_at = number, time.monotonic()

    def patience_s(self) -> float:
        """Return the seconds for which a master that is away may still be told of the leaving.

        None after Ctrl-C, and never more than is left of ``--shutdown-timeout``: SIGKILL may
        follow the signal after that.
        """
        if self.signal in (None, signal.SIGINT):
            return 0.0
        so_far_s = time.monotonic() - self._signalled_at
        return max(0.0, min(_FAREWELL_S, self._options.shutdown_timeout_s - so_far_s))

    def set_verdict(self, verdict: Verdict, override: Exception | None = None) -> None:
        """The job is over; ``override`` is why this node does not end as the job does."""
        self.verdict = verdict
        if override is not None:
            self.failed(override)
        elif self.signal is None:
            self._exit_code = self._exit_code_of(verdict)

    def failed(self, error: Exception) -> None:
        """This node ends for a reason of its own."""
        if self.is_pending:
            self._error = error
        else:
            self.left()

    def left(self) -> None:
        """No worker is left here: if a signal asked this node to leave, it now has."""
        if self.signal is not None and self._exit_code is None:
            self._exit_code = exit_codes.SIGNAL_BASE + self.signal

    def status(self) -> int:
        """Return the exit status; raise what this node ended by."""
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
    """Print how the job ended, the last word after everything else."""
    options, display, log_dir = parts.options, parts.display, parts.log_dir
    if verdict.outcome in (Outcome.WORKERS_FAILED, Outcome.POLICY_ENDED):
        display.report(final_report(verdict, options.name or options.script))
        if log_dir.keeps_files:
            display.event(ev.LogsKept(str(log_dir.path)))
    display.event(ev.JobEnded(verdict))
