"""Output of the checks: a table, or a line for each verdict, and the report file."""

import os
import sys
from typing import TYPE_CHECKING, Final

from ... import exit_codes
from ...errors import NodeUnfitError, UsageError
from ...events.checks import ChecksEnded, NodeJudged, NodePassedWithWarning
from ...events.event import LogMessage, Severity
from ...rendezvous.protocol.check_messages import CheckVerdict
from ..options import CheckOptions
from ..reporting.display import Display
from ..reporting.standard_output import standard_output
from .report_file import write_report

if TYPE_CHECKING:
    from ...checks.verdict import Verdicts

_UNFOLDED: Final = 10_000
"""Width in columns, larger than any line."""


def show_finding(found: CheckVerdict, display: Display, options: CheckOptions) -> None:
    """Print the result of the checks, and write the report file if the user requested it.

    Args:
        found: the master's message; the master sends the whole report to one node of the job.
        display: prints the lines; ``ft-run check`` writes its table or JSON to standard output.
        options: the options of the checks.

    Raises:
        UsageError: the result of ``ft-run check`` cannot be written to standard output.
    """
    has_table = bool(found.report) and display.live and not options.spec.only
    if found.report:
        if options.spec.only:
            _print(found.report, as_json=options.json)
        elif has_table:
            _show_table(found.report, display)
        else:
            _show_lines(found.report, display)
        if options.report is not None:
            _write(found.report, options.report, display)
    if found.exit_code:
        return  # the error is the last line of this agent
    if found.sentence:
        display.event(NodePassedWithWarning(found.sentence))
    if not has_table:  # the table ends with this line
        display.event(ChecksEnded(found.conclusion))


def unfit(found: CheckVerdict) -> NodeUnfitError:
    """Return the error of a node that has not passed the checks."""
    is_warning = found.exit_code == exit_codes.CHECKS_WARNED
    what = "passed the checks with a warning" if is_warning else "failed the checks"
    return NodeUnfitError(f"this node {what}: {found.sentence}.", found.exit_code)


def _print_table(verdicts: "Verdicts") -> None:
    from rich.console import Console

    from ...checks.table import print_verdicts

    # Output to a pipe is not wrapped, so that it can be searched by line.
    folded = sys.stdout.isatty() or "COLUMNS" in os.environ
    print_verdicts(verdicts, Console(highlight=False, width=None if folded else _UNFOLDED))


def _print(report: str, *, as_json: bool) -> None:
    from ...checks.report import report_from_json

    with standard_output():
        if as_json:
            print(report)
        else:
            _print_table(report_from_json(report))


def _show_table(report: str, display: Display) -> None:
    from ...checks.report import report_from_json
    from ...checks.table import noteworthy_nodes, table_text

    verdicts = noteworthy_nodes(report_from_json(report))
    display.report(table_text(verdicts, display.columns, colour=display.colour), is_styled=True)


def _show_lines(report: str, display: Display) -> None:
    from ...checks.report import report_from_json
    from ...checks.table import has_to_tell

    for verdict in filter(has_to_tell, report_from_json(report).nodes):
        display.event(NodeJudged(verdict.node, verdict.standing.value, verdict.text))


def _write(report: str, path: str, display: Display) -> None:
    try:
        write_report(path, report)
    except UsageError as error:
        display.event(LogMessage(error.sentence, Severity.ERROR))
