"""The manifests of ``examples/kubernetes`` as they stand, run by a test that plays Kubernetes.

It takes each pod's own command, variables, user, volumes, limits and probes from the manifest.
"""

import os
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from ft_run.tests.e2e.conftest import EXAMPLES, Launcher
from ft_run.tests.harness.hosts import Network
from ft_run.tests.harness.kubernetes.cluster import Cluster
from ft_run.tests.harness.kubernetes.kubelet import Kubelet
from ft_run.tests.harness.kubernetes.manifests import Document, load

pytestmark = pytest.mark.root
FOLDER = EXAMPLES / "kubernetes"
RECIPES = {
    "indexed-job": ["indexed-job.yaml"],
    "jobset": ["jobset.yaml"],
    "trainjob": ["trainjob.yaml", "clustertrainingruntime.yaml"],
    "leaderworkerset": ["leaderworkerset.yaml"],
}
TOKEN = "9c41d07e5b2f863ae17d5a0b94c2f368"

# In place of the training: it waits for a file in the volume, and fails on demand.
SCRIPT = """\
import os, pathlib, socket, sys, threading
options = dict(word.split("=", 1) for word in sys.argv[1:])
folder = pathlib.Path(options["--checkpoint-dir"])
folder.mkdir(exist_ok=True)
rank, world = os.environ["RANK"], os.environ["WORLD_SIZE"]
restarts, run = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["TORCHELASTIC_RUN_ID"]
store = os.environ["MASTER_ADDR"] + ":" + os.environ["MASTER_PORT"]
print(f"rank {rank} of {world} run {run} restarts {restarts} on {socket.gethostname()}"
      f" uid {os.getuid()} store {store}\\n", end="", flush=True)
while not (folder / "go-on").exists():
    if (folder / f"fail-{rank}").exists():
        (folder / f"fail-{rank}").unlink()
        sys.exit(5)
    threading.Event().wait(0.05)
if "--save-weights" in options and rank == "0":
    pathlib.Path(options["--save-weights"]).touch()
"""


STARTED = re.compile(
    r"^rank \d of 6 run \S+ restarts \d on \S+ uid 1000 store (10\.\S+)$", re.MULTILINE
)


def documents(recipe: str, *, without: tuple[str, ...] = ()) -> list[Document]:
    """Return a recipe, without some of its options."""
    found = load(*(FOLDER / name for name in RECIPES[recipe]))
    for document in found:
        _leave_out(document, without)
    return found


def _leave_out(value: object, words: tuple[str, ...]) -> None:
    if isinstance(value, dict):
        for part in value.values():
            _leave_out(part, words)
    elif isinstance(value, list):
        value[:] = [part for part in value if not isinstance(part, str) or part not in words]
        for part in value:
            _leave_out(part, words)


TORCH = ("--preload=torch,torch._dynamo", "--network-check", "--check-timeout=300")
"""What imports torch in every pod: left out where it is about something else."""


class Recipe:
    """A recipe that runs, with a script that waits in place of the training."""

    def __init__(self, ft: Launcher, kubelet: Kubelet, recipe: str) -> None:
        self.cluster = Cluster(ft, kubelet, documents(recipe, without=TORCH))
        self._before: set[str] = set()
        self.folder = kubelet.claims / "checkpoints" / "digits"

    def told(self, name: str) -> None:
        """Tell the script to do something."""
        self.folder.mkdir(parents=True, exist_ok=True)
        os.chown(self.folder, 1000, 1000)
        (self.folder / name).touch()
        os.chown(self.folder / name, 1000, 1000)

    def completes(self) -> None:
        """Let the script end, and play the controllers until the job is over."""
        self.told("go-on")
        assert self.cluster.until_over() == "Complete"

    def run(self, *, after: int = 0) -> None:
        """Play the controllers until all pods run the workers of one round, a newer one.

        Args:
            after: at least so many pods must have ended before.
        """
        self.cluster.until(lambda: self._is_new_round(after), "all pods run a new round")

    def _is_new_round(self, after: int) -> bool:
        texts = [self.cluster.container(name).command.stdout for name in self.cluster.pods]
        rounds = [[match[1] for match in re.finditer(STARTED, text)][-2:] for text in texts]
        stores = {store for of_pod in rounds for store in of_pod}
        if len(self.cluster.actions) < after or {len(of_pod) for of_pod in rounds} != {2}:
            return False
        if len(stores) != 1 or stores == self._before:
            return False
        self._before = stores
        return True

    def waits(self, name: str) -> None:
        """Wait until the shell of a pod waits for its ``sleep``: it handles SIGTERM then."""
        container = self.cluster.container(name)
        self.cluster.until(lambda: "sleep" in container.children, "the pod waits")

    def ended(self) -> list[tuple[str, int, str]]:
        """Play the controllers until a pod has ended and is made again; return what was done."""
        known = len(self.cluster.actions)
        self.cluster.until(lambda: len(self.cluster.actions) > known, "a pod has ended")
        return self.cluster.actions[known:]


@pytest.fixture
def image(tmp_path: Path) -> Path:
    folder = tmp_path / "image"
    folder.mkdir()
    (folder / "train_digits.py").write_text(SCRIPT)
    return folder


@pytest.fixture
def kubelet(ft: Launcher, network: Network, image: Path) -> Iterator[Kubelet]:
    kubelet = Kubelet(ft, network, image, TOKEN)
    yield kubelet
    for host in network.hosts.values():
        host.kill()
    ft.wait_until(lambda: not ft.processes(), "nothing runs in any pod")
    kubelet.close()


