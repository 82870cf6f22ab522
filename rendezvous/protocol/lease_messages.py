"""What hosts that may lead ask each other. Names and fields are those of ``rendezvous.proto``."""

import enum

from ...values import dataclass
from .bounded import Ballot, Count, CountOrNone, ExitCode, Name, Names, Setting

NO_HOST = -1
"""Stands for a host where there is none: nothing leads."""
NO_ROUND = (0, -1)
"""Stands for term and number of a round where there is none."""


@dataclass(frozen=True, slots=True)
class SuccessionSpec:
    """What must be the same on all hosts that may lead, and on their nodes. Times in seconds.

    The times of the nodes tell a new leader when no worker of an earlier one is left.
    """

    endpoints: Names
    """All that are listed, in their order, with commas."""
    lease_s: Setting
    fence_s: Setting
    node_timeout_s: Setting
    node_grace_s: Setting


class LeaseStep(enum.Enum):
    """What is asked of an acceptor."""

    PREPARE = 1
    """Promise not to take a lower number any more."""
    PROPOSE = 2
    """Take this process for the leader, for as long as a lease is."""
    RELEASE = 3
    """The lease is given back."""
    END = 4
    """It is given back for good: the job is over, and its nodes have heard so."""

    @property
    def gives_back(self) -> bool:
        """Whether the lease is over with it."""
        return self in (LeaseStep.RELEASE, LeaseStep.END)


@dataclass(frozen=True, slots=True)
class LeaseAsk:
    """One question of a proposer; all acceptors get the same."""

    step: LeaseStep
    host: Count
    """Of the process that asks: its place in the list of endpoints."""
    process: Name
    """Random id of the process that asks: a host that was started again is another."""
    number: Ballot
    """Of the proposal; no two hosts use one number."""
    term: Ballot
    """The number with which the lease was won; it stays while the lease is renewed."""
    lease_ms: Count
    """How long an acceptor keeps to it, by its own clock."""
    round_term: Ballot = 0
    """With ``round``: the newest round that there is, or that may be next."""
    round: CountOrNone = -1
    exit_code: ExitCode = 0
    """Of the job, with ``END``."""


@dataclass(frozen=True, slots=True)
class LeaseAnswer:
    """What an acceptor says."""

    accepted: bool
    highest: Ballot
    """The highest number that this host has seen."""
    knows_earlier: bool = False
    """This host has known of a lease of a lower term than the one that was asked for."""
    round_term: Ballot = 0
    """With ``round``: the newest round that this host knows of."""
    round: CountOrNone = -1
    host: CountOrNone = NO_HOST
    """Of the process that answers: its place in the list of endpoints."""
