"""The flags of ``ft-run check``, and what they mean."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from .. import defaults
from ..checks.records import Level
from ..errors import UsageError
from . import values
from .options import CheckOptions, RendezvousOptions
from .params import CommandLine, Flag, Given, HelpText
from .rendezvous_flags import address_flags, rendezvous_flags
from .values import BadValue, shown

_CHECK: Final = "Checks"
_NODE: Final = "Node"

_FLOORS: Final = {
    "compute_tflops": ("TFLOPS", "the matrix product of the slowest device"),
    "memory_gb_per_s": ("GB/S", "the memory of the slowest device"),
    "copy_gb_per_s": ("GB/S", "the copy from host to device"),
    "intra_gb_per_s": ("GB/S", "the all-reduce within the node"),
}
"""Metric → unit and words. The flag is ``--min-`` and the metric's name."""

_BEFORE = """\
Usage: ft-run check [OPTIONS]

Check this node: what it says of itself (health of GPUs, limits, space,
versions), then each device alone, then the node's own workers together.
With --nnodes, on every node, also the nodes in pairs and all together.

Examples:
  ft-run check --nproc-per-node gpu
  ft-run check --nproc-per-node gpu --min-compute-tflops 500 --strict --json
  ft-run check --nproc-per-node gpu --nnodes 4 --rdzv-endpoint node0:29400
"""

_AFTER = """\
Every option can be set by PET_<NAME>, such as PET_CHECK_LEVEL=full.

Exit codes:
  0      the node has passed
  2      wrong usage
  10     with --strict: it has passed with a warning
  20     the check could not be carried out: worth retrying
  30     this node is unhealthy
  40     with --nnodes: no master, or not enough nodes in time
  41     with --nnodes: the master refused this node
  128+n  ended by signal n
"""


def read_check(
    argv: Sequence[str],
    environ: Mapping[str, str],
    read_rendezvous: Callable[[Given, list[str]], RendezvousOptions],
) -> CheckOptions:
    """Return what the arguments after ``ft-run check`` ask for.

    Args:
        argv: the arguments.
        environ: has the ``PET_*`` variables.
        read_rendezvous: returns how nodes meet, and adds what should be remarked.

    Raises:
        UsageError: they cannot work.
        SystemExit: with 0, after ``--help`` or ``--version`` has been printed.
    """
    given, rest = check_command().read(argv, environ)
    if rest:
        raise UsageError(
            f"ft-run check takes no arguments, but was given {shown(rest[0])}; right would be"
            " ft-run check with options only, or ./check for a script of that name."
        )
    floors = {name: v for name in _FLOORS if (v := given[f"min_{name}"]) is not None}
    nproc_per_node = given.get("nproc_per_node", defaults.NPROC_PER_NODE)
    accelerator = given.get("accelerator", "auto")
    refuse_floors(floors, accelerator, int(nproc_per_node) if nproc_per_node.isdigit() else None)
    remarks: list[str] = []
    _, max_nodes = given.get("nnodes", (1, 1))
    return CheckOptions(
        # A node that is checked by itself meets nobody, whatever a variable says of an endpoint.
        rendezvous=read_rendezvous(_as_of_a_job(given), remarks) if max_nodes > 1 else None,
        remarks=tuple(remarks),
        nproc_per_node=nproc_per_node,
        accelerator=accelerator,
        virtual_local_rank=given["virtual_local_rank"],
        level=given.get("check_level", defaults.CHECK_LEVEL),
        timeout_s=given.get("check_timeout", defaults.CHECK_TIMEOUT_S),
        floors=floors,
        is_strict=given["strict"],
        json=given["json"],
        report=given["check_report"] or None,
        log_dir=given["log_dir"] or None,
        preload=given.get("preload", ()),
    )


