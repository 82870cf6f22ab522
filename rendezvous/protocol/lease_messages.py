"""Messages between the hosts that can lead. Names and fields as in ``rendezvous.proto``."""

import enum
from typing import Annotated

from msgspec import Struct

from . import bounds
from .bounds import (
    Ballot,
    Called,
    Count,
    CountOrNone,
    ExitCode,
    Name,
    Names,
    Seconds,
    SecondsOrNever,
    Whole,
)

NO_HOST = -1
"""Value if no host leads."""
NO_ROUND = (0, -1)
"""Value of term and number for no round."""


class SuccessionSpec(Struct, frozen=True):
    """Options that must be the same on all hosts that can lead, and on nodes. Times in seconds.

    From the times of the nodes, a new leader knows when no worker of an earlier one is left.
    """

    endpoints: Annotated[Names, Called("--rdzv-endpoint")]
    """All listed endpoints, in their order, separated by commas."""
    lease_s: Annotated[Seconds, Called("--rdzv-conf lease in seconds")]
    fence_s: Annotated[SecondsOrNever, Called("--rdzv-conf fence in seconds")]
    node_timeout_s: Annotated[Seconds, Called("--rdzv-conf node_timeout in seconds")]
    node_grace_s: Annotated[Seconds, Called("--rdzv-conf node_grace in seconds")]


class LeaseStep(enum.Enum):
    """Kind of a request to an acceptor."""

    PREPARE = 1
    """Promise not to accept lower numbers."""
    PROPOSE = 2
    """Accept this process as the leader, for the length of a lease."""
    RELEASE = 3
    """The lease is released."""
    END = 4
    """The lease is released, and the job has ended: its nodes have received the verdict."""

    @property
    def gives_back(self) -> bool:
        """Whether it ends the lease."""
        return self in (LeaseStep.RELEASE, LeaseStep.END)


class LeaseAsk(Struct, frozen=True):
    """One request of a proposer, the same for all acceptors."""

    step: LeaseStep
    host: Count
    """Position of the sender in the list of endpoints."""
    process: Name
    """Random ID of the sending process, which changes when a host restarts."""
    number: Ballot
    """Number of the proposal; no two hosts use the same number."""
    term: Ballot
    """Number with which the lease was won; it does not change when the lease is renewed."""
    lease_ms: Count
    """Length of the lease, by the acceptor's own clock."""
    round_term: Ballot = 0
    """With ``round``: the newest round, which may not have started yet."""
    round: CountOrNone = -1
    exit_code: ExitCode = 0
    """Exit code of the job, with ``END``."""


class LeaseAnswer(Struct, frozen=True):
    """The answer of an acceptor."""

    accepted: bool
    highest: Ballot
    """Highest number that this host knows."""
    knows_earlier: bool = False
    """Whether this host knows of a round of another term than the requested one."""
    round_term: Ballot = 0
    """With ``round``: the newest round that this host knows."""
    round: CountOrNone = -1
    host: CountOrNone = NO_HOST
    """Position of the sender in the list of endpoints."""
    announced_term: Ballot = 0
    """Term of the newest round that a leader has announced to this process. What it knows of a
    newer one comes from other hosts, as after its restart; then leaders may be unknown."""


def check(message: LeaseAsk | LeaseAnswer, hosts: int) -> None:
    """Check a message of another listed host; raises like ``bounds.check``."""
    bounds.check(message)
    if isinstance(message, LeaseAsk):
        bounds.check_whole(Whole(0, hosts - 1), "host", message.host)
        bounds.check_whole(Whole(0, message.number), "term", message.term)
        bounds.check_whole(Whole(0, message.term), "round_term", message.round_term)
    else:
        bounds.check_whole(Whole(NO_HOST, hosts - 1), "host", message.host)
