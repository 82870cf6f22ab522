"""The flags of the checks before training, with their help, and what they mean."""

from ... import defaults
from ...checks.floors import floor_texts
from ...errors import UsageError
from ...rendezvous.protocol.check_messages import CheckSpec
from ..flags import values
from ..flags.flag import Flag
from ..options import LadderOptions
from .command_line import Given
from .floor_flags import (
    FLOOR_KEYS,
    floor_flags,
    given_floors,
    known_count,
    refuse_floors,
)

_GROUP = "Checks"
_DETAILS = (
    "check_level",
    "check_timeout",
    "check_on_restart",
    "check_mode",
    "exclude_straggler",
    "straggler_threshold",
    "compute_straggler_threshold",
    "check_report",
)


def ladder_flags() -> list[Flag]:
    """Return the flags of the checks before a job's workers start."""
    return [
        Flag(
            "--network-check",
            group=_GROUP,
            ours=True,
            help="Check the nodes before workers start, and go on without those that fail.",
        ),
        Flag(
            "--check-level",
            group=_GROUP,
            metavar="light|full",
            read=values.one_of("light", "full"),
            ours=True,
            help="light (default; seconds), or full: larger sizes and more repetitions.",
        ),
        Flag(
            "--check-timeout",
            group=_GROUP,
            metavar="SECONDS",
            read=values.seconds_above_zero,
            ours=True,
            help="For all phases of the checks together; default"
            f" {defaults.CHECK_TIMEOUT_S:g}, with GPUs {defaults.CHECK_TIMEOUT_GPUS_S:g}. What is"
            " not known by then has failed.",
        ),
        Flag(
            "--check-on-restart",
            group=_GROUP,
            metavar="node|never|always",
            read=values.one_of("never", "node", "always"),
            ours=True,
            help="Which nodes a restart checks again: node (default; where a signal, a lost node"
            " or an error of a device struck, all where a collective broke), never or always. New"
            " nodes are always checked.",
        ),
        Flag(
            "--check-mode",
            group=_GROUP,
            metavar="enforce|warn",
            read=values.one_of("enforce", "warn"),
            ours=True,
            help="enforce (default), or warn: say what failed and start all the same.",
        ),
        *straggler_flags(),
        *floor_flags(),
        Flag(
            "--check-report",
            group=_GROUP,
            metavar="FILE",
            read=values.string,
            ours=True,
            help="Where one node of the job writes what was found, as JSON.",
        ),
    ]


def straggler_flags() -> list[Flag]:
    """Return the flags for nodes that are slow."""
    return [
        Flag(
            "--exclude-straggler",
            group=_GROUP,
            ours=True,
            help="A node that is found to be slow fails the checks; default: it is warned of.",
        ),
        Flag(
            "--straggler-threshold",
            group=_GROUP,
            metavar="FACTOR",
            read=_factor,
            ours=True,
            help="How many times worse than the median of the others is slow; default"
            f" {defaults.STRAGGLER_THRESHOLD:g}.",
        ),
        Flag(
            "--compute-straggler-threshold",
            group=_GROUP,
            metavar="FACTOR",
            read=_factor,
            ours=True,
            help="The same of the matrix product alone, such as 1.15: GPUs of one model differ by"
            " a few per cent.",
        ),
    ]


def ladder_options(given: Given, remarks: list[str]) -> LadderOptions | None:
    """Return what the flags ask for; None where nothing is to be checked.

    Args:
        given: the flags and variables of a job.
        remarks: takes what is ignored.

    Raises:
        UsageError: the command line says how to check, but no flag asks for checks; or a floor
            cannot be met, or the time is too short.
    """
    if not given["network_check"]:
        for key in (*_DETAILS, *FLOOR_KEYS):
            if given[key]:
                _without_checks(given.origin(key), remarks)
        return None
    _, max_nodes = given.get("nnodes", (1, 1))
    floors = given_floors(given, max_nodes, remarks)
    workers = known_count(given.get("nproc_per_node", defaults.NPROC_PER_NODE))
    refuse_floors(floors, given.get("accelerator", "auto"), workers)
    refuse_timeout(given, is_alone=max_nodes == 1)
    return LadderOptions(
        spec=CheckSpec(
            level=given.get("check_level", defaults.CHECK_LEVEL),
            timeout_s=given.get("check_timeout", 0.0),
            on_restart=given.get("check_on_restart", "node"),
            is_binding=given.get("check_mode", "enforce") == "enforce",
            straggler_threshold=given.get("straggler_threshold", defaults.STRAGGLER_THRESHOLD),
            compute_threshold=given.get("compute_straggler_threshold", 0.0),
            exclude_straggler=given["exclude_straggler"],
            floors=floor_texts(floors),
        ),
        report=given["check_report"] or None,
    )


def refuse_timeout(given: Given, *, is_alone: bool) -> None:
    """Refuse a ``--check-timeout`` that is shorter than what the level measures.

    Args:
        given: the flags and variables.
        is_alone: whether the node meets no other.

    Raises:
        UsageError: it is too short for a healthy node to pass.
    """
    if given["check_timeout"] is None:
        return
    from ...checks.measure import needed_s  # most jobs have no checks
    from ...checks.records import Level, Phase

    timeout_s, level = given["check_timeout"], given.get("check_level", defaults.CHECK_LEVEL)
    phases = (Phase.SOLO,) if is_alone else (Phase.SOLO, Phase.PAIR)
    least_s = sum(needed_s(Level(level), phase) for phase in phases)
    if timeout_s < least_s:
        raise UsageError(
            f"{given.origin('check_timeout')} was given {timeout_s:g}, but --check-level {level}"
            f" measures for {least_s:.3g} s, and torch has to be imported before; right would be"
            f" such as {defaults.CHECK_TIMEOUT_S:g}."
        )


def _without_checks(origin: str, remarks: list[str]) -> None:
    says = f"{origin} says how nodes are checked, but nothing asks for checks"
    if origin.startswith("--"):
        raise UsageError(f"{says}; right would be --network-check beside it.")
    # Variables are set for a whole pod, where they may be meant for an ``ft-run check``.
    remarks.append(f"{says}: it is ignored without --network-check.")


def _factor(text: str) -> float:
    right = "a number above 1"
    try:
        factor = values.number(text)
    except values.BadValue:
        raise values.BadValue(right) from None
    if factor <= 1:
        raise values.BadValue(right)
    return factor
