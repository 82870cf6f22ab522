"""``--nnodes=3`` and a fourth pod, which is a spare."""

import pytest
from ft_run.tests.kubernetes.cluster import ENDLESS, FIXED, SMALL, Job, documents, until
from ft_run.tests.kubernetes.faults import Event, Tell, finish, lost, needs_machine
from ft_run.tests.kubernetes.namespaces import namespace

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(1800)]


@needs_machine
def test_spare_replaces_a_lost_machine_and_the_job_is_complete(record_property: Tell) -> None:
    """Four pods, and ``--nnodes=3``. Only the first three listen: no probes."""
    with namespace() as cluster:
        objects = documents("indexed-job", SMALL, ENDLESS, FIXED)
        objects[1]["spec"] |= {"completions": 4, "parallelism": 4}
        (container,) = objects[1]["spec"]["template"]["spec"]["containers"]
        del container["startupProbe"], container["livenessProbe"]
        job = Job(cluster, objects)
        job.start()
        job.training(3)
        until(lambda: len(job.status(job.leader())["nodes"]) == 4, "the spare is connected")
        alone = [index for index in range(3) if is_alone(job, index)]
        event = Event(job, record_property, "machine lost, with a spare")
        with lost(job, job.node(alone[0])):
            event.trains()
            assert event.cost() == 1
            finish(job, next(index for index in range(3) if index != alone[0]))
            ends = job.ended("job", by=frozenset({"SuccessCriteriaMet", "Failed"}))
            assert "Failed" not in ends
        # While nobody confirms that the machine is lost, Kubernetes waits for its pod.
        assert "Failed" not in job.ended("job")


def is_alone(job: Job, index: int) -> bool:
    """Return whether no other pod runs on the node of a pod."""
    return [job.node(other) for other in job.pods()].count(job.node(index)) == 1
