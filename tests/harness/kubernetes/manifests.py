"""What controllers make of manifests: the pods of a Job, JobSet, TrainJob or LeaderWorkerSet.

The names, labels and variables are those that the controllers give: Kubernetes 1.37, JobSet
08dfbdf, Kubeflow Trainer 8c0f505 (``pkg/runtime/framework/plugins/torch``), LeaderWorkerSet
060ab4d (``pkg/utils/pod``).
"""

import copy
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

Document = dict[str, Any]

_JOBSET = "jobset.sigs.k8s.io"
_INDEX = "batch.kubernetes.io/job-completion-index"
_TRAINER_PORT = 29500


@dataclass(frozen=True)
class Pod:
    """A pod that a controller makes, and makes again when it is gone."""

    name: str
    """Also its host name."""
    subdomain: str
    spec: Document
    labels: dict[str, str]
    annotations: dict[str, str] = field(default_factory=dict)
    injected: dict[str, str] = field(default_factory=dict)
    """Variables that the controller adds to those of the manifest."""

    @property
    def container(self) -> Document:
        """Its only container."""
        (container,) = self.spec["containers"]
        assert isinstance(container, dict)
        return container

    def environment(self, address: str) -> dict[str, str]:
        """Return the container's variables; ``fieldRef`` and ``$(NAME)`` are filled in."""
        found = dict(self.injected)
        for entry in self.container.get("env", ()):
            path = entry.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
            value = entry.get("value", "") if path is None else self._field(path, address)
            found[entry["name"]] = _expanded(value, found)
        return found

    def command(self, address: str) -> list[str]:
        """Return the container's command and its arguments."""
        words = [*self.container["command"], *self.container.get("args", ())]
        variables = self.environment(address)
        return [_expanded(word, variables) for word in words]

    def _field(self, path: str, address: str) -> str:
        kind, _, key = path.removeprefix("metadata.").partition("['")
        if kind in ("labels", "annotations"):
            found = self.labels if kind == "labels" else self.annotations
            return found.get(key.removesuffix("']"), "")
        return {"metadata.name": self.name, "status.podIP": address}[path]


@dataclass(frozen=True)
class Job:
    """A Job, or what stands for one: pods, and what is done when one of them has ended."""

    pods: list[Pod]
    spec: Document

    def answer(self, status: int, *, disrupted: bool) -> str:
        """Return the action of the first rule of ``podFailurePolicy`` that matches.

        Args:
            status: of the container, as a shell has it.
            disrupted: the pod has the condition ``DisruptionTarget``.
        """
        for rule in self.spec.get("podFailurePolicy", {}).get("rules", ()):
            conditions = {entry["type"] for entry in rule.get("onPodConditions", ())}
            exits = rule.get("onExitCodes", {"values": (), "operator": "In"})
            assert exits["operator"] == "In"
            of_this = exits.get("containerName", self.pods[0].container["name"])
            assert of_this == self.pods[0].container["name"], "a container that is not there"
            if (disrupted and "DisruptionTarget" in conditions) or status in exits["values"]:
                return str(rule["action"])
        return "Count"


def load(*paths: Path) -> list[Document]:
    """Return the documents of some files."""
    texts = (path.read_text() for path in paths)
    return [document for text in texts for document in yaml.safe_load_all(text)]


