"""The manifests of ``examples/kubernetes`` as they stand, run by a test that plays Kubernetes.

It takes each pod's own command, variables, user, volumes, limits and probes from the manifest.
"""

import os
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
TOKEN = "5d0f" * 16

# In place of the training: it waits for a file in the volume, and fails on demand.
SCRIPT = """\
import os, pathlib, socket, sys, threading
options = dict(word.split("=", 1) for word in sys.argv[1:])
folder = pathlib.Path(options["--checkpoint-dir"])
folder.mkdir(exist_ok=True)
rank, world = os.environ["RANK"], os.environ["WORLD_SIZE"]
restarts, run = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["TORCHELASTIC_RUN_ID"]
print(f"rank {rank} of {world} run {run} restarts {restarts} on {socket.gethostname()}"
      f" uid {os.getuid()} store {os.environ['MASTER_ADDR']}\\n", end="", flush=True)
while not (folder / "go-on").exists():
    if (folder / f"fail-{rank}").exists():
        (folder / f"fail-{rank}").unlink()
        sys.exit(5)
    threading.Event().wait(0.05)
if "--save-weights" in options and rank == "0":
    pathlib.Path(options["--save-weights"]).touch()
"""


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


TORCH = ("--preload=torch", "--network-check")
"""What imports torch in every pod: left out where it is about something else."""


class Recipe:
    """A recipe that runs, with a script that waits in place of the training."""

    def __init__(self, ft: Launcher, kubelet: Kubelet, recipe: str) -> None:
        self.cluster = Cluster(ft, kubelet, documents(recipe, without=TORCH))
        self.kubelet = kubelet
        self.folder = kubelet.claims / "checkpoints" / "digits"

    def told(self, name: str) -> None:
        """Tell the script to do something."""
        self.folder.mkdir(parents=True, exist_ok=True)
        os.chown(self.folder, 1000, 1000)
        (self.folder / name).touch()
        os.chown(self.folder / name, 1000, 1000)

    def lines(self, name: str, pattern: str, count: int = 1) -> list[str]:
        """Wait until a pod's newest container has printed lines; return the first groups."""
        found = self.cluster.container(name).command.expect(pattern, count)
        return [match[1] for match in found]


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
    for name in pods:
        container(name).command.expect(r"rank \d of 6 run digits restarts 0 on \S+ uid 1000 ", 2)
    assert [kubelet.probe(pod, "startupProbe") for pod in pods.values()] == [True] * 3
    job.cluster.remove("digits-0", disrupted=True)
    job.cluster.until(lambda: bool(job.cluster.actions), "the pod has ended")
    assert job.cluster.actions == [("digits-0", 128 + signal.SIGTERM, "Ignore")]
    container("digits-0").command.expect("ft-run job=digits")
    kubelet.publish(pods["digits-0"])
    for name, count in (("digits-0", 2), ("digits-1", 4), ("digits-2", 4)):
        container(name).command.expect(r"rank \d of 6 run digits restarts \d .* store 10\.", count)
    job.told("go-on")
    assert job.cluster.until_over() == "Complete"
