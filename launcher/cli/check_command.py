"""The command line of ``ft-run check``: a job that only checks its nodes."""

from collections.abc import Mapping, Sequence

from ... import defaults
from ...errors import UsageError
from ...values import replace
from ..flags.flag import Flag, Heading, flags_of
from ..flags.headings import CHECKS
from ..flags.values import shown
from ..log_options import LogOptions
from ..options import CheckOptions, LaunchOptions, RendezvousOptions
from . import check_flags
from .check_flags import check_spec
from .command_line import CommandLine, Given, HelpText
from .config_file import read_config, with_checks
from .rendezvous_options import rendezvous_flags, rendezvous_options
from .security_flags import security_flags, trust_options

_BEFORE = """\
Usage: ft-run check [OPTIONS]

Check this node: its system information (GPU health, limits, disk space,
versions), each device alone, then all devices together. With --nnodes, run it
on every node; the nodes are then checked in pairs and all together as well.

Examples:
  ft-run check --nproc-per-node gpu
  ft-run check --nproc-per-node gpu --min-compute-tflops 500 --strict --json
  ft-run check --nproc-per-node gpu --nnodes 4 --rdzv-endpoint node0:29400
"""

_AFTER = """\
Every option can be set by PET_<NAME>, e.g. PET_CHECK_LEVEL=full.

Exit codes:
  0      the node passed
  2      usage error
  10     with --strict: the node passed with warnings
  20     the checks could not run: retry may help
  30     this node is unhealthy, or, with --exclude-straggler, slow
  40     with --nnodes: no master, or too few nodes in time
  41     with --nnodes: the master refused this node
  128+n  stopped by signal n
"""

_COMMON_OF_SEVERAL = ("nnodes", "rdzv_endpoint", "rdzv_id", "token_file")
_AS_FOR_TRAINING = ("nproc_per_node", "accelerator", "virtual_local_rank", "preload")


def read_check(argv: Sequence[str], environ: Mapping[str, str]) -> LaunchOptions:
    """Parse the arguments after ``ft-run check``.

    Raises:
        UsageError: the options are invalid.
        SystemExit: with 0, after ``--help`` or ``--version`` has been printed.
    """
    line = check_command()
    given, rest = line.read(argv, environ)
    if rest:
        raise UsageError(
            f"unexpected argument {shown(rest[0])} for ft-run check; expected options only, or"
            " ./check for a script of that name."
        )
    given = with_checks(line, given, read_config(given))
    warnings: list[str] = []
    spec = check_spec(given, warnings, only=True)
    _, max_nodes = given.get("nnodes", (1, 1))
    # A node that is checked alone needs no endpoint, even if a variable names one.
    rendezvous = RendezvousOptions()
    if max_nodes > 1:
        rendezvous = rendezvous_options(_as_of_a_job(given), warnings)
        rendezvous = replace(rendezvous, trust=trust_options(given, environ))
    checks = given.fill(CheckOptions, spec=spec, json=given["json"], log_dir=given["log_dir"])
    return LaunchOptions(
        script="",
        rendezvous=rendezvous,
        checks=checks,
        warnings=tuple(warnings),
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
    own = [*_node_flags(), *_check_flags()]
    common = [*(flag.key for flag in own), *_COMMON_OF_SEVERAL, "help_all"]
    text = HelpText(_BEFORE, _AFTER, common, _AFTER)
    return CommandLine("ft-run check", [*own, *rendezvous_flags(), *security_flags()], text)


def _node_flags() -> list[Flag]:
    """Return flags of a job that mean the same here, with a help text for checks."""
    node = Heading("Node")
    nproc_per_node, accelerator, virtual_local_rank, preload = flags_of(
        LaunchOptions, *_AS_FOR_TRAINING
    )
    (log_dir,) = flags_of(LogOptions, "log_dir")
    return [
        nproc_per_node.described(
            "Number of check workers, equal to the number of workers that will train (default: 1)."
            " auto: one per accelerator; without accelerators, the CPU limit of the container.",
            node,
            metavar="N|auto|cpu|gpu",
        ),
        accelerator.described(
            "Type of device that auto and gpu count and the checks use, e.g. cpu (default: auto).",
            node,
        ),
        virtual_local_rank.described(
            "Make only its own device visible to each check worker.", node
        ),
        log_dir.described(
            "Directory whose disk must have free space (default: that of temporary files).", node
        ),
        preload.described(
            "Modules to import once, e.g. torch; every check worker is forked from that process.",
            node,
            metavar="MODULE,...",
        ),
    ]


def _check_flags() -> list[Flag]:
    (report,) = flags_of(CheckOptions, "report")
    return [
        check_flags.LEVEL.described(
            "Depth of the checks: light takes two seconds beyond the import of torch, full ten"
            " (default: light)."
        ),
        check_flags.TIMEOUT.described(
            f"Time limit of all checks together (default: {defaults.CHECK_TIMEOUT_S:g}s, with"
            f" GPUs {defaults.CHECK_TIMEOUT_GPUS_S:g}s)."
        ),
        check_flags.STRICT,
        CHECKS(
            "--json",
            "Print JSON instead of a table. With --nnodes only one node prints the report.",
        ),
        report.described("File for the report as JSON; with --nnodes one node writes it."),
        CHECKS(
            "--config FILE",
            "TOML file whose [checks] table has these options by name, e.g. check-level = 'full'."
            " The command line and PET_ variables override it.",
            ours=True,
            also="--failure-policy",
        ),
        *check_flags.MINIMUMS.values(),
        *check_flags.STRAGGLERS,
    ]
