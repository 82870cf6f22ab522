"""Events of the checks on this node."""

from .event import Event, Severity


class ChecksProgressed(Event):
    """Progress of the checks; ``is_alone``: of ``ft-run check`` on one node."""

    progress: str
    is_alone: bool = False

    name = "checks.progressed"
    severity = Severity.DEBUG

    def __str__(self) -> str:
        return f"{'check' if self.is_alone else 'checks'}: {self.progress}"


class CheckSignalled(Event):
    """A signal ends ``ft-run check``."""

    signal: str

    name = "check.signalled"
    severity = Severity.WARNING
    line = "check: received {signal}, exiting"


class NodeJudged(Event):
    """The result of the checks for a node that has not passed, or has a warning."""

    node_id: str
    standing: str
    reasons: str

    name = "node.judged"
    severity = Severity.WARNING
    line = "checks: {node_id} {standing}: {reasons}"


class NodePassedWithWarning(Event):
    """This node passed the checks with a warning."""

    sentence: str

    name = "node.warned"
    severity = Severity.WARNING
    line = "checks: this node passed with a warning: {sentence}"


class ChecksEnded(Event):
    """The result of all checks."""

    conclusion: str

    name = "checks.ended"
    line = "checks: {conclusion}"
