"""Events of the modules that ``--preload`` imports."""

import enum

from .event import Event, RoundEvent, Severity


class PreloadState(enum.Enum):
    """State of the fork server that imports the modules of ``--preload``."""

    LOADING = "loading"
    READY = "ready"
    STALE = "stale"
    """Files of its modules have changed: the modules are imported again."""
    FAILED = "failed"
    """It cannot be used: workers start without it."""


class PreloadSource(enum.Enum):
    """Where the names of the modules come from."""

    OPTION = "option"
    """``--preload MODULE,...``"""
    WORKERS = "workers"
    """``--preload auto``: the modules that the workers of this node had imported by their first
    step."""
    TUNE_FILE = "tune file"
    """``--preload auto``: the modules of ``--tune-file``, from an earlier start of the job."""


class PreloadChanged(Event, frozen=True):
    """The state of the modules of ``--preload`` has changed."""

    state: PreloadState
    modules: tuple[str, ...]
    detail: str
    """The duration, the file that has changed, or the reason of the failure."""
    is_of_checks: bool = False
    """Whether it is for the check workers."""
    source: PreloadSource = PreloadSource.OPTION

    name = "preload.changed"

    @property
    def severity(self) -> Severity:
        """How much it matters."""
        if self.state is PreloadState.LOADING:
            return Severity.DEBUG
        return Severity.WARNING if self.state is PreloadState.FAILED else Severity.INFO

    def __str__(self) -> str:
        named = ", ".join(self.modules)
        if self.source is not PreloadSource.OPTION:
            packages = dict.fromkeys(name.partition(".")[0] for name in self.modules)
            named = f"{len(self.modules)} module(s) of {', '.join(packages)}"
        match self.state:
            case PreloadState.LOADING:
                return f"preload: importing {named}"
            case PreloadState.READY if self.source is PreloadSource.WORKERS:
                return (
                    f"preload: imported {named}, which the workers use, in {self.detail}; the next"
                    " workers are forked"
                )
            case PreloadState.READY:
                return f"preload: imported {named} in {self.detail}"
            case PreloadState.STALE:
                return f"preload: {self.detail} has changed on disk; importing again"
            case PreloadState.FAILED:
                which = "check worker" if self.is_of_checks else "worker"
                return f"preload: {self.detail}; falling back to normal {which} start"


class NothingToPreload(RoundEvent, frozen=True):
    """``--preload auto`` knows none of the modules that the workers use: nothing is imported."""

    name = "preload.nothing"
    line = (
        "{at} preload: the workers use no module that is known to be safe to fork; falling back to"
        " normal worker start"
    )


class PreloadAwaited(RoundEvent, frozen=True):
    """The workers of a round start when the modules of ``--preload`` have been imported."""

    name = "preload.awaited"
    line = "{at} waiting for --preload imports"