def job_of(documents: Iterable[Document], attempt: int = 0) -> Job:
    """Return what the controllers make of manifests.

    Args:
        documents: one that has pods, with the service or runtime that it names.
        attempt: how often a JobSet was begun anew.
    """
    by_kind = {document["kind"]: document for document in documents}
    if "TrainJob" in by_kind:
        runtime = by_kind["ClusterTrainingRuntime"]
        return _of_jobset(jobset_of(by_kind["TrainJob"], runtime), attempt)
    if "JobSet" in by_kind:
        return _of_jobset(by_kind["JobSet"], attempt)
    if "LeaderWorkerSet" in by_kind:
        return _of_leader_worker_set(by_kind["LeaderWorkerSet"])
    job, service = by_kind["Job"], by_kind["Service"]
    name = job["metadata"]["name"]
    labels = {"batch.kubernetes.io/job-name": name}
    template = job["spec"]["template"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"]
    assert service["metadata"]["name"] == template["spec"]["subdomain"]
    found = Job([*_indexed(name, job["spec"], service["metadata"]["name"], labels)], job["spec"])
    selected = service["spec"]["selector"].items()
    assert all(selected <= pod.labels.items() for pod in found.pods)
    return found


def failure_policy(documents: Iterable[Document]) -> Document | None:
    """Return the ``failurePolicy`` of the JobSet; None where there is no JobSet."""
    for document in documents:
        if document["kind"] in ("JobSet", "ClusterTrainingRuntime"):
            spec = document["spec"]
            spec = spec if document["kind"] == "JobSet" else spec["template"]["spec"]
            return dict(spec["failurePolicy"])
    return None


def _indexed(name: str, spec: Document, subdomain: str, labels: dict[str, str]) -> Iterator[Pod]:
    assert spec.get("completionMode", "Indexed") == "Indexed"
    assert spec["completions"] == spec["parallelism"]
    template = spec["template"]
    own = template.get("metadata", {}).get("labels", {})
    for index in range(spec["completions"]):
        yield Pod(
            f"{name}-{index}",
            subdomain,
            template["spec"],
            own | labels | {_INDEX: str(index)},
            {_INDEX: str(index)},
            {"JOB_COMPLETION_INDEX": str(index)},
        )


def _of_jobset(jobset: Document, attempt: int) -> Job:
    name, spec = jobset["metadata"]["name"], jobset["spec"]
    (replicated,) = spec["replicatedJobs"]
    assert replicated.get("replicas", 1) == 1
    labels = {
        f"{_JOBSET}/jobset-name": name,
        f"{_JOBSET}/replicatedjob-name": replicated["name"],
        f"{_JOBSET}/replicatedjob-replicas": "1",
        f"{_JOBSET}/restart-attempt": str(attempt),
        f"{_JOBSET}/job-index": "0",
    }
    job = replicated["template"]["spec"]
    subdomain = spec.get("network", {}).get("subdomain", name)
    return Job([*_indexed(f"{name}-{replicated['name']}-0", job, subdomain, labels)], job)


def jobset_of(train_job: Document, runtime: Document) -> Document:
    """Return the JobSet of a TrainJob; the plug-in for torch adds ``PET_*``."""
    spec, name = train_job["spec"], train_job["metadata"]["name"]
    assert spec["runtimeRef"]["name"] == runtime["metadata"]["name"]
    policy, trainer = runtime["spec"]["mlPolicy"], spec["trainer"]
    assert policy["torch"] is not None
    jobset = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name},
        "spec": copy.deepcopy(runtime["spec"]["template"]["spec"]),
    }
    (replicated,) = jobset["spec"]["replicatedJobs"]
    labels = replicated["template"]["metadata"]["labels"]
    assert labels["trainer.kubeflow.org/trainjob-ancestor-step"] == "trainer"
    job = replicated["template"]["spec"]
    job["completions"] = job["parallelism"] = trainer.get("numNodes", policy["numNodes"])
    (container,) = job["template"]["spec"]["containers"]
    assert container["name"] == "node"
    container |= {key: trainer[key] for key in ("image", "command", "args") if key in trainer}
    container["resources"] = trainer["resourcesPerNode"]
    index = {"fieldRef": {"fieldPath": f"metadata.annotations['{_INDEX}']"}}
    container["env"] = [
        *container.get("env", ()),
        *trainer.get("env", ()),
        {"name": "PET_NNODES", "value": str(job["completions"])},
        {"name": "PET_NPROC_PER_NODE", "value": str(container["resources"]["requests"]["cpu"])},
        {"name": "PET_NODE_RANK", "valueFrom": index},
        {"name": "PET_MASTER_ADDR", "value": f"{name}-node-0-0.{name}"},
        {"name": "PET_MASTER_PORT", "value": str(_TRAINER_PORT)},
    ]
    return jobset


def _of_leader_worker_set(document: Document) -> Job:
    """Return the pods of the first group: its leader is ``NAME-0``, a worker ``NAME-0-INDEX``."""
    name, spec = document["metadata"]["name"], document["spec"]
    template = spec["leaderWorkerTemplate"]
    assert spec["replicas"] == 1
    assert "leaderTemplate" not in template
    size = template["size"]
    of_pods = template["workerTemplate"]
    assert of_pods["spec"].get("restartPolicy", "Always") == "Always"
    return Job(
        [
            Pod(
                f"{name}-0" if index == 0 else f"{name}-0-{index}",
                name,
                of_pods["spec"] | {"restartPolicy": "Always"},
                of_pods["metadata"]["labels"] | {"leaderworkerset.sigs.k8s.io/name": name},
                injected={
                    "LWS_LEADER_ADDRESS": f"{name}-0.{name}.default",
                    "LWS_GROUP_SIZE": str(size),
                    "LWS_WORKER_INDEX": str(index),
                },
            )
            for index in range(size)
        ],
        {},
    )


def _expanded(text: str, variables: dict[str, str]) -> str:
    """Return a text with each ``$(NAME)`` of a known variable filled in."""
    for name, value in variables.items():
        text = text.replace(f"$({name})", value)
    return text
