"""The command line of ``ft-run check``: a job that only checks its nodes."""

import os
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from ..flags.flag import flags_of
from ..flags.headings import CHECKS
from ..log_options import LogOptions
from ..options import CheckOptions, LaunchOptions, RendezvousOptions
from . import check_flags
from .check_flags import check_spec
from .command_line import CommandLine, HelpText
from .config_file import add_checks, read_config
from .rendezvous_options import no_endpoint, rendezvous_options
from .security_flags import security_flags, trust_options

_BEFORE = """\
Usage: ft-run check [OPTIONS]

Check this node: its system information (GPU health, limits, disk space,
versions), each device alone, then all devices together. With --nnodes, run it
on every node; the nodes are then checked in pairs and all together as well.

Examples:
  ft-run check --nproc-per-node gpu
  ft-run check --nproc-per-node gpu --min-compute-tflops 500 --strict --json
  ft-run check --nproc-per-node gpu --nnodes 4 --rdzv-endpoint node0 --rdzv-id 7
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
    """Parse the arguments after ``ft-run check``."""
    line = check_command()
    right = "options only, or ./check for a script of that name"
    given, _ = line.read_all(argv, environ, right=right)
    add_checks(line, given, read_config(given))
    warnings: list[str] = []
    spec = check_spec(given, warnings, only=True)
    _, max_nodes = given.get("nnodes", (1, 1))
    # A node that is checked alone needs no endpoint, even if a variable names one.
    rendezvous = RendezvousOptions(job_id="check")
    if max_nodes > 1:
        if not (given["rdzv_endpoint"] or given["master_addr"] or given["standalone"]):
            # Without an endpoint, a training job uses localhost, like torchrun. A check of several
            # nodes needs a real endpoint.
            raise no_endpoint(given, max_nodes)
        rendezvous = rendezvous_options(given, warnings)
        rendezvous = replace(rendezvous, trust=trust_options(given, environ))
    checks = given.fill(CheckOptions, spec=spec, json=given["json"], log_dir=given["log_dir"])
    return LaunchOptions(
        script="",
        rendezvous=rendezvous,
        logs=LogOptions(log_dir=os.devnull),
        checks=checks,
        warnings=tuple(warnings),
        **{key: given[key] for key in _AS_FOR_TRAINING if given[key] is not None},
    )


def check_command() -> CommandLine:
    """Return the flags of ``ft-run check``."""
    nproc_per_node, accelerator, virtual_local_rank, preload = flags_of(
        LaunchOptions, *_AS_FOR_TRAINING
    )
    (log_dir,) = flags_of(LogOptions, "log_dir")
    own = [
        nproc_per_node,
        accelerator,
        virtual_local_rank,
        log_dir.described(
            "Directory whose disk must have free space (default: that of temporary files)."
        ),
        preload.described(
            "Modules to import once, e.g. torch; every check worker is forked from that process."
        ),
        check_flags.LEVEL,
        check_flags.TIMEOUT,
        check_flags.STRICT,
        CHECKS(
            "--json",
            "Print JSON instead of a table. With --nnodes only one node prints the report.",
        ),
        *flags_of(CheckOptions),
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
    common = [*(flag.key for flag in own), *_COMMON_OF_SEVERAL, "help_all"]
    text = HelpText(_BEFORE, _AFTER, common, _AFTER)
    return CommandLine(
        "ft-run check", [*own, *flags_of(RendezvousOptions), *security_flags()], text
    )
