"""The entry point: parses the command line, runs the command, exits with a documented code."""

import errno
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Final

from .. import exit_codes
from ..errors import FtRunError
from .cli.launch_flags import SUMMARY, CompletionOptions
from .cli.master_flags import MasterOptions, StacksOptions, StatusOptions
from .cli.parse import Options, parse
from .cli.policy_flags import PolicyOptions
from .cli.rehearse_flags import RehearseOptions
from .cli.report_flags import ReportOptions
from .cli.security_flags import TokenOptions
from .hosts_options import HostsOptions
from .machine.shortage import explained, require_grpc_threads
from .options import LaunchOptions
from .reporting.standard_output import say_last
from .reporting.termination_message import write_termination_message
from .startup import forget_token, open_standard_streams, quiet_grpc

_COMMANDS: Final[Mapping[type[Options], str]] = {
    LaunchOptions: "launch.run_launch",
    HostsOptions: "hosts.run_hosts",
    MasterOptions: "master.run_master",
    StatusOptions: "status.show_status",
    StacksOptions: "stacks.show_stacks",
    PolicyOptions: "policy.explain_policy",
    ReportOptions: "report.show_report",
    TokenOptions: "token.make_token",
    RehearseOptions: "rehearse.rehearse",
    CompletionOptions: "completion.print_script",
}
"""The module and the function of each command. A module is loaded when its command runs: an agent
must not load gRPC before it forks."""

_GRPC: Final = (MasterOptions, StatusOptions, StacksOptions)
"""Commands whose modules load gRPC."""

_QUESTIONS = ("status", "stacks", "policy", "report", "token")
"""Commands that do not run a job."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``ft-run``; return its exit code. ``argv`` does not include the program's name."""
    open_standard_streams()
    words = sys.argv[1:] if argv is None else argv
    try:
        return _main(words)
    except FtRunError as error:
        say_last(f"ft-run: error: {error.sentence}")
        if not words or words[0] not in _QUESTIONS:  # a probe runs in the job's container
            write_termination_message(error.sentence, error.exit_code)
        return error.exit_code
    except OSError as error:
        if isinstance(error, FileNotFoundError) and _is_working_directory_gone():
            say_last(
                "ft-run: error: the working directory is gone; start ft-run in one that exists, "
                "or give absolute paths."
            )
            return exit_codes.USAGE
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        say_last(f"ft-run: error: {explained(error)}.")
        return exit_codes.WORKERS_FAILED
    except KeyboardInterrupt:  # before the agent has taken over the signals
        return exit_codes.SIGNAL_BASE + 2


def _main(argv: Sequence[str]) -> int:
    if "_FT_RUN_COMPLETE" in os.environ:  # as in every program of click
        return _command("completion.complete")(os.environ["_FT_RUN_COMPLETE"])
    if argv and argv[0] == "hosts-node":
        return _command("hosts_node.run_hosts_node")()
    if not argv:
        for line in SUMMARY.splitlines():
            say_last(line)
        return exit_codes.USAGE
    options = parse(argv, os.environ)
    forget_token()
    if isinstance(options, _GRPC):
        quiet_grpc()
        require_grpc_threads()
    return _command(_COMMANDS[type(options)])(options)


def _command(name: str) -> Callable[..., int]:
    module, _, function = name.partition(".")
    command: Callable[..., int] = getattr(
        import_module(f"{__package__}.commands.{module}"), function
    )
    return command


def _is_working_directory_gone() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False
