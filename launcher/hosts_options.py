"""The options of one ``ft-run hosts``."""

from collections.abc import Mapping

from msgspec import Struct


class NodeCommand(Struct, frozen=True):
    """What ``ft-run hosts`` starts on one host."""

    host: str
    """As ssh takes it."""
    argv: tuple[str, ...]
    """The arguments of ft-run."""


class HostsOptions(Struct, frozen=True):
    """Everything that one ``ft-run hosts`` was asked to do."""

    nodes: tuple[NodeCommand, ...]
    least: int
    """The job cannot go on with fewer nodes."""
    ssh: tuple[str, ...]
    environ: Mapping[str, str]
    folder: str
    program: str
    """The path of ft-run on the hosts."""
