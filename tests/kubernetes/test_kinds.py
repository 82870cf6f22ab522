"""Each kind of job as its manifest stands, and how jobs end."""

import pytest
from ft_run.tests.kubernetes.cluster import SMALL, Cluster, Job, documents, until

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(1200)]

_JOBSETS = "jobsets.jobset.x-k8s.io"


def ended(job: Job, kind: str) -> dict[str, str] | None:
    """Return the reasons of the conditions by which a job has ended; None if it has not."""
    found = job.cluster.read(kind, "digits").get("status", {}).get("conditions", [])
    ends = {one["type"]: one["reason"] for one in found if one["status"] == "True"}
    return ends if ends.keys() & {"Complete", "Completed", "Failed"} else None


@pytest.mark.parametrize("recipe", ["indexed-job", "jobset", "trainjob"])
def test_manifest_trains_to_the_end(cluster: Cluster, recipe: str) -> None:
    if recipe != "indexed-job" and not cluster.read("crd", _JOBSETS):
        pytest.skip(f"the cluster has no {_JOBSETS}")
    job = Job(cluster, documents(recipe))
    job.start()
    kind = "job" if recipe == "indexed-job" else "jobset"
    ends = until(lambda: ended(job, kind), "the job has ended")
    assert "Failed" not in ends, job.termination_messages()


@pytest.mark.parametrize(
    ("change", "exit_code", "message"),
    [
        ({"--max-restarts=3": "--max-restarts=some"}, 2, "--max-restarts"),
        ({"--max-restarts=3": "--max-restarts=3\n            - --on-failure=exit:2=fail",
          "--checkpoint-dir=": "--unknown-option="}, 3, "exit:2=fail"),
    ],
    ids=["usage", "policy"],
)  # fmt: skip
def test_exit_code_fails_the_job_and_pods_say_why(
    cluster: Cluster, change: dict[str, str], exit_code: int, message: str
) -> None:
    job = Job(cluster, documents("indexed-job", SMALL, change))
    job.start()
    ends = until(lambda: ended(job, "job"), "the job has ended")
    assert ends["Failed"] == "PodFailurePolicy"
    found = job.termination_messages()
    assert any(message in text and f"(exit code {exit_code})" in text for text in found), found
