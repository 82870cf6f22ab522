"""Each kind of job as its manifest stands, and how jobs end."""

import pytest
from ft_run.tests.harness.kubernetes.manifests import Document
from ft_run.tests.kubernetes.cluster import RECIPES, SMALL, Cluster, Job, documents, until

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(1800)]

RESOURCES = {
    "jobset": "jobsets.jobset.x-k8s.io",
    "trainjob": "jobsets.jobset.x-k8s.io",
    "leaderworkerset": "leaderworkersets.leaderworkerset.x-k8s.io",
}


def has_kind(cluster: Cluster, recipe: str) -> bool:
    return recipe not in RESOURCES or bool(cluster.read("crd", RESOURCES[recipe]))


@pytest.mark.parametrize("recipe", RECIPES)
def test_manifest_trains_to_the_end(cluster: Cluster, recipe: str) -> None:
    if not has_kind(cluster, recipe):
        pytest.skip(f"the cluster has no {RESOURCES[recipe]}")
    job = Job(cluster, documents(recipe))
    job.start()
    if recipe == "leaderworkerset":  # it never ends: after training, the next container waits
        until(lambda: are_waiting(job.containers()), "all containers wait after training")
        codes = [one["lastState"]["terminated"]["exitCode"] for one in job.containers()]
        assert codes == [0, 0, 0]
    else:
        ends = job.ended("job" if recipe == "indexed-job" else "jobset")
        assert "Failed" not in ends, job.termination_messages()
    assert not any(job.termination_messages())


def are_waiting(found: list[Document]) -> bool:
    return len(found) == 3 and all(one["ready"] and one["restartCount"] == 1 for one in found)


@pytest.mark.parametrize(
    ("change", "exit_code", "message"),
    [
        ({"--max-restarts=3": "--max-restarts=some"}, 2, "--max-restarts"),
        ({"--max-restarts=3": "--max-restarts=0", "            - --restart-window=24h\n": "",
          "/checkpoints/digits": "/proc/digits"}, 1, "/proc/digits"),
        ({"--max-restarts=3": "--max-restarts=3\n            - --on-failure=exit:2=fail",
          "--checkpoint-dir=": "--unknown-option="}, 3, "exit:2=fail"),
    ],
    ids=["usage", "workers", "policy"],
)  # fmt: skip
def test_exit_code_fails_the_job_and_pods_say_why(
    cluster: Cluster, change: dict[str, str], exit_code: int, message: str
) -> None:
    job = Job(cluster, documents("indexed-job", SMALL, change))
    job.start()
    assert job.ended("job")["Failed"] == "PodFailurePolicy"
    found = job.termination_messages()
    assert any(message in text and f"(exit code {exit_code})" in text for text in found), found


def test_exit_code_40_is_retried_and_counted(cluster: Cluster) -> None:
    """One of three pods, and too little time."""
    change = {"connect_timeout=900,join_timeout=900": "connect_timeout=5,join_timeout=5"}
    found = documents("indexed-job", SMALL, change)
    del found[1]["spec"]["successPolicy"]  # of two pods
    found[1]["spec"] |= {"completions": 1, "parallelism": 1}
    job = Job(cluster, found)
    job.start()

    until(lambda: job.failures(0) == 1 and job.pods(), "the pod is created again")
    assert any("(exit code 40)" in text for text in job.termination_messages())
