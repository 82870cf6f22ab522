"""Events of what programs read of this job."""

from .event import Event, Severity


class MetricsListening(Event, frozen=True):
    """This process serves metrics."""

    url: str
    has_token: bool
    """Whether requests need the job's token."""

    name = "metrics.listening"

    def __str__(self) -> str:
        return f"metrics: {self.url}{' (with the job token)' if self.has_token else ''}"


class MetricsUnavailable(Event, frozen=True):
    """This process serves no metrics, although it was started with ``--metrics``."""

    address: str
    reason: str

    name = "metrics.unavailable"
    severity = Severity.WARNING
    line = "no metrics at {address}: {reason}; the job runs without them"


class ProgressUnsent(Event, frozen=True):
    """Kubeflow's server does not take the progress of this job; a warning: it refuses it."""

    url: str
    reason: str
    severity: Severity = Severity.WARNING

    name = "trainjob.progress_unsent"
    line = "cannot show the progress in the TrainJob: {reason} ({url}); training is not affected"
