"""``--nnodes=3``: the job waits for each pod. All tests share one job that trains without end."""

import time

import pytest
from ft_run.tests.harness.kubernetes.manifests import Document
from ft_run.tests.kubernetes.cluster import FIXED, Job, machine, until
from ft_run.tests.kubernetes.faults import (
    Event,
    Tell,
    is_running,
    kill_first_process,
    kill_worker,
    names,
    needs_machine,
    victim,
)
from ft_run.tests.kubernetes.namespaces import as_root

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(1800)]

CHANGES = [FIXED]


def test_status_in_each_pod(job: Job, record_property: Tell) -> None:
    began = time.time()
    now = job.training(3)
    record_property("kubernetes", f"start: 3 nodes train after {now.at_s - began:.1f} s")
    for index in range(3):
        found = job.status(index)
        assert (found["phase"], len(found["nodes"])) == ("running", 3), found


def test_worker_is_killed(job: Job, record_property: Tell) -> None:
    event = Event(job, record_property, "worker killed")
    names = {index: job.name(index) for index in range(3)}
    kill_worker(job, 1)
    event.trains()
    assert event.cost() == 1
    assert names == {index: job.name(index) for index in range(3)}


@pytest.mark.parametrize("who", ["leader", "other"])
def test_first_process_is_killed(job: Job, who: str, record_property: Tell) -> None:
    index = victim(job, who)
    failures = job.failures(index)
    event = Event(job, record_property, f"process 1 killed ({who})", index)
    kill_first_process(job, index)
    event.trains()
    assert event.cost() == 1
    assert job.failures(index) == failures + 1


@pytest.mark.parametrize("who", ["leader", "other"])
def test_pod_is_deleted(job: Job, who: str, record_property: Tell) -> None:
    index = victim(job, who)
    event = Event(job, record_property, f"pod deleted ({who})", index)
    job.cluster.kubectl("delete", "pod", "--wait=false", job.name(index))
    event.trains()
    assert event.cost() == 0


@pytest.mark.parametrize("who", ["leader", "other"])
def test_node_is_drained(job: Job, who: str, record_property: Tell) -> None:
    index = victim(job, who)
    node, failures = job.node(index), job.failures(index)
    event = Event(job, record_property, f"node drained ({who})", index)
    uid = job.cluster.read("job", "digits")["metadata"]["uid"]
    only = f"--pod-selector=batch.kubernetes.io/controller-uid={uid}"
    words = ("--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=10m")
    try:
        job.cluster.kubectl("drain", node, *words, only)
        event.trains()
    finally:
        job.cluster.kubectl("uncordon", node)
    assert event.cost() == 0
    assert job.failures(index) == failures


@pytest.mark.parametrize("who", ["leader", "other"])
def test_pod_is_preempted(job: Job, who: str, record_property: Tell) -> None:
    index = victim(job, who)
    failures = job.failures(index)
    priority, pod = preemptor(job, job.node(index))
    name = job.name(index)
    event = Event(job, record_property, f"pod preempted ({who})", index)
    try:
        job.cluster.apply(priority, pod)
        until(lambda: name not in names(job), "the pod is preempted")
        event.trains()
    finally:
        job.cluster.kubectl("delete", "pod/urgent", check=False)
        job.cluster.kubectl("delete", "priorityclass", job.cluster.namespace, check=False)
    assert event.cost() == 0
    assert job.failures(index) == failures


def test_job_is_suspended(job: Job, record_property: Tell) -> None:
    epoch = job.training(3).epoch
    job.cluster.kubectl("patch", "job", "digits", '--patch={"spec": {"suspend": true}}')
    until(lambda: not names(job), "all pods have ended")
    began = time.time()
    job.cluster.kubectl("patch", "job", "digits", '--patch={"spec": {"suspend": false}}')
    now = job.training(3)
    record_property("kubernetes", f"resumed: 3 nodes train after {now.at_s - began:.1f} s")
    assert now.epoch > epoch


@needs_machine
def test_dns_is_stopped(job: Job, record_property: Tell) -> None:
    index = job.leader()
    event = Event(job, record_property, "worker killed without DNS")
    machine("dns", "stop")
    try:
        kill_worker(job, index)
        event.trains()
        job.cluster.kubectl("delete", "pod", "--wait=false", job.name(index))
        began = time.time()
        until(lambda: other_leads(job, index), "another pod leads")
        seconds = time.time() - began
        record_property("kubernetes", f"leader deleted without DNS: next after {seconds:.1f} s")
    finally:
        machine("dns", "start")
        event.then("DNS started after the leader's pod was deleted")
    event.trains()
    assert event.cost() == 1


def preemptor(job: Job, node: str) -> list[Document]:
    """Return a pod of a higher priority that fits only without the job's pods on a node."""
    name = job.cluster.namespace
    capacity = milli(job.cluster.read("node", node)["status"]["allocatable"]["cpu"])
    pods = job.cluster.read("pods", "--all-namespaces", f"--field-selector=spec.nodeName={node}")
    used = sum(
        milli(container.get("resources", {}).get("requests", {}).get("cpu", "0"))
        for pod in pods["items"]
        for container in pod["spec"]["containers"]
        if is_running(pod) and pod["metadata"]["namespace"] != name
    )
    priority = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": 1000}
    pod = as_root(
        "urgent", "sleep infinity", priorityClassName=name,
        nodeSelector={"kubernetes.io/hostname": node},
    )  # fmt: skip
    request = {"cpu": f"{capacity - used}m"}
    pod["spec"]["containers"][0]["resources"] = {"requests": request}
    return [{**priority, "metadata": {"name": name}}, pod]


def milli(cpu: str) -> int:
    return int(cpu[:-1]) if cpu.endswith("m") else int(cpu) * 1000


def other_leads(job: Job, index: int) -> bool:
    asked = (index + 1) % 3
    leader = job.status(asked).get("leader", "")
    return bool(leader) and not leader.startswith(f"digits-{index}.")
