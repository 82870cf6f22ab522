"""Resources for the start of the workers of this node."""

from msgspec import Struct

from ..logs.log_dir import LogDir
from ..logs.relay_client import RelayClient
from ..spawner.client import SpawnerClient
from .file_timers import FileTimers
from .worker_command import WorkerCommands


class WorkerStarter(Struct, frozen=True):
    """The same in every round. ``launch`` creates it before the event loop, and closes it."""

    commands: WorkerCommands
    cpus: tuple[frozenset[int], ...] | None
    """The CPUs that each worker is bound to, by local rank; None if not bound."""
    log_dir: LogDir
    spawner: SpawnerClient
    relay: RelayClient | None
    """Carries their output if it must be prefixed, filtered or copied."""
    timers: "FileTimers | None" = None
    """Torch's timers that workers set themselves; None unless the user requested them."""
