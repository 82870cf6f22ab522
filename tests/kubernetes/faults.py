"""Things that are done to a job that trains, and the time until it trains again."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from ft_run.tests.harness.kubernetes.manifests import Document
from ft_run.tests.kubernetes.cluster import ENDLESS, MACHINE, SMALL, Job, documents, machine, until
from ft_run.tests.kubernetes.namespaces import as_root, namespace

Tell = Callable[[str, object], None]
"""``record_property``: with ``kubernetes`` as the name, the value is printed at the end."""

needs_machine = pytest.mark.skipif(not MACHINE, reason="FT_RUN_KUBERNETES_MACHINE is not set")

# $1 is a signal, $2 the name of a file in /proc/PID and $3 a line of it, or a part of one.
_KILL = """
for process in /proc/[0-9]*; do
    grep -qz "$3" $process/$2 2>/dev/null || continue
    [ $2 != cgroup ] || grep -q "^NSpid:.*[[:space:]]1$" $process/status || continue
    kill -s $1 ${process#/proc/} && exit 0
done
echo "no process has $3 in $2"; exit 1
"""


@contextmanager
def running(*changes: dict[str, str]) -> Iterator[Job]:
    """Start an Indexed Job of small pods that trains without end."""
    with namespace() as cluster:
        job = Job(cluster, documents("indexed-job", SMALL, ENDLESS, *changes))
        job.start()
        yield job


def kill_worker(job: Job, index: int, signal: str = "KILL") -> None:
    """Kill the worker with a local rank of 0."""
    words = ("sh", "-c", _KILL, "sh", signal, "environ", "^LOCAL_RANK=0$")
    job.cluster.kubectl("exec", job.name(index), "--", *words)


def kill_first_process(job: Job, index: int) -> None:
    """Kill process 1 of a pod. Only a process outside of the pod can send it SIGKILL."""
    (status,) = job.pods()[index]["status"]["containerStatuses"]
    container = status["containerID"].rpartition("/")[2]
    script = f"set -- KILL cgroup {container}\n{_KILL}"
    job.cluster.run(as_root("kill", script, hostPID=True, nodeName=job.node(index)))


_LAST_EPOCH = """
import pathlib, torch
newest = max(pathlib.Path("/checkpoints/digits").glob("epoch-*.pt"))
torch.save({**torch.load(newest), "epoch": 99999}, newest.with_name("epoch-099999.pt"))
"""


def finish(job: Job, index: int) -> None:
    """Let a job that trains without end resume from its last epoch but one."""
    job.cluster.kubectl("exec", job.name(index), "--", "python", "-c", _LAST_EPOCH)
    kill_worker(job, index)


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
    """Wait until all three nodes train; return the index of the pod that leads, or of another."""
    job.training(3)
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
