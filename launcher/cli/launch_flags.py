"""Every flag of ``ft-run [OPTIONS] SCRIPT [ARGS]...``, with its help."""

from msgspec import Struct

from ... import exit_codes
from ..flags import values
from ..flags.flag import HELP, Flag, flags_of
from ..flags.headings import COMPATIBILITY, HEADINGS
from ..log_options import LogOptions
from ..options import LaunchOptions, RendezvousOptions
from .check_flags import training_check_flags
from .command_line import CommandLine, Given, HelpText
from .environment_flags import environment_flags
from .foreign_flags import ours
from .policy_flags import policy_flags
from .script import COMMANDS
from .security_flags import security_flags

_USAGE = """\
Usage: ft-run [OPTIONS] SCRIPT [ARGS]...
       ft-run [OPTIONS] -m MODULE [ARGS]...
"""

SUMMARY = f"""\
{_USAGE}
ft-run help shows the options, and ft-run help COMMAND the options of a command:
{", ".join(COMMANDS)}.
"""
"""The output if there are no arguments."""

_COMMON = (
    "nproc_per_node",
    "nnodes",
    "rdzv_endpoint",
    "rdzv_id",
    "standalone",
    "auto_config",
    "dry_run",
    "max_restarts",
    "on_failure",
    "hang_timeout",
    "network_check",
    "preload",
    "log_dir",
    "tee",
    "token_file",
    "help_all",
)

_BEFORE = f"""\
{_USAGE}
Run a PyTorch training script as torchrun does; restart it when a worker fails.

Examples:
  ft-run --nproc-per-node gpu train.py --lr 0.1
  ft-run --nnodes 4 --nproc-per-node gpu --rdzv-endpoint node0:29400 \\
    --rdzv-id run7 train.py

Commands (ft-run COMMAND --help):
  hosts     Start a job on several hosts over ssh.
  master    Run the rendezvous master in a process of its own.
  status    Show the state of a job.
  stacks    Show the stack trace of every rank.
  report    Show what happened in a job, from its event files.
  check     Check this node, or several nodes together.
  policy    Explain what the failure policy does after a failure.
  token     Create a secret that enables mutual TLS.
  rehearse  Show that recovery is exact for your script.
"""

_AFTER_COMMON = """\
Options can be set by environment variables too, e.g. PET_NNODES=2. Everything
after SCRIPT is passed to the script.
"""

_AFTER = f"""\
DURATION is a number of seconds, or a number with a unit: 90s, 5m, 24h, 7d.
Every option can be set by the environment variable PET_<NAME>, e.g.
PET_NNODES=2 or PET_STANDALONE=1; the command line overrides it. Underscores may
replace dashes, and an unambiguous prefix of a name is accepted. Everything
after SCRIPT is passed to the script.

Exit codes:
  {exit_codes.SUCCESS:<6} the job succeeded
  {exit_codes.WORKERS_FAILED:<6} workers failed with no restarts left, or a worker survived SIGKILL
  {exit_codes.USAGE:<6} usage error
  {exit_codes.POLICY_ENDED_JOB:<6} the failure policy ended the job: do not retry
  {exit_codes.CHECKS_FAILED:<6} checks failed: retry may help
  {exit_codes.NODE_EXCLUDED:<6} this node is unhealthy and was excluded
  {exit_codes.RENDEZVOUS_FAILED:<6} rendezvous failed: no master, or too few nodes in time
  {exit_codes.REFUSED:<6} the master refused this node
  {exit_codes.SIGNAL_BASE}+n  stopped by signal n
"""


class CompletionOptions(Struct, frozen=True):
    """The options of ``ft-run --print-completion``."""

    shell: str = HELP.option(
        "",
        "--print-completion bash|zsh|fish",
        "Print the completion script for this shell and exit.",
        values.one_of("bash", "zsh", "fish"),
        since="2.15",
    )


def launch_command() -> CommandLine:
    """Return the flags of ``ft-run [OPTIONS] SCRIPT [ARGS]...``."""
    flags = [
        *flags_of(RendezvousOptions),
        *policy_flags(),
        *flags_of(LaunchOptions),
        *environment_flags(),
        *security_flags(),
        *training_check_flags(),
        *flags_of(LogOptions),
        *_flags_without_effect(),
        *flags_of(CompletionOptions),
    ]
    order = (*HEADINGS, COMPATIBILITY.name, HELP.name)
    flags.sort(key=lambda flag: order.index(flag.group))
    text = HelpText(_BEFORE, _AFTER, _COMMON, _AFTER_COMMON)
    return CommandLine("ft-run", flags, text, _foreign)


def _foreign(word: str, following: list[str]) -> list[str] | None:
    return ours(word, following)


def _flags_without_effect() -> list[Flag]:
    return [
        COMPATIBILITY(
            "--monitor-interval SECONDS",
            "Accepted and ignored: ft-run does not poll.",
            values.seconds,
        ),
        COMPATIBILITY(
            "--start-method METHOD",
            "Accepted and ignored: spawn, fork or forkserver.",
            values.one_of("spawn", "fork", "forkserver"),
        ),
        COMPATIBILITY(
            "--logs-specs NAME", "Not supported: ft-run has no log plug-ins.", values.logs_specs
        ),
    ]


def saves_on_exit(given: Given) -> bool:
    """Return whether the newest snapshot is saved as a checkpoint when the job fails."""
    given.refuse_both("save_on_exit", "no_save_on_exit")
    is_refused = "save_on_exit" in given.texts and not given["save_on_exit"]
    return not (given["no_save_on_exit"] or is_refused)
