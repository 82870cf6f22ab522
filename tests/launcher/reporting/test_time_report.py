"""Who reports where the time went, and when."""

from collections.abc import Callable
from typing import Any

import pytest
from ft_run.events.event import Event, Severity
from ft_run.events.node import NodeStarted, TimeAccounted
from ft_run.events.record import Record
from ft_run.events.tuning import TuningAdvised
from ft_run.events.workers import RestartBegun, RoundStarted
from ft_run.launcher.history.event_history import EventHistory
from ft_run.launcher.history.recorder import Clocks, Recorder
from ft_run.launcher.reporting.display import Display
from ft_run.launcher.reporting.time_report import report_time
from ft_run.rendezvous.protocol.failure import node_lost
from ft_run.tests.launcher.history.test_advice import BURSTY, measured

STARTED = NodeStarted("job", "vm/0", 1, "s", "m")
RESTART = RestartBegun(1, 0, node_lost(1, "h", "r", "gone"), "", False, 1, 3)


class Console(Display):
    """Keeps what it would show."""

    def __init__(self, recorder: Recorder, *, is_json: bool) -> None:
        super().__init__(live=False, recorder=recorder, is_json=is_json)
        self.events: list[tuple[Event, Severity]] = []
        self.reports: list[str] = []

    def event(self, event: Event, severity: Severity | None = None) -> None:
        assert self.recorder is not None
        self.recorder.event(event)
        self.events.append((event, event.severity if severity is None else severity))

    def report(self, text: str, *, is_styled: bool = False) -> None:
        self.reports.append(text)


Run = Callable[..., Console]


@pytest.fixture
def run() -> Run:
    """Returns a function that runs a node for some seconds and closes it."""

    def run_node(
        seconds: float, *events: Event, sink: Any = None, is_json: bool = False
    ) -> Console:
        now = [0.0]
        recorder, history = Recorder("job", clocks=Clocks(*[lambda: now[0]] * 3)), EventHistory()
        recorder.add(history.add)
        if sink is not None:
            recorder.add(sink)
            recorder.is_written = True
        console = Console(recorder, is_json=is_json)
        for event in (STARTED, *events):
            console.event(event)
        console.events.clear()
        now[0] = seconds
        report_time(console, recorder, history)
        return console

    return run_node


def round_started(node_rank: int = 0) -> RoundStarted:
    return RoundStarted(0, node_rank, 2, 2, 0, "r")


def test_a_long_job_ends_with_a_table_on_its_first_node(run: Run) -> None:
    console = run(10.0, round_started())
    assert console.reports[0].startswith("Where the time went:\n")
    assert [severity for _, severity in console.events] == [Severity.DEBUG]
    other = run(10.0, round_started(1))
    assert (other.reports, [s for _, s in other.events]) == ([], [Severity.DEBUG])


def test_a_short_job_has_a_line_if_it_was_restarted(run: Run) -> None:
    ((event, severity),) = run(9.0, round_started(), RESTART).events
    assert isinstance(event, TimeAccounted)
    assert severity is Severity.INFO
    assert event.restarts == {"node_lost": 1}
    assert not run(9.0, round_started()).events


def test_a_file_has_the_event_of_a_short_job_too(run: Run) -> None:
    records: list[Record] = []
    run(9.0, round_started(), sink=records.append)
    assert records[-1]["name"] == "time.accounted"
    assert records[-1]["seconds"] == 9.0


def test_a_node_that_has_started_no_round_reports_nothing(run: Run) -> None:
    console = run(100.0)
    assert not console.events
    assert not console.reports


def test_a_quiet_console_has_no_table(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGLEVEL", "WARNING")
    assert not run(10.0, round_started()).reports


def test_the_advice_is_below_the_table(run: Run) -> None:
    # The hand clock stands still between the two: idle CPUs are not of interest here.
    console = run(20.0, round_started(), measured(), measured(**BURSTY))
    line = "data wait 30% in bursts of 0.5 s: prefetch_factor 2 -> 6"
    assert console.reports[0].endswith(f"\nAdvice:\n  {line}")
    assert console.events[-1] == (TuningAdvised((line,)), Severity.DEBUG)
    assert str(console.events[-1][0]) == f"advice: {line}"
    console = run(20.0, round_started(), measured(), measured())
    assert console.reports[0].endswith("\nAdvice: none")
    assert console.events[-1] == (TuningAdvised(()), Severity.DEBUG)
    of_another = run(20.0, round_started(1), measured(), measured(**BURSTY), is_json=True)
    assert of_another.events[-1] == (TuningAdvised((line,)), Severity.DEBUG)
    console = run(20.0, round_started(), measured(), measured(**BURSTY), is_json=True)
    assert console.events[-1] == (TuningAdvised((line,)), Severity.INFO)


def test_a_job_too_short_for_its_phases_has_none_in_its_line() -> None:
    event = TimeAccounted(0.14, {"running": 0.05}, {"worker": 1}, {"running": 0.02}, {}, None)
    assert str(event) == "time: 0.1 s; 1 restart, 20 ms"
    event = TimeAccounted(0.14, {"running": 0.05}, {"worker": 2}, {"running": 0.02}, {}, None)
    assert str(event) == "time: 0.1 s; 2 restarts, 10 ms each"
