"""The flags of ``ft-run check``, and what they mean."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from ... import defaults
from ...checks.records import Level
from ...errors import UsageError
from ...values import replace
from ..flags import values
from ..flags.flag import Flag
from ..flags.values import shown
from ..options import CheckOptions, RendezvousOptions
from .command_line import CommandLine, Given, HelpText
from .floor_flags import floor_flags, given_floors, known_count, needs_others, refuse_floors
from .network_check_flags import refuse_timeout, straggler_flags
from .rendezvous_options import rendezvous_flags
from .trust_flags import trust_flags, trust_options

_CHECK: Final = "Checks"
_NODE: Final = "Node"

_BEFORE = """\
Usage: ft-run check [OPTIONS]

Check this node: first what it reports (health of GPUs, limits, space,
versions), then each device alone, then all its workers together. With
--nnodes, given on every node, also the nodes in pairs and all together.

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
  20     the check could not run: worth retrying
  30     this node is unhealthy; with --exclude-straggler also: it is slow
  40     with --nnodes: no master, or not enough nodes in time
  41     with --nnodes: the master refused this node
  128+n  ended by signal n
"""


def read_check(
    argv: Sequence[str],
    environ: Mapping[str, str],
    read_rendezvous: Callable[[Given, list[str]], RendezvousOptions],
) -> CheckOptions:
    """Return the options that the arguments after ``ft-run check`` mean.

    Args:
        argv: the arguments.
        environ: has the ``PET_*`` variables.
        read_rendezvous: returns how nodes meet, and adds remarks.

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
    remarks: list[str] = []
    _, max_nodes = given.get("nnodes", (1, 1))
    refuse_timeout(given, is_alone=max_nodes == 1)
    floors = given_floors(given, max_nodes, remarks)
    nproc_per_node = given.get("nproc_per_node", defaults.NPROC_PER_NODE)
    accelerator = given.get("accelerator", "auto")
    refuse_floors(floors, accelerator, known_count(nproc_per_node))
    threshold = given.get("straggler_threshold", defaults.STRAGGLER_THRESHOLD)
    if max_nodes == 1 and given["straggler_threshold"] is not None:
        needs_others(given.origin("straggler_threshold"), remarks)
        threshold = defaults.STRAGGLER_THRESHOLD
    compute_threshold = given.get("compute_straggler_threshold", 0.0)
    if max_nodes == 1 and compute_threshold:
        needs_others(given.origin("compute_straggler_threshold"), remarks)
        compute_threshold = 0.0
    # A node that is checked by itself needs no endpoint, even if a variable names one.
    rendezvous = read_rendezvous(_as_of_a_job(given), remarks) if max_nodes > 1 else None
    if rendezvous is not None:
        rendezvous = replace(rendezvous, trust=trust_options(given, environ))
    return CheckOptions(
        rendezvous=rendezvous,
        remarks=tuple(remarks),
        nproc_per_node=nproc_per_node,
        accelerator=accelerator,
        virtual_local_rank=given["virtual_local_rank"],
        level=given.get("check_level", defaults.CHECK_LEVEL),
        timeout_s=given.get("check_timeout", 0.0),
        floors=floors,
        straggler_threshold=threshold,
        compute_threshold=compute_threshold,
        exclude_straggler=given["exclude_straggler"],
        is_strict=given["strict"],
        json=given["json"],
        report=given["check_report"] or None,
        log_dir=given["log_dir"] or None,
        preload=given.get("preload", ()),
    )


def _as_of_a_job(given: Given) -> Given:
    """Return the given values, with the flags of a job that ``ft-run check`` does not have."""
    origins = {"rdzv_backend": "--rdzv-backend", "max_restarts": "--max-restarts"}
    is_somewhere = given["rdzv_endpoint"] is not None or given["master_addr"] is not None
    # Without a backend the endpoint would be on this host by default, as torchrun's is.
    values = {"rdzv_backend": None if is_somewhere else "grpc", "max_restarts": None}
    return Given(values | dict(given.values), origins | dict(given.origins), given.texts)


def check_command() -> CommandLine:
    """Return the flags of ``ft-run check``."""
    flags = [
        *_node_flags(),
        *_check_flags(),
        *floor_flags(),
        *straggler_flags(),
        *rendezvous_flags(),
        *trust_flags(),
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
            help=f"For everything together; default {defaults.CHECK_TIMEOUT_S:g}, with GPUs"
            f" {defaults.CHECK_TIMEOUT_GPUS_S:g}.",
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
