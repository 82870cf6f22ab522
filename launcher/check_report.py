"""What a person sees of the checks: the table or a line for each verdict, and the report file."""

import logging

from ..rendezvous.messages import CheckVerdict
from .display import Display


def show_finding(found: CheckVerdict, display: Display, path: str | None) -> None:
    """Show what the checks found, and write it to a file where that was asked for.

    Args:
        found: what the master says; it gives the whole report to one node of the job.
        display: where to.
        path: the file for the report; None: none.
    """
    if found.report:
        _show_report(found.report, display)
        if path is not None:
            _write(found.report, path, display)
    if found.exit_code:
        return  # the sentence is the last that this agent says
    level = logging.WARNING if found.sentence else logging.INFO
    if found.sentence:
        display.event(f"checks: this node passed, but {found.sentence}", level)
    display.event(f"checks: {found.conclusion}")


def _show_report(report: str, display: Display) -> None:
    from ..checks.report import report_from_json
    from ..checks.verdict import Standing

    verdicts = report_from_json(report)
    for verdict in verdicts.nodes:
        if verdict.standing is not Standing.PASSED:
            text = f"checks: {verdict.node} {verdict.standing.value}: {verdict.reason}"
            display.event(text, logging.WARNING)


def _write(report: str, path: str, display: Display) -> None:
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(report + "\n")
    except OSError as error:
        display.event(f"--check-report: {path} cannot be written: {error.strerror}", logging.ERROR)
