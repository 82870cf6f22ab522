"""The options of ``ft-run report``."""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from ...errors import UsageError
from ..flags.flag import Heading, flags_of
from .command_line import CommandLine, HelpText

_OPTIONS = Heading("Options")


class ReportOptions(Struct, frozen=True):
    """The options of ``ft-run report``."""

    paths: tuple[str, ...] = ()
    """Event files, and directories with ``events*.jsonl``."""
    page: str | None = _OPTIONS.option(
        None, "-o, --output FILE", "Write the report as a page of HTML, which needs no other file."
    )
    trace: str | None = _OPTIONS.option(
        None, "--trace FILE", "Write the phases of all nodes as a trace for ui.perfetto.dev."
    )
    json: bool = _OPTIONS.option(False, "--json", "Print JSON instead of text.")
    job_id: str | None = _OPTIONS.option(
        None, "--rdzv-id ID", "The job, if the files have events of several."
    )


def report_command() -> CommandLine:
    """Return the flags of ``ft-run report``."""
    before = """\
Usage: ft-run report [OPTIONS] EVENTS...

Show what happened in a job: whether it trained, where its time went, its
restarts, failures and checkpoints. EVENTS are the files of --events of all
nodes, also of several attempts, or directories that have events*.jsonl, e.g.
that of --log-dir. Without -o or --trace the report is a text.

Example:
  ft-run report logs/ -o report.html
"""
    after = "Every option can be set by PET_<NAME>, e.g. PET_JSON=1.\n"
    return CommandLine("ft-run report", flags_of(ReportOptions), HelpText(before, after))


def report_options(argv: Sequence[str], environ: Mapping[str, str]) -> ReportOptions:
    """Parse the arguments after ``report``."""
    given, paths = report_command().read_all(argv, environ, most=len(argv), right="")
    if not paths:
        raise UsageError(
            "no event file was given; expected ft-run report EVENTS..., e.g. the file of --events"
            " of each node, or the folder of --log-dir."
        )
    return given.fill(ReportOptions, paths=paths)
