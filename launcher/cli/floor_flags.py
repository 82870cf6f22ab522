"""The floors that metrics must reach: flags of ``ft-run check`` and of ``--network-check``."""

from collections.abc import Collection
from typing import Final

from ...errors import UsageError
from ..flags import values
from ..flags.flag import Flag
from ..flags.values import BadValue
from .command_line import Given

_GROUP: Final = "Checks"

_ALONE: Final = {
    "compute_tflops": ("TFLOPS", "the matrix product of the slowest device"),
    "memory_gb_per_s": ("GB/S", "the memory of the slowest device"),
    "copy_gb_per_s": ("GB/S", "the copy from host to device"),
    "intra_gb_per_s": ("GB/S", "the all-reduce within the node"),
}
"""Metric → unit and words, of what a node measures by itself."""

_TOGETHER: Final = {
    "latency_us": ("US", "an all-reduce of 32 bytes takes longer"),
    "bandwidth_gb_per_s": ("GB/S", "a large all-reduce is slower"),
}
"""The same of what two nodes measure."""

_FLAGS: Final = {
    name: ("--max-" if name == "latency_us" else "--min-") + name.replace("_", "-")
    for name in (*_ALONE, *_TOGETHER)
}

FLOOR_KEYS: Final = {
    flag.removeprefix("--").replace("-", "_"): name for name, flag in _FLAGS.items()
}
"""Key of a flag among the given ones → metric."""


def floor_flags() -> list[Flag]:
    """Return a flag for each metric."""
    twice = "twice running; a node where it cannot be measured is unhealthy."
    helps = {
        name: (unit, f"Warn when {words} is slower, {twice}")
        for name, (unit, words) in _ALONE.items()
    }
    for name, (unit, words) in _TOGETHER.items():
        helps[name] = (unit, f"With several nodes: warn when {words}, with two partners.")
    return [
        Flag(_FLAGS[name], group=_GROUP, metavar=unit, read=_floor, ours=True, help=text)
        for name, (unit, text) in helps.items()
    ]


def given_floors(given: Given, max_nodes: int, remarks: list[str]) -> dict[str, float]:
    """Return the floors, by metric.

    Args:
        given: the flags and variables.
        max_nodes: how many nodes there may be.
        remarks: takes what is ignored.

    Raises:
        UsageError: a flag is for several nodes, and there is one.
    """
    floors = {}
    for key, name in FLOOR_KEYS.items():
        if given[key] is None:
            continue
        if name in _ALONE or max_nodes > 1:
            floors[name] = given[key]
        else:
            needs_others(given.origin(key), remarks)
    return floors


def needs_others(origin: str, remarks: list[str]) -> None:
    """Report a flag or variable for several nodes in a job of one node.

    Args:
        origin: ``--flag`` or ``PET_FLAG``.
        remarks: takes the sentence for a variable: it may be meant for the training.

    Raises:
        UsageError: it is a flag.
    """
    says = f"{origin} is for several nodes, but there is one only"
    if origin.startswith("--"):
        raise UsageError(f"{says}; right would be --nnodes 2 or more beside it.")
    remarks.append(f"{says}: it is ignored.")


def refuse_floors(names: Collection[str], accelerator: str, workers: int | None) -> None:
    """Refuse a floor for what cannot be measured here: no healthy node would pass.

    Args:
        names: of the metrics that have a floor.
        accelerator: ``--accelerator``.
        workers: of this node; None where that is not known yet.

    Raises:
        UsageError: there is such a floor.
    """
    if "copy_gb_per_s" in names and accelerator == "cpu":
        raise UsageError(
            "--min-copy-gb-per-s is for the copy from host to GPU, but --accelerator cpu leaves the"
            " GPUs alone; right would be one of the two without the other."
        )
    if "intra_gb_per_s" in names and workers == 1:
        raise UsageError(
            "--min-intra-gb-per-s is for the all-reduce within the node, but there is one worker"
            " only; right would be --nproc-per-node 2 or more."
        )


def known_count(nproc_per_node: str) -> int | None:
    """Return the number of workers; None for a word such as ``gpu``."""
    return int(nproc_per_node) if nproc_per_node.isdigit() else None


def _floor(text: str) -> float:
    try:
        number = values.number(text)
    except BadValue:
        number = 0.0
    if not 0 < number < 1e9:
        raise BadValue("a number above 0")
    return number
