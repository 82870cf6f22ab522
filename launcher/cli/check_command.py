"""The command line of ``ft-run check``: a job that only checks its nodes."""

from collections.abc import Mapping, Sequence

from ... import defaults
from ...errors import UsageError
from ...values import replace
from ..flags.flag import Flag, Heading, flags_of
from ..flags.values import shown
from ..options import CHECKS, CheckOptions, LaunchOptions, LogOptions, RendezvousOptions
from . import check_flags
from .check_flags import check_spec
from .command_line import CommandLine, Given, HelpText
from .rendezvous_options import rendezvous_flags, rendezvous_options
from .trust_flags import trust_flags, trust_options

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

_AS_FOR_TRAINING = ("nproc_per_node", "accelerator", "virtual_local_rank", "preload")


def read_check(argv: Sequence[str], environ: Mapping[str, str]) -> LaunchOptions:
    """Return the options that the arguments after ``ft-run check`` mean.

    Args:
        argv: the arguments.
        environ: has the ``PET_*`` variables.

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
    spec = check_spec(given, remarks, only=True)
    _, max_nodes = given.get("nnodes", (1, 1))
    # A node that is checked by itself needs no endpoint, even if a variable names one.
    rendezvous = RendezvousOptions()
    if max_nodes > 1:
        rendezvous = rendezvous_options(_as_of_a_job(given), remarks)
        rendezvous = replace(rendezvous, trust=trust_options(given, environ))
    checks = given.fill(CheckOptions, spec=spec, json=given["json"], log_dir=given["log_dir"])
    return LaunchOptions(
        script="",
        rendezvous=rendezvous,
        checks=checks,
        remarks=tuple(remarks),
        **{key: given[key] for key in _AS_FOR_TRAINING if given[key] is not None},
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
    flags = [*_node_flags(), *_check_flags(), *rendezvous_flags(), *trust_flags()]
    return CommandLine("ft-run check", flags, HelpText(_BEFORE, _AFTER))


def _node_flags() -> list[Flag]:
    """Return flags of a job that mean the same here, with what they are for here."""
    node = Heading("Node")
    nproc_per_node, accelerator, virtual_local_rank, preload = flags_of(
        LaunchOptions, *_AS_FOR_TRAINING
    )
    (log_dir,) = flags_of(LogOptions, "log_dir")
    return [
        nproc_per_node.described(
            "Check workers, as many as will train; default 1. auto: one per accelerator,"
            " else the CPU limit.",
            node,
            metavar="N|auto|cpu|gpu",
        ),
        accelerator.described("As for training; cpu leaves the GPUs alone.", node),
        virtual_local_rank.described("Show each check worker its own device only.", node),
        log_dir.described(
            "The folder whose disk must have room; default: that of temporary files.", node
        ),
        preload.described(
            "Import modules once, such as torch, and fork every check worker from there.", node
        ),
    ]


def _check_flags() -> list[Flag]:
    (report,) = flags_of(CheckOptions, "report")
    return [
        check_flags.LEVEL.described(
            "light (default): a second or two beyond the import of torch. full: ten."
        ),
        check_flags.TIMEOUT.described(
            f"For everything together; default {defaults.CHECK_TIMEOUT_S:g}, with GPUs"
            f" {defaults.CHECK_TIMEOUT_GPUS_S:g}."
        ),
        check_flags.STRICT,
        CHECKS(
            "--json",
            "Print JSON instead of a table. With --nnodes: on one node, the first to attend;"
            " the others print neither.",
        ),
        report.described("Write the same JSON to a file; with --nnodes on that one node only."),
        *check_flags.FLOORS.values(),
        *check_flags.STRAGGLERS,
    ]
