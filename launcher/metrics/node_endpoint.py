"""``--metrics`` of a node: the endpoint, what it reads, and what ends with it."""

from ..history.recorder import Recorder
from ..reporting.time_report import TimeReport
from .gpus import Gpus
from .job_metrics import JobMetrics
from .node_metrics import NodeMetrics, Observed
from .server import MetricsServer


class NodeEndpoint:
    """Listens already; ``serve`` on the loop of the agent, and ``close`` it."""

    def __init__(self, server: MetricsServer) -> None:
        """Take the server.

        Args:
            server: listens.
        """
        self._server = server
        self._gpus = Gpus()
        self.job = JobMetrics()
        """Follows the master, if it is in this process."""

    def serve(self, agent: Observed, recorder: Recorder, time_report: TimeReport) -> None:
        """Answer scrapes from now on."""
        metrics = NodeMetrics(agent, recorder, time_report, self.job, self._gpus)
        self._server.serve(metrics.collect)

    def close(self) -> None:
        """Stop listening, and end the process that reads the GPUs."""
        self._server.close()
        self._gpus.close()
