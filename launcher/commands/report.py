"""``ft-run report``: what happened in a job, as text, a page, a trace or JSON."""

from collections.abc import Iterator, Sequence

from ... import exit_codes
from ...errors import UsageError
from ...events.record import Record
from ...printable import printable_lines
from ..cli.report_flags import ReportOptions
from ..flags.values import shown
from ..report.job_report import JobReport, make_report
from ..report.page import json_of, page_of
from ..report.reading import Reading, event_files, merged
from ..report.text import text_of
from ..report.trace import trace_of
from ..reporting.standard_output import say_last, standard_output


def show_report(options: ReportOptions) -> int:
    """Read the events, and print or write the report; return the exit code."""
    reading = Reading()
    report = read_report(options.paths, options.job_id, reading)
    if options.page is not None:
        _write(options.page, "-o", page_of(report, reading))
    if options.trace is not None:
        _write(options.trace, "--trace", trace_of(report))
    with standard_output():
        if options.json:
            print(json_of(report, reading))
        elif options.page is None and options.trace is None:
            print(printable_lines(text_of(report)))
    if note := reading.note:
        say_last(f"ft-run report: {note}")
    return exit_codes.SUCCESS


def read_report(paths: Sequence[str], job: str | None, reading: Reading) -> JobReport:
    """Read the events of one job."""
    records = merged(event_files(paths), reading, job)

    def again(nodes: Sequence[str]) -> Iterator[Record]:
        if not nodes:  # only events of ft-run master
            return iter(())
        files = sorted({path for node in nodes for path in reading.files[node]})
        return merged(files, Reading(), job)

    report = make_report(records, again)
    reading.torn += report.damaged
    return report


def _write(path: str, flag: str, text: str) -> None:
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise UsageError(
            f"cannot write {shown(path)}: {error.strerror}; expected a file in a writable"
            f" directory with {flag}."
        ) from error
