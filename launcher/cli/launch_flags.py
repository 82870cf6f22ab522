"""Every flag of ``ft-run [OPTIONS] SCRIPT [ARGS]...``, with its help."""

from ... import defaults, exit_codes
from ...errors import UsageError
from . import stream_values, values
from .command_line import HELP_GROUP, CommandLine, Flag, Given, HelpText
from .network_check_flags import ladder_flags
from .place_flags import place_flags
from .policy_flags import policy_flags, propagate_flag
from .rendezvous_flags import address_flags, rendezvous_flags
from .script import COMMANDS
from .trust_flags import trust_flags

_WORKERS = "Workers"
_FAILURE = "Failure"
_LOGS = "Logs"
_SCRIPT = "Script"
_COMPATIBILITY = "Compatibility with torchrun"

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


def launch_command() -> CommandLine:
    """Return the flags of ``ft-run [OPTIONS] SCRIPT [ARGS]...``."""
    flags = [
        *_worker_flags(),
        *rendezvous_flags(),
        *address_flags(),
        *trust_flags(),
        *place_flags(),
        *_failure_flags(),
        *ladder_flags(),
        *_log_flags(),
        *_script_flags(),
        *_compatibility_flags(),
        Flag(
            "--print-completion",
            group=HELP_GROUP,
            since="2.15",
            metavar="bash|zsh|fish",
            read=values.one_of("bash", "zsh", "fish"),
            help="Print the script that completes ft-run in this shell, and exit.",
        ),
    ]
    return CommandLine("ft-run", flags, HelpText(_BEFORE, _AFTER), _foreign)


def _foreign(word: str, following: list[str]) -> list[str] | None:
    from .foreign_flags import ours  # few commands have one

    return ours(word, following)


def _worker_flags() -> list[Flag]:
    return [
        Flag(
            "--nproc-per-node",
            group=_WORKERS,
            metavar="N|auto|cpu|gpu|xpu",
            read=values.nproc_per_node,
            help="Workers on this node; default 1. auto: one per accelerator, else the CPU limit.",
        ),
        Flag(
            "--accelerator",
            group=_WORKERS,
            metavar="TYPE",
            read=values.accelerator,
            ours=True,
            help="The kind of device that auto and gpu count: auto (default), nvidia.com/gpu,"
            " amd.com/gpu, ascend-npu or cpu.",
        ),
        Flag(
            "--role",
            group=_WORKERS,
            metavar="NAME",
            read=values.string,
            help="The role of this node's workers; default: default.",
        ),
        Flag(
            "--virtual-local-rank",
            group=_WORKERS,
            help="Show each worker LOCAL_RANK=0 and its own device only.",
        ),
        Flag(
            "--numa-binding",
            group=_WORKERS,
            metavar="MODE",
            read=values.one_of("node", "socket", "exclusive", "core-complex"),
            help="Bind workers to the CPUs near their GPU: node, socket, exclusive, core-complex.",
        ),
        Flag(
            "--watch-workers",
            group=_WORKERS,
            ours=True,
            help="Have Python workers write their stacks when ft-run stacks asks, and count their"
            " steps.",
        ),
        Flag(
            "--no-capture-errors",
            group=_WORKERS,
            ours=True,
            help="Do not write the exception that ends a Python worker to its error file, from"
            " which its type, message and traceback are reported.",
        ),
    ]


def _hang_flags() -> list[Flag]:
    return [
        Flag(
            "--hang-timeout",
            group=_FAILURE,
            metavar="SECONDS|auto|never",
            read=values.hang_timeout,
            ours=True,
            help="Look for a hang when a worker has done no step for so long, and restart if there"
            " is one; default never. auto: ten times the longest step, at least 60.",
        ),
        Flag(
            "--hang-timeout-start",
            group=_FAILURE,
            metavar="SECONDS",
            read=values.seconds_above_zero,
            ours=True,
            help="The same until the first step, and while a checkpoint is saved or loaded or a"
            f" model compiled; default {defaults.HANG_TIMEOUT_START_S:g}.",
        ),
    ]


