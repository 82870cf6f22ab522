"""The parts of a node that must be forked, found or read before its event loop starts."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ...rendezvous.protocol.messages import NodeSpec
from ...values import dataclass, field
from ..logs.log_dir import LogDir
from ..logs.relay_client import RelayClient
from ..machine.worker_count import WorkerCount
from ..options import LaunchOptions
from ..reporting.display import Display
from ..spawner.client import SpawnerClient
from .identity import NodeIdentity
from .worker_command import WorkerCommands

if TYPE_CHECKING:
    from ...rendezvous.trust.wire import Trust
    from .file_timers import FileTimers


@dataclass(frozen=True, slots=True)
class NodeParts:
    """Made by ``launch``, which also closes them."""

    options: LaunchOptions
    count: WorkerCount
    commands: WorkerCommands
    """Programs and environments of the workers."""
    cpus: tuple[frozenset[int], ...] | None
    """The CPUs that each worker is bound to, by local rank; None: not bound."""
    log_dir: LogDir
    spawner: SpawnerClient
    """Starts and signals the workers that train."""
    check_spawner: SpawnerClient | None
    """Starts the check workers; None without checks."""
    relay: RelayClient | None
    """Carries the workers' output where it must be prefixed, filtered or copied."""
    display: Display
    timers: "FileTimers | None" = None
    """Torch's timers that workers set themselves; None where the user has not asked for them."""
    gpus_shown: Mapping[str, str] = field(default_factory=dict)
    """With checks: the kinds of GPUs that the machine shows, and how they were counted."""
    trust: "Trust | None" = None
    """What closes the wire; None: plain text, or a node by itself."""

    def node_spec(self, identity: NodeIdentity, address: str) -> NodeSpec:
        """Return what the master is told of this node.

        Args:
            identity: which node it is.
            address: where other nodes reach it.
        """
        return NodeSpec(
            node_id=identity.node_id,
            incarnation=identity.incarnation,
            host=identity.host,
            address=address,
            role=self.options.role,
            local_world_size=self.count.count,
            wanted_rank=self.options.rendezvous.node_rank,
            is_watched=self.commands.are_watched,
        )
