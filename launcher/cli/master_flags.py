"""The flags of ``ft-run master``, and of ``ft-run status`` and ``stacks``, which ask it."""

from ... import defaults
from . import stream_values, values
from .command_line import CommandLine, Flag, HelpText
from .rendezvous_flags import CONF_KEYS
from .trust_flags import trust_flags


def master_command() -> CommandLine:
    """Return the flags of ``ft-run master``."""
    flags = [
        Flag(
            "--bind",
            "--rdzv-endpoint",
            group="Options",
            metavar="[HOST]:PORT",
            read=values.bind_address,
            help=f"Where to listen; default :{defaults.ENDPOINT_PORT}, on all addresses. Three or"
            " five HOST:PORT,...: on each of these hosts runs one, and one of them leads.",
        ),
        Flag(
            "--rdzv-conf",
            group="Options",
            metavar="K=V,...",
            read=values.string,
            help=f"Times: {CONF_KEYS}, master_timeout; lease and fence of several.",
        ),
        *trust_flags(),
    ]
    before = """\
Usage: ft-run master [OPTIONS]

Run the master of a job by itself, away from the nodes that train. The nodes
reach it by --rdzv-endpoint HOST:PORT. It ends with the job.

Example:
  ft-run master --bind :29400 --rdzv-conf join_timeout=900
"""
    after = "Every option can be set by PET_<NAME>, such as PET_BIND=:29400.\n"
    return CommandLine("ft-run master", flags, HelpText(before, after))


def stacks_command() -> CommandLine:
    """Return the flags of ``ft-run stacks``."""
    flags = [
        *_question_flags(seconds=10),
        Flag(
            "--rank",
            group="Options",
            metavar="R,...",
            read=stream_values.ranks,
            help="Only these ranks, such as 0,17.",
        ),
    ]
    before = """\
Usage: ft-run stacks [OPTIONS] [HOST[:PORT]]

Show where every rank of a job is now, ranks at the same place together, the
largest group last. The job must have been started with --watch-workers; of
other workers only the state of the process is shown. Nothing is disturbed.

Example:
  ft-run stacks node0:29400 --rank 0,17
"""
    after = "Every option can be set by PET_<NAME>, such as PET_RDZV_ENDPOINT=node0:29400.\n"
    return CommandLine("ft-run stacks", flags, HelpText(before, after))


def status_command() -> CommandLine:
    """Return the flags of ``ft-run status``."""
    flags = _question_flags(seconds=5)
    before = """\
Usage: ft-run status [OPTIONS] [HOST[:PORT]]

Ask the master of a job for its state: the round, the nodes and the restarts.

Example:
  ft-run status node0:29400 --json
"""
    after = "Every option can be set by PET_<NAME>, such as PET_RDZV_ENDPOINT=node0:29400.\n"
    return CommandLine("ft-run status", flags, HelpText(before, after))


def _question_flags(seconds: int) -> list[Flag]:
    return [
        Flag(
            "--rdzv-endpoint",
            group="Options",
            metavar="HOST[:PORT]",
            read=values.endpoint,
            help="The master, where it is not given as an argument;"
            f" default localhost:{defaults.ENDPOINT_PORT}.",
        ),
        Flag("--json", group="Options", help="Print JSON instead of text."),
        Flag(
            "--timeout",
            group="Options",
            metavar="SECONDS",
            read=values.seconds_above_zero,
            help=f"How long to wait for the master's answer; default {seconds}.",
        ),
        *trust_flags(),
    ]
