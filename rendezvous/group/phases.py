"""The phase of a group: one class for each phase, with the phase's state."""

import enum
import math

from msgspec import Struct

from .ending import Ending
from .takeover import Takeover


class GroupPhase(enum.Enum):
    """Phases by name, for display and for code outside the group."""

    GATHERING = "waiting for nodes"
    CHECKING = "checking nodes"
    TAKING_OVER = "taking over a running round"
    RUNNING = "running"
    STOPPING = "stopping a round"
    FINISHED = "finished"


class Gathering:
    """No round is running: the group waits for nodes."""


class Checking:
    """Nodes are examined before the next round; the gate has the examination."""


class Running(Struct):
    """A round is running."""

    formed_at: float | None
    """None if an earlier master formed it."""
    rank0_is_done: bool = False
    """Rank 0 has succeeded, and its success decides."""
    rescale_at: float = math.inf
    """When all ranks are to save a snapshot, for a larger world; infinity if not planned."""
    grows_until: float = math.inf
    """While they save it: deadline after which the round is stopped; infinity if they do not."""

    is_fixed: bool = False
    """Whether only this number of ranks can load the workers' state, so that the world cannot
    grow."""

    @property
    def is_growing(self) -> bool:
        """Whether a larger world is planned."""
        return min(self.rescale_at, self.grows_until) < math.inf


class Stopping(Struct):
    """A round is being stopped."""

    ran_s: float | None
    """How long it had run; None if unknown."""
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
