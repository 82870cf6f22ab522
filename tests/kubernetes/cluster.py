"""The cluster of KUBECONFIG by ``kubectl``, and one job of ``examples/kubernetes`` on it."""

import json
import math
import os
import re
import shlex
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TypeVar

import yaml
from ft_run.tests.harness.kubernetes.manifests import Document, jobset_of, load

FOLDER = Path(__file__).resolve().parents[2] / "examples/kubernetes"
IMAGE = os.environ.get("FT_RUN_KUBERNETES_IMAGE", "")
SHARED = os.environ.get("FT_RUN_KUBERNETES_SHARED", "/var/tmp/ft-run-tests")
"""A directory that all nodes share, for the claim ``checkpoints``."""
MACHINE = os.environ.get("FT_RUN_KUBERNETES_MACHINE", "")
"""A command that takes ``lose NODE``, ``start NODE``, ``cut NODE``, ``heal NODE``, ``dns stop`` and
``dns start`` as its last words."""

RECIPES = {
    "indexed-job": ["indexed-job.yaml"],
    "jobset": ["jobset.yaml"],
    "trainjob": ["trainjob.yaml", "clustertrainingruntime.yaml"],
    "leaderworkerset": ["leaderworkerset.yaml"],
}
SMALL = {
    'requests: {cpu: "2", memory: 4Gi}': "requests: {cpu: 500m, memory: 1Gi}",
    'limits: {cpu: "2", memory: 4Gi}': 'limits: {cpu: "1", memory: 3Gi}',
}
"""Changes of a manifest: one worker per pod, and room for two pods on a node."""
ENDLESS = {
    "- --checkpoint-dir=/checkpoints/digits": "- --checkpoint-dir=/checkpoints/digits\n"
    "            - --epochs=100000",
    "--max-restarts=3": "--max-restarts=100",
}
"""Changes of the Indexed Job: it trains until it is deleted."""
FIXED = {"--nnodes=2:3": "--nnodes=3"}

_LIMIT_S = 600
_STARTED = re.compile(r"round=(\d+) node_rank=\d+ started ranks=\S+ of \d+ on (\d+) node")
_EPOCH = re.compile(r"epoch (\d+)/\d+ loss")
_ENDS = frozenset({"Complete", "Completed", "Failed"})
_INDEXES = ("batch.kubernetes.io/job-completion-index", "leaderworkerset.sigs.k8s.io/worker-index")

T = TypeVar("T")


def until(condition: Callable[[], T | None], what: str) -> T:
    """Wait until a condition has a result; fail if it has none in time."""
    end = time.monotonic() + _LIMIT_S
    while True:
        if result := condition():
            return result
        assert time.monotonic() < end, f"not within {_LIMIT_S} s: {what}"
        time.sleep(2)


def machine(*words: str) -> None:
    """Let something happen to a machine of the cluster, or to its DNS."""
    subprocess.run([*shlex.split(MACHINE), *words], check=True, timeout=120)


@dataclass(frozen=True)
class Training:
    """A round of a job."""

    round: int
    nodes: int
    epoch: int
    """The last one that rank 0 has finished, -1 if none."""
    at_s: float
    """The Unix time at which it had finished the first one."""


