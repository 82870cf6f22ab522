"""Every flag of ``ft-run [OPTIONS] SCRIPT [ARGS]...``, with its help."""

from ... import exit_codes
from ...errors import UsageError
from ...values import dataclass
from ..flags import values
from ..flags.flag import HELP, Flag, flags_of
from ..options import (
    COMPATIBILITY,
    HEADINGS,
    LaunchOptions,
    LogOptions,
    RendezvousOptions,
)
from .check_flags import training_check_flags
from .command_line import CommandLine, Given, HelpText
from .place_flags import place_flags
from .policy_flags import policy_flags
from .script import COMMANDS
from .trust_flags import trust_flags

_USAGE = """\
Usage: ft-run [OPTIONS] SCRIPT [ARGS]...
       ft-run [OPTIONS] -m MODULE [ARGS]...
"""

SUMMARY = f"""\
{_USAGE}
ft-run help shows the options, ft-run help COMMAND those of a command:
{", ".join(COMMANDS)}.
"""
"""The answer where no words are given."""

_BEFORE = f"""\
{_USAGE}
Start a training script on every node, and restart it on all nodes when it
fails on one. A drop-in replacement for torchrun.

Examples:
  ft-run --nproc-per-node gpu train.py --lr 0.1
  ft-run --nnodes 4 --rdzv-id run7 --rdzv-endpoint node0:29400 train.py

Commands:
  ft-run hosts --help         Start a job on several hosts over ssh.
  ft-run master --help        Run the master of a job by itself.
  ft-run status --help        Show the state of a job.
  ft-run stacks --help        Show where every rank is.
  ft-run check --help         Check this node.
  ft-run policy --help        Explain how a failure would be answered.
  ft-run token --help         Make a secret that closes the wire of a job.
"""

_AFTER = f"""\
Every option can be set by PET_<NAME>, such as PET_NNODES=2 or PET_STANDALONE=1;
the command line beats it. Underscores may stand for dashes, and a name may be
cut short while it is unambiguous. What follows SCRIPT belongs to the script.

Exit codes:
  {exit_codes.SUCCESS:<6} the job succeeded
  {exit_codes.WORKERS_FAILED:<6} workers failed and the restarts are spent, or one survived SIGKILL
  {exit_codes.USAGE:<6} wrong usage
  {exit_codes.POLICY_ENDED_JOB:<6} the failure policy ended the job: trying again would not help
  {exit_codes.CHECKS_FAILED:<6} checks failed: worth retrying
  {exit_codes.NODE_EXCLUDED:<6} this node is unhealthy and was excluded
  {exit_codes.RENDEZVOUS_FAILED:<6} rendezvous failed: no master, or not enough nodes in time
  {exit_codes.REFUSED:<6} the master refused this node
  {exit_codes.SIGNAL_BASE}+n  ended by signal n after an orderly stop
"""


@dataclass(frozen=True, slots=True)
class CompletionOptions:
    """Everything that one ``ft-run --print-completion`` was asked to do."""

    shell: str = HELP.option(
        "",
        "--print-completion bash|zsh|fish",
        "Print the script that completes ft-run in this shell, and exit.",
        values.one_of("bash", "zsh", "fish"),
        since="2.15",
    )


def launch_command() -> CommandLine:
    """Return the flags of ``ft-run [OPTIONS] SCRIPT [ARGS]...``."""
    flags = [
        *flags_of(RendezvousOptions),
        *policy_flags(),
        *flags_of(LaunchOptions),
        *place_flags(),
        *trust_flags(),
        *training_check_flags(),
        *flags_of(LogOptions),
        *_flags_without_effect(),
        *flags_of(CompletionOptions),
    ]
    order = (*HEADINGS, COMPATIBILITY.name, HELP.name)
    flags.sort(key=lambda flag: order.index(flag.group))
    return CommandLine("ft-run", flags, HelpText(_BEFORE, _AFTER), _foreign)


def _foreign(word: str, following: list[str]) -> list[str] | None:
    from .foreign_flags import ours  # few commands have one

    return ours(word, following)


def _flags_without_effect() -> list[Flag]:
    return [
        COMPATIBILITY("--monitor-interval SECONDS", "Accepted; nothing polls.", values.seconds),
        COMPATIBILITY(
            "--start-method METHOD",
            "Accepted; spawn, fork or forkserver.",
            values.one_of("spawn", "fork", "forkserver"),
        ),
        COMPATIBILITY(
            "--logs-specs NAME", "Refused: there are no plug-ins for logs.", values.logs_specs
        ),
    ]


def saves_at_breakpoint(given: Given) -> bool:
    """Return whether the newest snapshot becomes a checkpoint when the job fails.

    Raises:
        UsageError: both flags were given.
    """
    if given["save_at_breakpoint"] and given["no_save_at_breakpoint"]:
        raise UsageError(
            f"{given.origin('save_at_breakpoint')} and {given.origin('no_save_at_breakpoint')}"
            " exclude each other; right would be one of them."
        )
    is_refused = "save_at_breakpoint" in given.texts and not given["save_at_breakpoint"]
    return not (given["no_save_at_breakpoint"] or is_refused)