def _breakpoint_flags() -> list[Flag]:
    return [
        Flag(
            "--save-at-breakpoint",
            group=_FAILURE,
            ours=True,
            help="Where the script uses ft_run.training.Checkpointer: write the newest snapshot to"
            " storage before the job fails or this node leaves, within --shutdown-timeout"
            " (default).",
        ),
        Flag(
            "--no-save-at-breakpoint",
            group=_FAILURE,
            ours=True,
            help="Do not: only the checkpoints that the script asks for are written.",
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


def _failure_flags() -> list[Flag]:
    return [
        Flag(
            "--max-restarts",
            group=_FAILURE,
            metavar="N",
            read=values.whole(0),
            help="Restarts before the job fails, counted over all nodes; default 0.",
        ),
        *policy_flags(),
        *_hang_flags(),
        propagate_flag(),
        Flag(
            "--shutdown-timeout",
            group=_FAILURE,
            metavar="SECONDS",
            read=values.seconds,
            help="From SIGTERM to SIGKILL when workers are stopped; default"
            f" {defaults.SHUTDOWN_TIMEOUT_S:g}, or TORCH_ELASTIC_SHUTDOWN_TIMEOUT.",
        ),
        *_breakpoint_flags(),
        Flag(
            "--snapshot-replicas",
            group=_FAILURE,
            metavar="R",
            read=values.whole(0, 16),
            ours=True,
            help="Keep sharded snapshots of a Checkpointer on R other nodes too, so that the loss"
            " of a host costs no state; default 0. It takes 2 x R a rank's state in memory.",
        ),
        Flag(
            "--preemption-notice",
            group=_FAILURE,
            metavar="SOURCE",
            read=values.notice_source,
            ours=True,
            help="Ask whether this machine will be gone: gcp, aws, azure, file:PATH, or auto for"
            " the cloud that the firmware names. All ranks then leave one state first.",
        ),
        Flag(
            "--signals-to-handle",
            group=_FAILURE,
            metavar="NAMES",
            read=values.string,
            help=f"Signals that stop the job in order; default {defaults.SIGNALS_TO_HANDLE}.",
        ),
    ]


def _log_flags() -> list[Flag]:
    return [
        Flag(
            "--log-dir",
            group=_LOGS,
            metavar="DIR",
            read=values.string,
            help="Where log files go; default: a temporary folder.",
        ),
        Flag(
            "-r",
            "--redirects",
            group=_LOGS,
            metavar="STREAMS",
            read=stream_values.streams,
            help="Write streams to files instead of the console: 0 none, 1 stdout, 2 stderr,"
            " 3 both, or by local rank, such as 0:1,10:3.",
        ),
        Flag(
            "-t",
            "--tee",
            group=_LOGS,
            metavar="STREAMS",
            read=stream_values.streams,
            help="Write streams to files as well as to the console.",
        ),
        Flag(
            "--log-line-prefix-template",
            group=_LOGS,
            since="2.15",
            metavar="TEMPLATE",
            read=values.string,
            help="Put this before each console line of a tee'd stream: text with ${role_name},"
            " ${rank}, ${local_rank} and ${hostname}; default [${role_name}${local_rank}]:, or"
            " TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE.",
        ),
        Flag(
            "--local-ranks-filter",
            group=_LOGS,
            metavar="RANKS",
            read=lambda text: (stream_values.local_ranks(text),),
            help="Show only these local ranks on the console, such as 0,1.",
        ),
        Flag(
            "--duplicate-stdout-filters",
            group=_LOGS,
            metavar="WORDS",
            read=stream_values.filters,
            help="Copy the lines of stdout with one of these words (with commas; ,, is a comma)"
            " to a file of their own.",
        ),
        Flag(
            "--duplicate-stderr-filters",
            group=_LOGS,
            metavar="WORDS",
            read=stream_values.filters,
            help="The same for stderr.",
        ),
    ]


def _script_flags() -> list[Flag]:
    return [
        Flag("-m", "--module", group=_SCRIPT, help="SCRIPT is a module, run as by python -m."),
        Flag("--no-python", group=_SCRIPT, help="SCRIPT is a program to run as it is."),
        Flag(
            "--run-path",
            group=_SCRIPT,
            help="Run SCRIPT by runpy.run_path; beats --no-python.",
        ),
        Flag(
            "--preload",
            group=_SCRIPT,
            metavar="MODULE,...",
            read=values.modules,
            ours=True,
            help="Import modules once, such as torch, and fork every worker from there: starts and"
            " restarts do not wait for imports.",
        ),
    ]


def _compatibility_flags() -> list[Flag]:
    return [
        Flag(
            "--rdzv-backend",
            group=_COMPATIBILITY,
            metavar="NAME",
            read=values.backend,
            help="grpc, c10d or static: all of them mean the master of ft-run.",
        ),
        Flag(
            "--event-log-handler",
            group=_COMPATIBILITY,
            metavar="NAME",
            read=values.one_of("null", "console"),
            help="null (default) or console.",
        ),
        Flag(
            "--monitor-interval",
            group=_COMPATIBILITY,
            metavar="SECONDS",
            read=values.seconds,
            help="Accepted; nothing polls.",
        ),
        Flag(
            "--start-method",
            group=_COMPATIBILITY,
            metavar="METHOD",
            read=values.one_of("spawn", "fork", "forkserver"),
            help="Accepted; spawn, fork or forkserver.",
        ),
        Flag(
            "--logs-specs",
            group=_COMPATIBILITY,
            metavar="NAME",
            read=values.logs_specs,
            help="Refused: there are no plug-ins for logs.",
        ),
    ]