def _as_of_a_job(given: Given) -> Given:
    """Return what was given, with the flags of a job that ``ft-run check`` does not have."""
    origins = {"rdzv_backend": "--rdzv-backend", "max_restarts": "--max-restarts"}
    is_somewhere = given["rdzv_endpoint"] is not None or given["master_addr"] is not None
    # Without a backend the endpoint would be on this host by default, as torchrun's is.
    values = {"rdzv_backend": None if is_somewhere else "grpc", "max_restarts": None}
    return Given(values | dict(given.values), origins | dict(given.origins))


def check_command() -> CommandLine:
    """Return the flags of ``ft-run check``."""
    flags = [
        *_node_flags(),
        *_check_flags(),
        *_floor_flags(),
        *rendezvous_flags(),
        *address_flags(),
    ]
    return CommandLine("ft-run check", flags, HelpText(_BEFORE, _AFTER))


def _node_flags() -> list[Flag]:
    return [
        Flag(
            "--nproc-per-node",
            group=_NODE,
            metavar="N|auto|cpu|gpu",
            read=values.nproc_per_node,
            help="Check workers, as many as will train; default 1. auto: one per accelerator,"
            " else the CPU limit.",
        ),
        Flag(
            "--accelerator",
            group=_NODE,
            metavar="TYPE",
            read=values.accelerator,
            help="As for training; cpu leaves the GPUs alone.",
        ),
        Flag(
            "--virtual-local-rank",
            group=_NODE,
            help="Show each check worker its own device only.",
        ),
        Flag(
            "--log-dir",
            group=_NODE,
            metavar="DIR",
            read=values.string,
            help="The folder whose disk must have room; default: that of temporary files.",
        ),
        Flag(
            "--preload",
            group=_NODE,
            metavar="MODULE,...",
            read=values.modules,
            help="Import modules once, such as torch, and fork every check worker from there.",
        ),
    ]


def _check_flags() -> list[Flag]:
    return [
        Flag(
            "--check-level",
            group=_CHECK,
            metavar="light|full",
            read=values.one_of(*(level.value for level in Level)),
            help="light (default): a second or two beyond the import of torch. full: ten.",
        ),
        Flag(
            "--check-timeout",
            group=_CHECK,
            metavar="SECONDS",
            read=values.seconds_above_zero,
            help=f"For everything together; default {defaults.CHECK_TIMEOUT_S:g}.",
        ),
        Flag(
            "--strict",
            group=_CHECK,
            help="Exit with 10 when there are warnings.",
        ),
        Flag(
            "--json",
            group=_CHECK,
            help="Print JSON instead of a table. With --nnodes: on one node, the first to attend;"
            " the others print neither.",
        ),
        Flag(
            "--check-report",
            group=_CHECK,
            metavar="FILE",
            read=values.string,
            help="Write the same JSON to a file; with --nnodes on that one node only.",
        ),
    ]


def _floor_flags() -> list[Flag]:
    return [
        Flag(
            "--min-" + name.replace("_", "-"),
            group=_CHECK,
            metavar=unit,
            read=_floor,
            help=f"Warn when {words} is slower, twice running; a node where it cannot be measured"
            " is unhealthy.",
        )
        for name, (unit, words) in _FLOORS.items()
    ]


def refuse_floors(floors: Mapping[str, float], accelerator: str, workers: int | None) -> None:
    """Refuse a floor for what cannot be measured here: no healthy node would pass.

    Args:
        floors: by the names of metrics.
        accelerator: ``--accelerator``.
        workers: of this node; None where that is not known yet.

    Raises:
        UsageError: there is such a floor.
    """
    if "copy_gb_per_s" in floors and accelerator == "cpu":
        raise UsageError(
            "--min-copy-gb-per-s is for the copy from host to GPU, but --accelerator cpu leaves the"
            " GPUs alone; right would be one of the two without the other."
        )
    if "intra_gb_per_s" in floors and workers == 1:
        raise UsageError(
            "--min-intra-gb-per-s is for the all-reduce within the node, but there is one worker"
            " only; right would be --nproc-per-node 2 or more."
        )


def _floor(text: str) -> float:
    try:
        number = values.number(text)
    except BadValue:
        number = 0.0
    if not 0 < number < 1e9:
        raise BadValue("a number above 0")
    return number