@pytest.mark.long
def test_an_indexed_job_outlives_its_first_pod(ft: Launcher, kubelet: Kubelet) -> None:
    """It is drained: the new pod has the same name, another address and no files.

    The DNS is later than the containers: it does not know the pods, and then not the new one.
    """
    job = Recipe(ft, kubelet, "indexed-job")
    pods, container = job.cluster.pods, job.cluster.container
    kubelet.dns_lags = True
    job.cluster.start()
    for name, pod in pods.items():
        container(name).command.expect("ft-run job=digits")
        kubelet.publish(pod)
    job.run()
    assert [kubelet.probe(pod, "startupProbe") for pod in pods.values()] == [True] * 3
    job.cluster.remove("digits-0", disrupted=True)
    assert job.ended() == [("digits-0", 128 + signal.SIGTERM, "Ignore")]
    container("digits-0").command.expect("ft-run job=digits")
    kubelet.publish(pods["digits-0"])
    job.run(after=1)
    job.completes()


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["indexed-job", "jobset", "trainjob"])
def test_a_rank_and_a_pod_are_killed_and_the_job_succeeds(
    ft: Launcher, kubelet: Kubelet, recipe: str
) -> None:
    job = Recipe(ft, kubelet, recipe)
    job.cluster.start()
    job.run()
    job.told("fail-3")
    job.run()
    (first, second, last) = job.cluster.pods
    job.cluster.container(second).send(signal.SIGKILL)
    assert job.ended() == [(second, 128 + signal.SIGKILL, "Count")]
    job.run(after=1)
    # Two at once, and with them the majority of the hosts that may lead.
    for name in (first, last):
        job.cluster.container(name).send(signal.SIGKILL)
    job.run(after=3)
    job.completes()
    assert job.cluster.attempts == 0


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["indexed-job", "jobset", "trainjob"])
def test_what_would_fail_again_ends_the_job(ft: Launcher, kubelet: Kubelet, recipe: str) -> None:
    """A JobSet is not begun anew either."""
    job = Recipe(ft, kubelet, recipe)
    job.cluster.start()
    for _ in range(4):
        job.run()
        job.told("fail-0")
    assert job.cluster.until_over() == "PodFailurePolicy"
    # The budget is spent, and none of the restarts has brought a step.
    assert {status for _, status, _ in job.cluster.actions} <= {1, 3}
    assert job.cluster.attempts == 0


@pytest.mark.slow
def test_a_jobset_is_begun_anew_under_another_id(ft: Launcher, kubelet: Kubelet) -> None:
    """All pods are lost, again and again: with all of them the job's own count of restarts."""
    job = Recipe(ft, kubelet, "jobset")
    job.cluster.start()
    for lost in range(0, 21, 3):
        job.run(after=lost)
        for name in job.cluster.pods:
            job.cluster.container(name).send(signal.SIGKILL)
    job.cluster.until(lambda: job.cluster.attempts == 1, "the JobSet is begun anew")
    assert job.cluster.actions[-1][1:] == (128 + signal.SIGKILL, "MaxFailedIndexesExceeded")
    job.run()
    first = next(iter(job.cluster.pods))
    job.cluster.container(first).command.expect(r"^rank 0 of 6 run digits-r1 restarts 0 ")
    job.completes()


@pytest.mark.slow
def test_a_frozen_pod_fails_its_probe_and_is_replaced(ft: Launcher, kubelet: Kubelet) -> None:
    """It does not end by SIGTERM, and the kubelet kills it when its grace period is over."""
    job = Recipe(ft, kubelet, "indexed-job")
    job.cluster.start()
    job.run()
    pods = job.cluster.pods
    job.cluster.container("digits-2").send(signal.SIGSTOP)
    assert [kubelet.probe(pod, "livenessProbe") for pod in pods.values()] == [True, True, False]
    job.cluster.remove("digits-2")
    assert job.ended() == [("digits-2", 128 + signal.SIGKILL, "Count")]
    job.run(after=1)
    job.completes()


@pytest.mark.slow
def test_a_leader_worker_set_trains_and_waits(ft: Launcher, kubelet: Kubelet) -> None:
    """Its pods are started again when they have ended, also after success."""
    job = Recipe(ft, kubelet, "leaderworkerset")
    job.cluster.start()
    job.run()
    job.cluster.container("digits-0").send(signal.SIGKILL)
    assert job.ended() == [("digits-0", 128 + signal.SIGKILL, "Restart")]
    job.run(after=1)
    job.told("go-on")
    waiting = job.cluster.container
    job.cluster.until(lambda: len(job.cluster.actions) == 4, "all have trained")
    assert [status for _, status, _ in job.cluster.actions[1:]] == [0, 0, 0]
    assert job.folder.with_suffix(".pt").exists()
    for name in job.cluster.pods:
        job.waits(name)
        waiting(name).send(signal.SIGTERM)
        assert waiting(name).command.wait() == 0


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_trains(ft: Launcher, kubelet: Kubelet, image: Path, recipe: str) -> None:
    """As it stands: the real script, with torch preloaded and the nodes checked."""
    shutil.copy(EXAMPLES / "train_digits.py", image)
    cluster = Cluster(ft, kubelet, documents(recipe))
    cluster.start()
    (first, *_) = cluster.pods
    (accuracy,) = cluster.container(first).command.expect(r"^test accuracy: (\S+)")
    assert float(accuracy[1]) > 0.9
    if recipe == "leaderworkerset":
        cluster.until(lambda: len(cluster.actions) == 3, "all have trained")
    else:
        assert cluster.until_over() == "Complete"
    assert {status for _, status, _ in cluster.actions} == {0}
