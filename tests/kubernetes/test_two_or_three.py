"""``--nnodes=2:3``: the job trains with two nodes until the third is back.

All tests share one job that trains without end.
"""

from collections.abc import Iterator

import pytest
from ft_run.tests.kubernetes.cluster import Job, machine, until
from ft_run.tests.kubernetes.faults import (
    Event,
    Tell,
    is_ready,
    lost,
    needs_machine,
    running,
    victim,
)

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def job() -> Iterator[Job]:
    with running() as job:
        yield job


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
