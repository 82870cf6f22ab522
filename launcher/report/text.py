"""The report as text: the questions on call, and where the time went."""

import textwrap
import time
from collections.abc import Iterator

from ...events.node import nodes_wanted
from ..history.accounting import Phase
from ..history.answers import JobSummary
from ..history.steps import rate
from ..reporting.live_status import duration as clock
from ..reporting.time_report import accounted, duration, table
from .job_report import JobReport
from .restarts import RestartParts

_RESTARTS = 10
_LINES = 5
_COLUMNS, _INDENT, _NO_BREAK = 100, 4 * " ", "\u00a0"


def text_of(report: JobReport) -> str:
    """Return the report, in lines of about 100 characters."""
    summary = report.summary
    lines = [_title(summary), _period(report), ""]
    for name, answer in _answers(summary):
        lines.append(f"{name:<12}{answer}")
    lines += ["", *_restarts(report.restarts), *_failures(summary)]
    lines.append(table(accounted(report.account)))
    if len(report.attempts) > 1:
        lines += ["", *_attempts(report)]
    return "\n".join(lines)


def _title(summary: JobSummary) -> str:
    if summary.exit_code is None:
        return f"job {summary.job}: no end in the events, last {_at(summary.at_s)}"
    word = "succeeded" if summary.exit_code == 0 else f"FAILED, exit code {summary.exit_code}"
    return f"job {summary.job} {word}: {summary.ended}"


def _period(report: JobReport) -> str:
    summary = report.summary
    lasted = clock((summary.at_s or 0.0) - (summary.started_at_s or 0.0))
    count = len(report.attempts)
    attempts = f"{count} attempt{'s' * (count != 1)}"
    nodes = f"{len(report.lanes)} node{'s' * (len(report.lanes) != 1)}"
    return (
        f"{_at(summary.started_at_s)} to {_at(summary.at_s)}, {lasted} · {attempts} · {nodes} in"
        " the events"
    )


def _answers(summary: JobSummary) -> Iterator[tuple[str, str]]:
    training, saves, nodes = summary.training, summary.saves, summary.nodes
    state = "yes" if training.is_training else f"no, {training.phase}"
    if summary.exit_code is not None:
        state = "ended"
    elif training.phase == Phase.RUNNING.value:
        state = "not known: steps are not watched (--watch-workers)"
    step = f"step {training.step}" if training.step >= 0 else "step not known"
    if training.step_at_s is not None:
        step += f", last one {_ago(summary, training.step_at_s)}"
    yield "Training", f"{state}; {step}"
    yield "Checkpoint", "; ".join(_saves(summary))
    restarts = summary.restarts
    kinds = ", ".join(f"{kind}: {count}" for kind, count in restarts.by_kind.items())
    used = "" if restarts.limit is None else f"; {restarts.used} of {restarts.limit} used"
    yield "Restarts", f"{restarts.count} ({kinds}){used}" if restarts.count else "none"
    wanted = ""
    if nodes.min_nodes is not None and nodes.max_nodes is not None:
        wanted = f" of {nodes_wanted(nodes.min_nodes, nodes.max_nodes)}"
    parts = [f"{nodes.in_round}{wanted} in the last round"]
    parts += [f"{nodes.spares} spare{'s' * (nodes.spares != 1)}"] * (nodes.spares is not None)
    for word in ("missing", "lost", "excluded"):
        names = getattr(nodes, word)
        parts += [f"{word}: {', '.join(names[:8])}{' …' * (len(names) > 8)}"] * bool(names)
    yield "Nodes", "; ".join(parts)
    if nodes.xids:
        yield "GPU errors", ", ".join(nodes.xids)
    yield "Speed", _speed(summary)
    if saves.reason and saves.failed_in_all:
        yield "Not saved", f"{saves.failed_in_all}, the last one: {saves.reason}"
    if summary.measured is not None:
        yield "Advice", "\n            ".join(one.text for one in summary.advice) or "none"


def _saves(summary: JobSummary) -> Iterator[str]:
    saves = summary.saves
    if saves.checkpoint is None:
        yield "none"
    else:
        size = f"{saves.checkpoint.bytes / 1e6:.1f} MB in {duration(saves.checkpoint.seconds)}"
        yield f"step {saves.checkpoint.step}, {_ago(summary, saves.checkpoint.at_s)}, {size}"
    if saves.failed:
        yield f"{saves.failed} not written since"
    if saves.snapshot_step >= 0:
        lag = f", replica {saves.replica_lag} steps behind" if saves.replica_lag is not None else ""
        yield f"snapshot of step {saves.snapshot_step}{lag}"


def _speed(summary: JobSummary) -> str:
    training = summary.training
    if training.steps_per_s is None:
        return "not known"
    parts = [f"{rate(training.steps_per_s)} steps/s"]
    if training.best_hour_steps_per_s is not None:
        parts.append(f"best hour {rate(training.best_hour_steps_per_s)}")
    if training.slowdown is not None:
        parts.append(f"a step takes {training.slowdown:.2f} times as long")
    if training.data_wait is not None:
        parts.append(f"waits for data {training.data_wait:.0%} of the time")
    return ", ".join(parts)


def _restarts(restarts: list[RestartParts]) -> Iterator[str]:
    if not restarts:
        return
    yield "Restarts, each with the time until the next step and its parts:"
    if len(restarts) > _RESTARTS:
        yield f"  … {len(restarts) - _RESTARTS} earlier ones"
    for one in restarts[-_RESTARTS:]:
        took = "–" if one.down_s is None else duration(one.down_s)
        yield f"  {_at(one.at_s)[:19]}{took:>9}  {one.cause}"
        # Wrap between parts only.
        parts = ", ".join(part.replace(" ", _NO_BREAK) for part in _parts(one))
        for line in textwrap.wrap(parts, _COLUMNS - len(_INDENT)):
            yield _INDENT + line.replace(_NO_BREAK, " ")
    yield ""


def _parts(restart: RestartParts) -> Iterator[str]:
    if restart.detect_s is not None:
        yield f"detecting {duration(restart.detect_s)}"
    for name, seconds in restart.phases.items():
        yield f"{name} {duration(seconds)}"
    if restart.redo_steps == 0:
        yield "no step done again"
    elif restart.redo_steps is not None:
        steps = f"{restart.redo_steps} step{'s' * (restart.redo_steps != 1)}"
        yield f"{steps} done again ({duration(restart.redo_s)})"


def _failures(summary: JobSummary) -> Iterator[str]:
    failures = summary.restarts.failures
    if not failures:
        return
    yield f"Last failure: {failures[0].summary}"
    yield from (f"  {line}" for line in failures[0].lines[-_LINES:])
    yield ""


def _attempts(report: JobReport) -> Iterator[str]:
    yield "Attempts:"
    for one in report.attempts:
        goodput = one.account.goodput
        share = "not known" if goodput is None else f"{goodput:.1%}"
        yield (
            f"  {_at(one.began_s)}{clock(one.account.seconds):>11}  goodput {share:>9}"
            f"  {one.nodes} nodes  {one.ended or 'no end in the events'}"
        )


def _ago(summary: JobSummary, at_s: float) -> str:
    """Return how long before the last event something was."""
    if summary.at_s is None:
        return _at(at_s)
    return f"{duration(max(0.0, summary.at_s - at_s))} before the last event"


def _at(at_s: float | None) -> str:
    if at_s is None:
        return "?"
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at_s))
