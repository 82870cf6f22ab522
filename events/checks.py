"""Events of the checks on this node."""

from .event import Event, Severity


class ChecksProgressed(Event, frozen=True):
    """Progress of the checks."""

    progress: str

    name = "checks.progressed"
    severity = Severity.DEBUG
    line = "checks: {progress}"


class NodeJudged(Event, frozen=True):
    """The result of the checks for a node that has not passed, or has a warning."""

    node_id: str
    standing: str
    reasons: str

    name = "node.judged"
    severity = Severity.WARNING
    line = "checks: {node_id} {standing}: {reasons}"


class NodePassedWithWarning(Event, frozen=True):
    """This node passed the checks with a warning."""

    sentence: str

    name = "node.warned"
    severity = Severity.WARNING
    line = "checks: this node passed with a warning: {sentence}"


class ChecksEnded(Event, frozen=True):
    """The result of all checks."""

    conclusion: str

    name = "checks.ended"
    line = "checks: {conclusion}"
