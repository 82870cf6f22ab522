"""One row of the case table, and the ways in which flags can be spelled."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ft_run.tests.conformance.launchers import Launcher, Surroundings

if TYPE_CHECKING:
    from ft_run.tests.e2e.conftest import Command

    Act = Callable[[Launcher, "Sequence[Command]"], None]

PAIR: Final = "--standalone --nproc-per-node 2 "
"""The flags of most rows: two workers, one node."""


@dataclass(frozen=True)
class Row:
    """One job, run by both launchers and compared.

    ``{script}``, ``{dir}``, ``{logs}``, ``{port}`` stand for paths and a port of the run.
    """

    name: str
    covers: str
    """The ids, see ``REQUIRED``, of what it checks."""
    args: str = ""
    """Of all agents, before the script; split at spaces."""
    script: str = ""
    """What the workers do after they have reported what they see."""
    words: tuple[str, ...] = ("{script}",)
    """The script and its arguments."""
    agents: tuple[str, ...] = ("",)
    """Further arguments, for each agent."""
    env: Mapping[str, str] = field(default_factory=dict)
    differs: tuple[str, ...] = ()
    """The differences that are met."""
    act: "Act | None" = None
    """What happens to the job."""
    job_id: str = ""
    surroundings: Surroundings = field(default_factory=Surroundings)
    needs_root: bool = False
    since: str = ""
    """The first torch whose torchrun can do it: with an older one it is taken as recorded."""


def spelled(flags: Mapping[str, str], how: str) -> dict[str, Any]:
    """Return ``args`` and ``env`` of a row that gives flags as dashes, prefixes, variables…"""
    if how == "variables":
        names = {flag: f"PET_{flag.replace('-', '_').upper()}" for flag in flags}
        return {"env": {names[flag]: value or "1" for flag, value in flags.items()}}
    words = []
    for flag, value in flags.items():
        word = "--" + flag
        if how == "underscores":
            word = "--" + flag.replace("-", "_")
        if how == "prefixes":
            word = "--" + _PREFIX.get(flag, flag)
        words += [f"{word}={value}" if how == "equals" else f"{word} {value}"]
    return {"args": " ".join(words)}


_PREFIX: Final = {
    "nnodes": "nn",
    "nproc-per-node": "nproc-",
    "rdzv-backend": "rdzv-b",
    "rdzv-endpoint": "rdzv_e",
    "rdzv-id": "rdzv-i",
    "rdzv-conf": "rdzv_c",
    "max-restarts": "max-",
    "monitor-interval": "monitor-",
    "start-method": "start-",
    "event-log-handler": "event_",
    "role": "rol",
    "log-dir": "log-d",
    "redirects": "redirect",
    "tee": "te",
    "local-ranks-filter": "local-r",
    "duplicate-stdout-filters": "duplicate-stdo",
    "duplicate-stderr-filters": "duplicate_stde",
    "local-addr": "local_a",
    "signals-to-handle": "signals-",
    "shutdown-timeout": "shutdown-",
    "virtual-local-rank": "virtual-",
    "standalone": "stand",
    "no-python": "no-p",
    "module": "mod",
    "node-rank": "node-",
    "master-addr": "master-a",
    "master-port": "master_p",
}
