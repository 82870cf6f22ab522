"""The options of one ``ft-run hosts``."""

from collections.abc import Mapping

from ..values import dataclass


@dataclass(frozen=True, slots=True)
class NodeCommand:
    """What ``ft-run hosts`` starts on one host."""

    host: str
    """As ssh takes it."""
    argv: tuple[str, ...]
    """The arguments of ft-run."""


@dataclass(frozen=True, slots=True)
class HostsOptions:
    """Everything that one ``ft-run hosts`` was asked to do."""

    nodes: tuple[NodeCommand, ...]
    least: int
    """The job cannot go on with fewer nodes."""
    ssh: tuple[str, ...]
    environ: Mapping[str, str]
    folder: str
    program: str
    """The path of ft-run on the hosts."""
