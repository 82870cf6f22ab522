"""The options of one ``ft-run rehearse``."""

from ..values import dataclass
from .flags import values
from .flags.flag import Heading

_OPTIONS = Heading("Options")
ROWS = ("again", "worker", "stop", "kill", "workers", "node")
"""Faults to rehearse, as ``--only`` names them."""


def _listed(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _rows(text: str) -> tuple[str, ...]:
    found = _listed(text)
    if not found or not set(found) <= {*ROWS}:
        raise values.BadValue(f"some of {', '.join(ROWS)}")
    return found


@dataclass(frozen=True, slots=True)
class RehearseOptions:
    """Everything that one ``ft-run rehearse`` was asked to do."""

    steps: int = _OPTIONS.option(
        30,
        "--steps N",
        "Steps of a run, over all Checkpointers of the script (default: 30).",
        values.whole(6),
    )
    seed: int | None = _OPTIONS.option(
        None, "--seed N", "Choose other steps and ranks to fail.", values.whole(0)
    )
    only: tuple[str, ...] = _OPTIONS.option(
        ROWS,
        "--only ROW,...",
        f"Rehearse only some of {', '.join(ROWS)} (default: all that apply).",
        _rows,
    )
    nodes: int = _OPTIONS.option(
        1, "--nodes N", "1, or 2: with two agents on this machine (default: 1).", values.whole(1)
    )
    ignore: tuple[str, ...] = _OPTIONS.option(
        (),
        "--ignore NAME,...",
        "Variables of the script that may differ after a restart, e.g. a count for the log.",
        _listed,
    )
    timeout_s: float = _OPTIONS.option(
        300.0,
        "--timeout DURATION",
        "Time without a completed step after which a run has hung (default: 5m).",
        values.seconds_above_zero,
    )
    json: bool = _OPTIONS.option(False, "--json", "Print JSON instead of text.")
    job: tuple[str, ...] = ()
    """Options of the job, as arguments."""
    workers: str | None = None
    """``--nproc-per-node`` of the job."""
    script: tuple[str, ...] = ()
    """The script and its arguments."""
