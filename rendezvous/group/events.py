"""What goes into the group's rules and what comes out of them, and the times they are set to."""

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
    """The times of a group, in seconds."""

    rescale_delay_s: float = defaults.RESCALE_DELAY_S
    """Where the job has no ``--rescale-delay`` of its own; infinity: never."""
    takeover_grace_s: float = defaults.TAKEOVER_GRACE_S
    identity_answer_s: float = defaults.IDENTITY_ANSWER_S
    verdict_grace_s: float = defaults.VERDICT_GRACE_S
    term: int = 0
    """Of the lease by which this master leads; 0 where there is one endpoint."""
    known: tuple[int, int] = (0, -1)
    """Term and number of the newest round that the listed hosts know of. One that is older is not
    taken over: what the newer one has started may be alive elsewhere."""
    starts_from: float = -math.inf
    """By the group's clock: no worker is started earlier, for those that an earlier leader started
    may be alive. A round that is found whole is taken over all the same."""
    quorum_term: int = 0
    """Term of the newest round that each host of the electing majority knew; 0 if they differ."""
    wait_s: float = 0.0
    """How long workers may live that this master cannot reach."""
    succession: SuccessionSpec | None = None
    """With several endpoints: what nodes must have been given as well."""

    @classmethod
    def of(cls, timeouts: Timeouts, **others: Any) -> "GroupSettings":
        """Return the settings with these times, and other fields."""
        return cls(
            **{name: getattr(timeouts, name) for name in Timeouts.__struct_fields__}, **others
        )


# --- events ----------------------------------------------------------------------------------


class Received(Struct, frozen=True):
    """A message came in on a stream. The first one on a stream is ``Attend``."""

    link: int
    message: NodeMessage


class Detached(Struct, frozen=True):
    """A stream is gone."""

    link: int


class Renewed(Struct, frozen=True):
    """The node in the process of the master has renewed its offer."""

    link: int
    offer: Offer


class Tick(Struct, frozen=True):
    """Time has passed."""


class Hung(Struct, frozen=True):
    """Workers of a round hang, as the stacks of all ranks say."""

    round: int
    failure: Failure
    stacks: str
    """Where all ranks were, for people; bounded."""
    is_alone: bool = False
    """Other ranks get on: they may save something when they are stopped."""


Event = Received | Detached | Renewed | Tick | Hung


# --- commands --------------------------------------------------------------------------------


class Send(Struct, frozen=True):
    """Send a message on a stream."""

    link: int
    message: MasterMessage


class Close(Struct, frozen=True):
    """End a stream after what was sent on it."""

    link: int


class Finish(Struct, frozen=True):
    """The job is over and every node that is there has heard the verdict."""

    verdict: Verdict


Command = Send | Close | MasterEvent | Finish
