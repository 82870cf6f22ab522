"""The events of a job of several nodes, made as they happen, with a clock set by hand."""

from ft_run.events.event import Event
from ft_run.events.node import NodeStarted
from ft_run.events.record import Record
from ft_run.events.workers import RoundProgressed, RoundStarted, TrainingStarted, WorkersStarted
from ft_run.launcher.history.answers import JobSummary
from ft_run.launcher.history.job_summary import JobHistory
from ft_run.launcher.history.recorder import Clocks, Recorder

T0 = 1_700_000_000.0


class Job:
    """The events of nodes, in order of time, with a clock set by hand."""

    def __init__(self) -> None:
        self.now = T0
        self.history = JobHistory()
        self.records: list[Record] = []
        self.recorders: dict[str, Recorder] = {}

    def starts(self, *nodes: str, attempt: int = 0) -> None:
        """Agents start; the first hosts the master."""
        for node in nodes:
            clocks = Clocks(lambda: self.now, lambda: self.now, lambda: self.now)
            self.recorders[node] = recorder = Recorder("job", attempt, clocks)
            recorder.node = node
            recorder.add(self.history.add)
            recorder.add(self.records.append)
            host = node.partition("/")[0]
            self.happens(node, NodeStarted("job", node, 2, "s", "m", host=host))

    def happens(self, node: str, *events: Event | float) -> None:
        for event in events:
            if isinstance(event, Event):
                self.recorders[node].event(event)
            else:
                self.now += event

    def round(self, number: int, *nodes: str, resumes: int = -1) -> None:
        """Workers start, and train 3 s later."""
        for rank, node in enumerate(nodes):
            started = RoundStarted(number, rank, len(nodes), 2 * len(nodes), 0, "r", resumes, True)
            self.happens(node, started)
            self.happens(node, WorkersStarted(number, rank, 2 * rank, (1, 2), 4, 2, "a", 1, None))
        self.now += 3.0
        for rank, node in enumerate(nodes):
            self.happens(node, TrainingStarted(number, rank, max(0, resumes)))

    def minutes(self, node: str, count: int, *, rate: float, first: int = 0) -> None:
        for _ in range(count):
            self.now += 60.0
            first += round(60 * rate)
            self.happens(node, RoundProgressed(0, 0, first, rate, 0.25))

    @property
    def summary(self) -> JobSummary:
        return self.history.summary()
