"""The end of a job: its verdict, and the nodes that have not yet received it."""

from collections.abc import Mapping

from msgspec.structs import replace

from ... import defaults, exit_codes
from ..policy.postmortem import Postmortem
from ..protocol.messages import JobSpec, Outcome, Verdict
from ..protocol.offer import Saving
from .events import Command, Finish, Send

_EXIT_CODES = {
    Outcome.SUCCEEDED: exit_codes.SUCCESS,
    Outcome.WORKERS_FAILED: exit_codes.WORKERS_FAILED,
    Outcome.RENDEZVOUS_FAILED: exit_codes.RENDEZVOUS_FAILED,
    Outcome.POLICY_ENDED: exit_codes.POLICY_ENDED_JOB,
    Outcome.CHECKS_FAILED: exit_codes.CHECKS_FAILED,
}


def verdict_of(
    outcome: Outcome, sentence: str, restarts: int, rounds: int, postmortem: Postmortem
) -> Verdict:
    """Return the verdict; it includes failures of the last round only if they are the reason."""
    failed = outcome in (Outcome.WORKERS_FAILED, Outcome.POLICY_ENDED)
    return Verdict(
        outcome=outcome,
        exit_code=_EXIT_CODES[outcome],
        sentence=sentence,
        restarts=restarts,
        rounds=rounds,
        cause=postmortem.cause if failed else None,
        failures=postmortem.failures(defaults.FAILURES_IN_VERDICT) if failed else (),
        failure_count=postmortem.count if failed else 0,
    )


def spent(job: JobSpec, used: int) -> str:
    """Return how much of the restart budget is used, as text."""
    words = f"{used} of {job.max_restarts} restarts used"
    if job.policy is not None and job.policy.restart_window_s:
        words += f" within {span(job.policy.restart_window_s)}"
    return words


def span(seconds: float) -> str:
    """Return a readable duration: ``24 h``, ``90 s``."""
    for unit, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * unit and seconds % unit == 0:
            return f"{seconds / unit:g} {name}"
    return f"{seconds:g} s"


def sentence_of(
    outcome: Outcome,
    postmortem: Postmortem,
    *,
    spent: str,
    decision: str,
    rank0_alone: bool,
) -> str:
    """Return a message on why a job ended; ``decision`` is empty for the default rule."""
    if outcome is Outcome.SUCCEEDED:
        return f"{'rank 0' if rank0_alone else 'all workers'} succeeded ({spent})"
    if outcome is Outcome.POLICY_ENDED:
        return f"the failure policy ended the job: {postmortem.reason} ({decision}; {spent})"
    return f"{postmortem.reason} ({f'{decision}; ' if decision else ''}{spent})"


class Ending:
    """A verdict, and its delivery to the nodes."""

    def __init__(
        self, verdict: Verdict, until: float, savings: Mapping[str, Saving] | None = None
    ) -> None:
        self.verdict = verdict
        self._savings = savings or {}
        self.until = until
        """When nodes that have not received it are given up, in the group's time."""
        self.is_over = False
        self._unheard: set[int] = set()

    def tell(self, link: int, node_id: str = "") -> Command:
        """Return the command that sends the verdict; ``node_id`` is empty for a new node."""
        self._unheard.add(link)
        saving = self._savings.get(node_id)
        return Send(link, self.verdict if saving is None else replace(self.verdict, saving=saving))

    def heard(self, link: int) -> None:
        """Record that the verdict was received on a stream."""
        self._unheard.discard(link)

    def gone(self, link: int) -> bool:
        """Forget a stream; return whether its node had received the verdict."""
        had_heard = link not in self._unheard
        self._unheard.discard(link)
        return had_heard

    def advance(self, detached: int, now: float) -> list[Command]:
        """Return ``Finish``, once, when every node has received the verdict or the time is up.

        ``detached``: number of nodes that may still reconnect to receive it.
        """
        if self.is_over or ((self._unheard or detached) and now < self.until):
            return []
        self.is_over = True
        return [Finish(self.verdict)]
