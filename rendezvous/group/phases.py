"""What a group as a whole is doing: one value for each phase, with all that the phase knows."""

import enum
import math

from msgspec import Struct

from .ending import Ending
from .takeover import Takeover


class GroupPhase(enum.Enum):
    """The phases by name, for people and for what is outside of the group."""

    GATHERING = "waiting for nodes"
    CHECKING = "checking nodes"
    TAKING_OVER = "taking over a running round"
    RUNNING = "running"
    STOPPING = "stopping a round"
    FINISHED = "finished"


class Gathering:
    """No round runs: nodes are waited for."""


class Checking:
    """Nodes are examined before the next round; the gate has the examination."""


class Running(Struct):
    """A round runs."""

    formed_at: float | None
    """None when an earlier master formed it."""
    rank0_is_done: bool = False
    """Rank 0 has succeeded, and decides."""
    rescale_at: float = math.inf
    """When all ranks are to save a snapshot, for a larger world; infinity: not planned."""
    grows_until: float = math.inf
    """They save it, until then at the latest the round is stopped; infinity: they do not."""

    is_fixed: bool = False
    """Whether only this number of ranks can load the workers' state: the world does not grow."""

    @property
    def is_growing(self) -> bool:
        """Whether a larger world is planned."""
        return min(self.rescale_at, self.grows_until) < math.inf


class Stopping(Struct):
    """A round is being stopped."""

    ran_s: float | None
    """How long it ran until then; None where that is not known."""
    rank0_is_done: bool = False
    """As in ``Running``."""


Phase = Gathering | Checking | Takeover | Running | Stopping | Ending

NAMES: dict[type, GroupPhase] = {
    Gathering: GroupPhase.GATHERING,
    Checking: GroupPhase.CHECKING,
    Takeover: GroupPhase.TAKING_OVER,
    Running: GroupPhase.RUNNING,
    Stopping: GroupPhase.STOPPING,
    Ending: GroupPhase.FINISHED,
}
