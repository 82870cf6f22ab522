"""Input and output of the group's rules, and their time limits."""

import math
from typing import Any

from msgspec import Struct

from ... import defaults
from ...events.master import MasterEvent
from ..protocol.failure import Failure
from ..protocol.lease_messages import SuccessionSpec
from ..protocol.messages import MasterMessage, NodeMessage, Verdict
from ..protocol.offer import Offer
from ..protocol.timeouts import Timeouts


class GroupSettings(Timeouts, frozen=True):
    """Time limits of a group, in seconds."""

    rescale_delay_s: float = defaults.RESCALE_DELAY_S
    """Used if the job has no ``--rescale-delay``; infinity for never."""
    takeover_grace_s: float = defaults.TAKEOVER_GRACE_S
    identity_answer_s: float = defaults.IDENTITY_ANSWER_S
    verdict_grace_s: float = defaults.VERDICT_GRACE_S
    term: int = 0
    """Term of the lease by which this master leads; 0 with a single endpoint."""
    known: tuple[int, int] = (0, -1)
    """Term and number of the newest round that the listed hosts know. An older round is not taken
    over, because workers of the newer one may be alive elsewhere."""
    starts_from: float = -math.inf
    """Earliest time to start workers, by the group's clock: before it, workers of an earlier leader
    may still run. Does not delay the takeover of a complete round."""
    quorum_term: int = 0
    """Term of the newest round that was announced to each host of the electing majority; 0 if they
    differ."""
    wait_s: float = 0.0
    """How long workers that this master cannot reach can live."""
    succession: SuccessionSpec | None = None
    """With several endpoints: options that nodes must have, too."""

    @classmethod
    def of(cls, timeouts: Timeouts, **others: Any) -> "GroupSettings":
        """Return settings with these time limits and other fields."""
        return cls(
            **{name: getattr(timeouts, name) for name in Timeouts.__struct_fields__}, **others
        )


# --- events ----------------------------------------------------------------------------------


class Received(Struct, frozen=True):
    """A message was received on a stream. The first one on a stream is ``Attend``."""

    link: int
    message: NodeMessage


class Detached(Struct, frozen=True):
    """A stream has ended."""

    link: int


class Renewed(Struct, frozen=True):
    """The node in the master's own process has renewed its offer."""

    link: int
    offer: Offer


class Tick(Struct, frozen=True):
    """Time has passed."""


class Hung(Struct, frozen=True):
    """Workers of a round hang, according to the stacks of all ranks."""

    round: int
    failure: Failure
    stacks: str
    """Stacks of all ranks, for display; bounded."""
    is_alone: bool = False
    """Other ranks make progress and may save something when they are stopped."""


Event = Received | Detached | Renewed | Tick | Hung


# --- commands --------------------------------------------------------------------------------


class Send(Struct, frozen=True):
    """Send a message on a stream."""

    link: int
    message: MasterMessage


class Close(Struct, frozen=True):
    """End a stream after delivering pending messages."""

    link: int


class Finish(Struct, frozen=True):
    """The job has ended and every connected node has received the verdict."""

    verdict: Verdict


class RoundBegan(Struct, frozen=True):
    """A round runs: it was formed, or taken over with all of its members. For other rooms."""

    round: int
    members: frozenset[str]
    """Incarnations of its nodes."""


class NodeGone(Struct, frozen=True):
    """A node is not a part of the job any more. For other rooms."""

    incarnation: str


Command = Send | Close | MasterEvent | Finish | RoundBegan | NodeGone
