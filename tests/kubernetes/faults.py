"""Things that are done to a job that trains, and the time until it trains again."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from ft_run.tests.harness.kubernetes.manifests import Document
from ft_run.tests.kubernetes.cluster import ENDLESS, MACHINE, SMALL, Job, documents, machine, until
from ft_run.tests.kubernetes.namespaces import namespace

Tell = Callable[[str, object], None]
"""``record_property``: with ``kubernetes`` as the name, the value is printed at the end."""

needs_machine = pytest.mark.skipif(not MACHINE, reason="FT_RUN_KUBERNETES_MACHINE is not set")

_KILL = """
for process in /proc/[0-9]*; do
    grep -qz "^LOCAL_RANK=0$" $process/environ 2>/dev/null || continue
    kill -s KILL ${process#/proc/} && exit 0
done
echo "no process is a worker"; exit 1
"""


@contextmanager
def running(*changes: dict[str, str]) -> Iterator[Job]:
    """Start an Indexed Job of small pods that trains without end."""
    with namespace() as cluster:
        job = Job(cluster, documents("indexed-job", SMALL, ENDLESS, *changes))
        job.start()
        yield job
        cluster.kubectl("delete", "job", "digits")


def kill_worker(job: Job, index: int) -> None:
    """Kill the worker with a local rank of 0."""
    job.cluster.kubectl("exec", job.name(index), "--", "sh", "-c", _KILL)


class Event:
    """One thing that is done to a job that trains: by when it trains again, and what it costs."""

    def __init__(self, job: Job, tell: Tell, what: str, index: int | None = None) -> None:
        """Wait until all three nodes train.

        Args:
            job: the job.
            tell: records times.
            what: text about the event.
            index: a pod that ends; the Job controller's delay grows with its failures.
        """
        self.job = job
        self._tell = tell
        self._round = job.training(3).round
        self.what = what
        if index is not None:
            failures = job.failures(index) + job.failures(index, ignored=True)
            self.what += f", failure {failures + 1} of its index"
        self._restarts = int(job.status(job.leader())["restarts"])
        self._at_s = time.time()

    def trains(self, nodes: int = 3) -> None:
        """Wait until nodes train in a newer round, and record when."""
        now = self.job.training(nodes, after=self._round)
        self._round = now.round
        seconds = now.at_s - self._at_s
        self._tell("kubernetes", f"{self.what}: {nodes} nodes train after {seconds:.1f} s")

    def then(self, what: str) -> None:
        """Count the time from now on."""
        self.what, self._at_s = what, time.time()

    def cost(self) -> int:
        """Return how many restarts were counted."""
        return int(self.job.status(self.job.leader())["restarts"]) - self._restarts


def victim(job: Job, who: str) -> int:
    """Return the index of the pod that leads, or of another one."""
    leader = job.leader()
    return leader if who == "leader" else (leader + 1) % 3


def is_ready(job: Job, node: str) -> bool:
    found = job.cluster.read("node", node)["status"]["conditions"]
    return any(one["type"] == "Ready" and one["status"] == "True" for one in found)


def names(job: Job) -> list[str]:
    """Return the names of all pods, including those that are being deleted."""
    pods = job.cluster.read("pods", f"--selector={job.selector}")
    return [pod["metadata"]["name"] for pod in pods["items"] if is_running(pod)]


def is_running(pod: Document) -> bool:
    return pod["status"]["phase"] in ("Pending", "Running")


@contextmanager
def lost(job: Job, node: str) -> Iterator[None]:
    """Lose a machine, and start it again at the end."""
    machine("lose", node)
    job.away.add(node)
    try:
        yield
    finally:
        machine("start", node)
        until(lambda: is_ready(job, node), f"{node} is ready")
        job.away.clear()
