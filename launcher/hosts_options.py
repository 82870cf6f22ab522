"""The options of one ``ft-run hosts``."""

from collections.abc import Mapping

from msgspec import Struct


class NodeCommand(Struct, frozen=True):
    """The command that ``ft-run hosts`` starts on one host."""

    host: str
    """The name for ssh."""
    argv: tuple[str, ...]


class HostsOptions(Struct, frozen=True):
    """The options of one ``ft-run hosts``."""

    nodes: tuple[NodeCommand, ...]
    least: int
    """The minimum number of nodes that the job needs to continue."""
    ssh: tuple[str, ...]
    environ: Mapping[str, str]
    folder: str
    program: str
    """The path of ft-run on the hosts."""
