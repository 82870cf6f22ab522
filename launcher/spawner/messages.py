"""The messages between agent and spawner, and from the fork server to the spawner."""

import os
from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct, field

from ...events.preload import PreloadSource, PreloadState
from ..machine.shortage import is_shortage, no_process
from ..processes.worker_exec import Worker, explained

# --- from the agent --------------------------------------------------------------------------


class Preload(Struct, frozen=True, tag=True):
    """Start a fork server; see ``SpawnerClient.preload``."""

    modules: list[str]
    argv: list[str]
    env: dict[str, str]
    differing: list[str]
    secluded: bool
    source: PreloadSource
    default_signals: list[int]
    blocked_signals: list[int]


class Spawn(Struct, frozen=True, tag=True):
    """Start the workers of a round; their descriptors are sent with the message."""

    round: int
    workers: list[Worker]


class Command(Struct, frozen=True, tag=True):
    """Send a signal to workers that handle it, tell them to end, or end all descendants.

    The number is the signal or, to end all (SIGTERM, SIGKILL), that of the ``Empty`` to follow.
    """

    do: Literal["signal", "stop", "terminate", "kill"]
    number: int


class Fence(Struct, frozen=True, tag=True):
    """Kill the workers at a time (seconds of CLOCK_BOOTTIME) unless the agent extends it."""

    at: float


class LastWords(Struct, frozen=True, tag=True):
    """The text that is written to the terminal if the agent is killed."""

    text: str


Request = Preload | Spawn | Command | Fence | LastWords

# --- to the agent ----------------------------------------------------------------------------


class Hello(Struct, frozen=True, tag=True):
    """The spawner runs."""

    pid: int


class Spawned(Struct, frozen=True, tag=True):
    """The workers of a round have been started."""

    round: int
    pids: tuple[int, ...]
    """Process IDs, by local rank; 0 if no process was created."""
    errors: Mapping[int, int] = field(default_factory=dict)
    """The code (``worker_exec.error_code``) of each worker, by local rank, that was not started;
    such a worker exits with 127."""

    def why_not(self, programs: Sequence[str]) -> dict[int, str]:
        """Return the reason for each worker, by local rank, that could not be started."""
        return {
            rank: explained(code, programs[rank])
            if self.pids[rank]
            else no_process(OSError(code, os.strerror(code)))
            for rank, code in self.errors.items()
        }

    def is_shortage(self, local_rank: int) -> bool:
        """Return whether a worker could not be started because a resource was exhausted."""
        return not self.pids[local_rank] or is_shortage(self.errors.get(local_rank, 0))


class Exited(Struct, frozen=True, tag=True):
    """A worker has exited."""

    round: int
    local_rank: int
    exit_code: int
    """In the format of ``subprocess``: the exit code, or minus the signal's number."""
    has_spared: bool = False
    """Whether it had child processes that ``stop`` did not signal."""


class Empty(Struct, frozen=True, tag=True):
    """After ``kill`` or ``terminate_all``: workers and their descendants have all exited."""

    number: int = 0
    """The number of the request."""


class Fenced(Struct, frozen=True, tag=True):
    """The workers were killed, or not started, because the time set by ``fence`` had passed."""

    late_s: float
    """The delay between that time and the action, in seconds."""


class ForkServerEvent(Struct, frozen=True, tag=True):
    """The state of the fork server has changed."""

    state: PreloadState
    pid: int
    """0 if no fork server is currently running."""
    text: str = ""
    """READY: how long the start took. STALE: the file that changed. FAILED: the reason."""
    in_background: bool = False
    """Whether workers do not wait for it."""


class SpawnerGone(Struct, frozen=True):
    """The spawner died; the kernel has killed the workers with it."""


Event = Hello | Spawned | Exited | Empty | Fenced | ForkServerEvent
SpawnerEvent = Spawned | Exited | Empty | Fenced | ForkServerEvent | SpawnerGone

# --- of the fork server ----------------------------------------------------------------------


class ForkServerReply(Struct, frozen=True):
    """An answer of the fork server, which sets one field."""

    ready: int | None = None
    """Its memory in MiB; 0 if unknown."""
    pids: list[int] | None = None
    """Process IDs of the forked workers."""
    stale: str | None = None
    """The imported file that has changed."""
    failed: str | None = None
    """Why the modules cannot be preloaded."""
    cold: str | None = None
    """Why workers cannot be forked."""
