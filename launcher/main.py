"""The entry point: parses the command line, runs the command, exits with a documented code."""

import errno
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .. import exit_codes
from ..errors import FtRunError
from .startup import forget_token, import_asyncio, loading, open_standard_streams, quiet_grpc

if TYPE_CHECKING:
    from .cli.parse import Options
    from .options import LaunchOptions


_QUESTIONS = ("status", "stacks", "policy", "report", "token")
"""Commands that do not run a job."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``ft-run``; return its exit code. ``argv`` does not include the program's name."""
    open_standard_streams()
    words = sys.argv[1:] if argv is None else argv
    try:
        return _main(words)
    except FtRunError as error:
        from .reporting.standard_output import say_last

        say_last(f"ft-run: error: {error.sentence}")
        if not words or words[0] not in _QUESTIONS:  # a probe runs in the job's container
            from .reporting.termination_message import write_termination_message

            write_termination_message(error.sentence, error.exit_code)
        return error.exit_code
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        from .machine.shortage import explained
        from .reporting.standard_output import say_last

        say_last(f"ft-run: error: {explained(error)}.")
        return exit_codes.WORKERS_FAILED
    except KeyboardInterrupt:  # before the agent has taken over the signals
        return exit_codes.SIGNAL_BASE + 2


def _main(argv: Sequence[str]) -> int:
    if "_FT_RUN_COMPLETE" in os.environ:  # as in every program of click
        from .commands.completion import complete

        return complete(os.environ["_FT_RUN_COMPLETE"])
    if argv and argv[0] == "hosts-node":
        from .commands.hosts_node import run_hosts_node

        return run_hosts_node()
    if not argv:
        from .cli.launch_flags import SUMMARY
        from .reporting.standard_output import say_last

        for line in SUMMARY.splitlines():
            say_last(line)
        return exit_codes.USAGE
    with loading():
        from .cli.parse import parse

        options = parse(argv, os.environ)
    forget_token()
    return _run(options)


def _run(options: "Options") -> int:
    """Run the command of the options; each imports only what it needs."""
    from .cli.launch_flags import CompletionOptions
    from .cli.master_flags import MasterOptions, StacksOptions
    from .cli.policy_flags import PolicyOptions
    from .cli.rehearse_flags import RehearseOptions
    from .cli.report_flags import ReportOptions
    from .cli.security_flags import TokenOptions
    from .hosts_options import HostsOptions
    from .options import LaunchOptions

    if isinstance(options, CompletionOptions):
        from .commands.completion import complete

        return complete(f"{options.shell}_source")
    if isinstance(options, PolicyOptions):
        from .commands.policy import explain_policy

        return explain_policy(options)
    if isinstance(options, ReportOptions):
        from .commands.report import show_report

        return show_report(options)
    if isinstance(options, TokenOptions):
        from .commands.token import make_token

        return make_token(options)
    if isinstance(options, RehearseOptions):
        from .commands.rehearse import rehearse

        return rehearse(options)
    if isinstance(options, HostsOptions):
        from .commands.hosts import run_hosts

        return run_hosts(options)
    with loading():
        import_asyncio()
    if isinstance(options, LaunchOptions):
        with loading():
            from .commands.launch import launch

        return launch(options) if not options.logs.is_json else _launch_with_json(options)
    if isinstance(options, MasterOptions):
        from .commands.master import run_master

        _prepare_grpc()
        return run_master(options)
    _prepare_grpc()
    if isinstance(options, StacksOptions):
        from .commands.stacks import show_stacks

        return show_stacks(options)
    from .commands.status import show_status

    return show_status(options)


def _prepare_grpc() -> None:
    from .machine.shortage import require_grpc_threads

    quiet_grpc()
    require_grpc_threads()


def _launch_with_json(options: "LaunchOptions") -> int:
    """Launch; an error that ends the job is printed as a record, too."""
    from ..events.event import LogMessage, Severity
    from .commands.launch import launch
    from .history.recorder import Recorder, attempt_of, line_of
    from .reporting.standard_output import say_last

    try:
        return launch(options)
    except FtRunError as error:
        recorder = Recorder(options.rendezvous.job_id, attempt_of(os.environ))
        record = recorder.record(LogMessage(error.sentence, Severity.ERROR))
        say_last(line_of({**record, "severity": "error"}).decode().removesuffix("\n"))
        return error.exit_code
