"""``--nnodes=2:3``: the job trains with two nodes until the third is back.

All tests share one job that trains without end.
"""

import pytest
from ft_run.tests.kubernetes.cluster import Job, machine, until
from ft_run.tests.kubernetes.faults import (
    Event,
    Tell,
    is_ready,
    kill_worker,
    lost,
    needs_machine,
    victim,
)

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(1800)]

_RULE = "--on-failure=signal:SIGUSR2=replace-node"
CHANGES = [{"--max-restarts=100": f"--max-restarts=100\n            - {_RULE}"}]


def test_job_is_scaled(job: Job, record_property: Tell) -> None:
    event = Event(job, record_property, "scaled to 2")
    scale(job, 2)
    event.trains(2)
    event.then("scaled to 3")
    scale(job, 3)
    event.trains()
    assert event.cost() == 0


def scale(job: Job, pods: int) -> None:
    patch = f'--patch={{"spec": {{"parallelism": {pods}, "completions": {pods}}}}}'
    job.cluster.kubectl("patch", "job", "digits", patch)


@pytest.mark.parametrize("who", ["leader", "other"])
def test_pod_is_deleted(job: Job, who: str, record_property: Tell) -> None:
    index = victim(job, who)
    event = Event(job, record_property, f"pod deleted ({who})", index)
    job.cluster.kubectl("delete", "pod", "--wait=false", job.name(index))
    event.trains(2)
    event.trains()
    assert event.cost() == 0


@needs_machine
@pytest.mark.parametrize("who", ["leader", "other"])
def test_machine_is_lost(job: Job, who: str, record_property: Tell) -> None:
    node = job.node(victim(job, who))
    event = Event(job, record_property, f"machine lost ({who})")
    with lost(job, node):
        event.trains(2)
        assert event.cost() == 1
        event.then(f"machine started ({who})")
    event.trains()


@needs_machine
def test_node_is_cut_off(job: Job, record_property: Tell) -> None:
    index = victim(job, "other")
    node = job.node(index)
    event = Event(job, record_property, "node cut off")
    machine("cut", node)
    job.away.add(node)
    try:
        event.trains(2)
        assert event.cost() == 1
        event.then("node connected again")
    finally:
        machine("heal", node)
        until(lambda: is_ready(job, node), f"{node} is ready")
        job.away.clear()
    event.trains()


def test_node_is_excluded(job: Job, record_property: Tell) -> None:
    """The last one of this job: exit code 30, which is ignored; each new pod is refused."""
    index = victim(job, "other")
    failures, ignored = job.failures(index), job.failures(index, ignored=True)
    event = Event(job, record_property, "node excluded")
    kill_worker(job, index, "USR2")
    event.trains(2)
    until(lambda: job.failures(index, ignored=True) >= ignored + 2, "a new pod is refused")
    assert job.failures(index) == failures
