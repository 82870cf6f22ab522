"""What the workers of this node are started with."""

from typing import TYPE_CHECKING

from msgspec import Struct

from ..logs.log_dir import LogDir
from ..logs.relay_client import RelayClient
from ..spawner.client import SpawnerClient
from .worker_command import WorkerCommands

if TYPE_CHECKING:
    from .file_timers import FileTimers
    from .measuring import Measuring
    from .tune_file import TuneFile


class WorkerStarter(Struct, frozen=True):
    """The same in every round; made before the event loop by ``launch``, which also closes it."""

    commands: WorkerCommands
    """Programs and environments."""
    cpus: tuple[frozenset[int], ...] | None
    """The CPUs that each worker is bound to, by local rank; None: not bound."""
    log_dir: LogDir
    spawner: SpawnerClient
    """Starts and signals them."""
    relay: RelayClient | None
    """Carries their output where it must be prefixed, filtered or copied."""
    timers: "FileTimers | None" = None
    """Torch's timers that they set themselves; None where the user has not asked for them."""
    tune_file: "TuneFile | None" = None
    """``--tune-file``; None: it was not given."""
    measuring: "Measuring | None" = None
    """``--auto-tune advise``; None: it was not given."""
