"""Output of the checks: a table, or a line for each verdict, and the report file."""

from ... import exit_codes
from ...checks.report import report_from_json
from ...errors import NodeUnfitError, UsageError
from ...events.checks import ChecksEnded, NodeJudged, NodePassedWithWarning
from ...events.event import LogMessage, Severity
from ...rendezvous.protocol.check_messages import CheckVerdict
from ..options import CheckOptions
from ..reporting.display import Display
from ..reporting.standard_output import standard_output
from .report_file import write_report


def show_finding(found: CheckVerdict, display: Display, options: CheckOptions) -> None:
    """Print the result of the checks, and write the report file if the user requested it.

    The master sends the whole report to only one node of the job.
    """
    has_table = bool(found.report) and display.live and not options.spec.only
    if found.report:
        if options.report is not None:
            _write(found.report, options.report, display)
        _show_report(found.report, display, options, has_table=has_table)
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


def _show_report(report: str, display: Display, options: CheckOptions, *, has_table: bool) -> None:
    from ...checks.table import has_to_tell, noteworthy_nodes, print_verdicts, table_text  # rich
    from ..reporting.table_console import table_console  # as above: 2.5 MB, only for checks

    verdicts = report_from_json(report)
    if has_table:
        text = table_text(noteworthy_nodes(verdicts), display.columns, colour=display.colour)
        display.report(text, is_styled=True)
    elif not options.spec.only:
        for verdict in filter(has_to_tell, verdicts.nodes):
            display.event(NodeJudged(verdict.node, verdict.standing.value, verdict.text))
    else:
        with standard_output():
            if options.json:
                print(report)
            else:
                print_verdicts(verdicts, table_console())


def _write(report: str, path: str, display: Display) -> None:
    try:
        write_report(path, report)
    except UsageError as error:
        display.event(LogMessage(error.sentence, Severity.ERROR))