class Cluster:
    """One namespace of the cluster."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace

    def kubectl(self, *words: str, stdin: str | None = None, check: bool = True) -> str:
        """Run ``kubectl`` in the namespace and return its output; empty if it fails unchecked."""
        command = ["kubectl", f"--namespace={self.namespace}", *words]
        done = subprocess.run(
            command, input=stdin, capture_output=True, text=True, timeout=_LIMIT_S + 60, check=False
        )
        assert not check or done.returncode == 0, f"{shlex.join(command)}: {done.stderr}"
        return done.stdout if done.returncode == 0 else ""

    def read(self, *words: str) -> Document:
        """Return an object as JSON; empty if it does not exist."""
        text = self.kubectl("get", "--output=json", *words, check=False)
        return json.loads(text) if text else {}

    def apply(self, *documents: Document) -> None:
        """Create or change objects."""
        self.kubectl("apply", "--filename=-", stdin=yaml.safe_dump_all(documents))

    def run(self, pod: Document) -> None:
        """Run a pod of the namespace to its end, and delete it."""
        name = pod["metadata"]["name"]
        self.apply(pod)
        phase = until(lambda: self._end(name), f"pod {name} has ended")
        output = self.kubectl("logs", name)
        self.kubectl("delete", "pod", name)
        assert phase == "Succeeded", output

    def _end(self, name: str) -> str | None:
        phase = self.read("pod", name).get("status", {}).get("phase")
        return phase if phase in ("Succeeded", "Failed") else None


def documents(recipe: str, *changes: dict[str, str]) -> list[Document]:
    """Return the objects of a recipe; a TrainJob is the JobSet that the trainer makes of it.

    Args:
        recipe: a key of ``RECIPES``.
        changes: parts of the manifest, each with the text in its place.
    """
    found = load(*(FOLDER / name for name in RECIPES[recipe]))
    if recipe == "trainjob":
        by_kind = {document["kind"]: document for document in found}
        jobset = jobset_of(by_kind["TrainJob"], by_kind["ClusterTrainingRuntime"])
        found = [jobset, by_kind["PodDisruptionBudget"]]
        text = yaml.safe_dump_all(found)
    else:
        text = "\n---\n".join((FOLDER / name).read_text() for name in RECIPES[recipe])
    assert "image: IMAGE" in text
    text = text.replace("image: IMAGE", f"image: {IMAGE}")
    for change in changes:
        for old, new in change.items():
            assert old in text, old
            text = text.replace(old, new)
    return [document for document in yaml.safe_load_all(text) if document]


class Job:
    """A job named ``digits`` in a namespace."""

    def __init__(self, cluster: Cluster, objects: list[Document]) -> None:
        self.cluster = cluster
        self.objects = objects
        self.away = set[str]()
        """Nodes that do not respond."""
        budget = next(one for one in objects if one["kind"] == "PodDisruptionBudget")
        labels = budget["spec"]["selector"]["matchLabels"]
        self.selector = ",".join(f"{key}={value}" for key, value in labels.items())

    def start(self) -> None:
        """Create it."""
        self.cluster.apply(*self.objects)

    def pods(self) -> dict[int, Document]:
        """Return the newest pod of each index that is not being deleted."""
        found = self.cluster.read("pods", f"--selector={self.selector}").get("items", [])
        found.sort(key=lambda pod: str(pod["metadata"]["creationTimestamp"]))
        return {
            int(next(pod["metadata"]["labels"][key] for key in _INDEXES
                     if key in pod["metadata"]["labels"])): pod
            for pod in found
            if "deletionTimestamp" not in pod["metadata"]
        }  # fmt: skip

    def name(self, index: int) -> str:
        """Return the name of a pod."""
        return str(self.pods()[index]["metadata"]["name"])

    def node(self, index: int) -> str:
        """Return the node of a pod."""
        return str(self.pods()[index]["spec"]["nodeName"])

    def status(self, index: int) -> Document:
        """Return the answer of ``ft-run status`` in a pod."""
        words = ("ft-run", "status", "--json", "localhost:29400")
        return dict(json.loads(self.cluster.kubectl("exec", self.name(index), "--", *words)))

    def failures(self, index: int, *, ignored: bool = False) -> int:
        """Return how often pods of an index have failed, by the newest pod."""
        kind = "ignored-failure" if ignored else "failure"
        notes = self.pods().get(index, {}).get("metadata", {}).get("annotations", {})
        return int(notes.get(f"batch.kubernetes.io/job-index-{kind}-count", 0))

    def ended(self, kind: str, *, by: frozenset[str] = _ENDS) -> dict[str, str]:
        """Wait until it has ended; return the reasons of its conditions by their types.

        Args:
            kind: the kind of the object.
            by: the conditions that end it.
        """

        def found() -> dict[str, str] | None:
            status = self.cluster.read(kind, "digits").get("status", {})
            conditions = status.get("conditions", [])
            ends = {one["type"]: one["reason"] for one in conditions if one["status"] == "True"}
            return ends if ends.keys() & by else None

        return until(found, f"the job has ended: {', '.join(by)}")

    def containers(self) -> list[Document]:
        """Return the status of each container; of a pod that is being created, nothing."""
        found = self.cluster.read("pods", f"--selector={self.selector}").get("items", [])
        return [one for pod in found for one in pod["status"].get("containerStatuses", ())]

    def termination_messages(self) -> list[str]:
        """Return the messages of all containers that have ended."""
        states = [one[key] for one in self.containers() for key in ("state", "lastState")]
        return [one["terminated"].get("message", "") for one in states if "terminated" in one]

    def leader(self) -> int:
        """Return the index of the pod that leads."""

        def found() -> tuple[int] | None:
            for index, pod in self.pods().items():
                if pod["spec"].get("nodeName") in self.away:
                    continue
                leader = self.status(index).get("leader")
                if leader:
                    return (int(re.findall(r"\d+", leader.split(".")[0])[-1]),)
            return None

        return until(found, "a pod leads")[0]

    def training(self, nodes: int, after: int = -1) -> Training:
        """Wait until a number of nodes trains.

        Args:
            nodes: how many.
            after: a round; a later one must train.
        """

        def found() -> Training | None:
            now = self._now()
            return now if now and now.nodes == nodes and now.round > after else None

        return until(found, f"{nodes} nodes train in a round after {after}")

    def _now(self) -> Training | None:
        """Return the newest round, if all its nodes have started and an epoch has ended."""
        pods = [pod for pod in self.pods().values() if pod["spec"].get("nodeName") not in self.away]
        logs = [self._log(pod["metadata"]["name"]) for pod in pods]
        rounds = [found for log in logs if (found := _last_round(log))]
        newest = max((found.round for found in rounds), default=-1)
        rounds = [found for found in rounds if found.round == newest]
        trained = [found for found in rounds if found.epoch >= 0]
        return trained[0] if trained and len(rounds) == trained[0].nodes else None

    def _log(self, pod: str) -> str:
        return self.cluster.kubectl("logs", pod, "--timestamps", check=False)


def _last_round(log: str) -> Training | None:
    """Return the last round of a pod, with its epochs if it has rank 0."""
    found = None
    for line in log.splitlines():
        at, _, text = line.partition(" ")
        if match := _STARTED.search(text):
            found = Training(int(match[1]), int(match[2]), -1, math.inf)
        elif found and (match := _EPOCH.search(text)):
            at_s = min(found.at_s, _seconds(at))
            found = replace(found, epoch=int(match[1]), at_s=at_s)
    return found


def _seconds(text: str) -> float:
    """Return the Unix time of RFC 3339, which may have nanoseconds."""
    text = re.sub(r"(\.\d{6})\d*", r"\1", text).replace("Z", "+00:00")
    return datetime.fromisoformat(text).timestamp()
