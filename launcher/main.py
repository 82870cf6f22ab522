"""The entry point: read the command line, do what it says, end with a documented exit status."""

import os
import sys
from collections.abc import Sequence

from .. import exit_codes
from ..errors import FtRunError


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``ft-run``; return its exit status.

    Args:
        argv: the arguments after the program's name; None takes those of the process.
    """
    open_standard_streams()
    try:
        return _main(sys.argv[1:] if argv is None else argv)
    except FtRunError as error:
        from .standard_output import say_last

        say_last(f"ft-run: error: {error.sentence}")
        return error.exit_code
    except KeyboardInterrupt:  # before the agent has taken over the signals
        return exit_codes.SIGNAL_BASE + 2


def _main(argv: Sequence[str]) -> int:
    from .cli import parse
    from .options import CheckOptions, LaunchOptions, MasterOptions, PolicyOptions

    options = parse(argv, os.environ)
    if isinstance(options, PolicyOptions):
        from .policy_command import explain_policy

        return explain_policy(options)
    import_asyncio()
    if isinstance(options, LaunchOptions):
        from .launch import launch

        return launch(options)
    if isinstance(options, MasterOptions):
        from .master_command import run_master

        quiet_grpc()
        return run_master(options)
    if isinstance(options, CheckOptions) and options.rendezvous is not None:
        from .check_together import check_together

        return check_together(options, options.rendezvous)
    if isinstance(options, CheckOptions):
        from .check_command import run_check

        return run_check(options)
    from .status_command import show_status

    quiet_grpc()
    return show_status(options)


def import_asyncio() -> None:
    """Import asyncio as in a Python without ssl: no TLS here, and OpenSSL takes time to load."""
    if "ssl" in sys.modules:
        return
    sys.modules["ssl"] = None  # type: ignore[assignment]  # its import then fails
    try:
        import asyncio  # noqa: F401 - it is to be loaded, without ssl
    finally:
        del sys.modules["ssl"]


def quiet_grpc() -> None:
    """Keep gRPC from writing lines of its own; it reads this when it is loaded.

    What it reports is reported better by ft-run. Workers get no variable by this: their
    environment is taken before.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def open_standard_streams() -> None:
    """Make sure that 0, 1 and 2 are open, or the next file would become a standard stream."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)
