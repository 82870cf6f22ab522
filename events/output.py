"""Events of the workers' output: log files and the relay to the console."""

from .event import Event, Severity


class LogFileEnded(Event, frozen=True):
    """A worker's log file cannot be written any more; the worker keeps running."""

    path: str
    reason: str

    name = "log.file_ended"
    severity = Severity.WARNING
    line = "log file {path} ends here: {reason}; the workers keep running"


class RelayLost(Event, frozen=True):
    """The relay of the workers' output was killed."""

    pid: int
    streams: int
    """Number of open streams; their workers get a broken pipe."""

    name = "relay.lost"
    severity = Severity.WARNING
    line = (
        "the relay of the workers' output (pid {pid}) was killed with {streams} stream(s) open: "
        "workers that write to them get a broken pipe; later output goes to the log files only"
    )


class OutputUnshown(Event, frozen=True):
    """The console was not read: this much of the workers' output was dropped."""

    bytes: int

    name = "output.dropped"
    severity = Severity.WARNING
    line = "{bytes} bytes of the workers' output dropped: the console was not read"
