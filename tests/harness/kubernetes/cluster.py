"""The controllers while a job runs: pods that end are made again, or the job is over."""

import signal
import subprocess
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from ft_run.tests.harness.kubernetes.kubelet import Container, Kubelet
from ft_run.tests.harness.kubernetes.manifests import Document, Pod, failure_policy, job_of

if TYPE_CHECKING:
    from ft_run.tests.e2e.conftest import Launcher


class Cluster:
    """Runs what some manifests describe."""

    def __init__(self, ft: "Launcher", kubelet: Kubelet, documents: list[Document]) -> None:
        """Start nothing yet.

        Args:
            ft: waits.
            kubelet: runs the pods.
            documents: as ``manifests.job_of`` takes them.
        """
        self._ft = ft
        self._kubelet = kubelet
        self._documents = documents
        self._job = job_of(documents)
        self._failures = Counter[str]()
        """By pod."""
        self.attempts = 0
        """How often the JobSet was begun anew."""
        self.verdict = ""
        """``Complete``, or why the job has failed; empty while it runs."""
        self.actions: list[tuple[str, int, str]] = []
        """Each end of a pod: its name, the container's status, what followed."""
        self._disrupted: set[str] = set()
        self._done: set[str] = set()

    @property
    def pods(self) -> dict[str, Pod]:
        """The pods by name, as they are to be."""
        return {pod.name: pod for pod in self._job.pods}

    def container(self, name: str) -> Container:
        """Return the newest container of a pod."""
        return self._kubelet.containers[name]

    def start(self) -> None:
        """Make all pods."""
        for pod in self._job.pods:
            self._kubelet.start(pod)

    def remove(self, name: str, *, disrupted: bool = False) -> None:
        """Delete a pod in order: SIGTERM, and SIGKILL when its grace period is over.

        Args:
            name: of the pod.
            disrupted: it is drained or preempted, and has the condition that says so.
        """
        if disrupted:
            self._disrupted.add(name)
        self._terminate([name])

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Play the controllers until something is true."""

        def played() -> bool:
            self._reconcile()
            return condition()

        self._ft.wait_until(played, what)

    def until_over(self) -> str:
        """Play the controllers until the job has succeeded or failed; return which."""
        self.until(lambda: bool(self.verdict), f"the job is over; pods: {self.actions}")
        return self.verdict

    def _terminate(self, names: list[str]) -> None:
        containers = [self.container(name) for name in names]
        for container in containers:
            container.send(signal.SIGTERM)
        for name, container in zip(names, containers, strict=True):
            grace_s = self.pods[name].spec.get("terminationGracePeriodSeconds", 30)
            try:
                container.command.process.wait(grace_s)
            except subprocess.TimeoutExpired:
                container.send(signal.SIGKILL)
            container.command.wait()

    def _reconcile(self) -> None:
        for name, pod in self.pods.items():
            status = self.container(name).status
            if self.verdict or status is None or name in self._done:
                continue
            action = self._answer(pod, status)
            self.actions.append((name, status, action))
            if action == "Complete":
                self._done.add(name)
                if len(self._done) == len(self.pods):
                    self.verdict = "Complete"
            elif action in ("FailJob", "MaxFailedIndexesExceeded"):
                self._failed("PodFailurePolicy" if action == "FailJob" else action)
            else:
                self._kubelet.start(pod)

    def _answer(self, pod: Pod, status: int) -> str:
        disrupted = pod.name in self._disrupted
        self._disrupted.discard(pod.name)
        if pod.spec.get("restartPolicy", "Always") == "Always":
            return "Restart"
        if status == 0:
            return "Complete"
        action = self._job.answer(status, disrupted=disrupted)
        if action == "Count":
            self._failures[pod.name] += 1
            if self._failures[pod.name] > self._job.spec["backoffLimitPerIndex"]:
                return "MaxFailedIndexesExceeded"
        return action

    def _failed(self, reason: str) -> None:
        """End the other pods; a JobSet may be begun anew then."""
        self._terminate([name for name in self.pods if self.container(name).status is None])
        policy = failure_policy(self._documents)
        if policy is None:
            self.verdict = reason
            return
        for rule in policy["rules"]:
            if reason in rule["onJobFailureReasons"]:
                assert rule["action"] == "FailJobSet"
                self.verdict = reason
                return
        self.attempts += 1
        if self.attempts > policy["maxRestarts"]:
            self.verdict = "ReachedMaxRestarts"
            return
        self._job = job_of(self._documents, self.attempts)
        self._failures.clear()
        self._done.clear()
        self.start()
