"""The events that ``accounting`` uses."""

from typing import Final

STOPS: Final = frozenset(
    {
        *("workers.stopping", "worker.failed", "workers.succeeded", "workers.fenced"),
        *("agent.signalled", "agent.leaving"),
    }
)
NAMES: Final = STOPS | {
    *("agent.started", "agent.waiting", "agent.preempted", "drain.ordered", "host.suspended"),
    *("checks.progressed", "checks.ended", "round.started", "workers.started"),
    *("training.started", "round.progressed", "hang.suspected", "hang.dismissed", "round.ended"),
    *("restart.decided", "regroup.decided", "time.accounted", "job.ended"),
}
