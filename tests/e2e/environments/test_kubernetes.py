"""The Indexed Job of ``examples/kubernetes`` as it stands, in pods that a test plays.

``tests/kubernetes`` runs all kinds on a real cluster.
"""

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from ft_run.tests.e2e.conftest import EXAMPLES, Launcher
from ft_run.tests.harness.hosts import Network
from ft_run.tests.harness.kubernetes.kubelet import Kubelet
from ft_run.tests.harness.kubernetes.manifests import job_of, load

pytestmark = pytest.mark.root
TOKEN = "9c41d07e5b2f863ae17d5a0b94c2f368"
TORCH = ("--preload=torch,torch._dynamo", "--network-check", "--check-timeout=300")
"""Options that import torch in every pod: left out, since the test is about something else."""

# In place of the training: it waits for a file in the volume.
SCRIPT = """\
import os, pathlib, socket, sys, threading
options = dict(word.split("=", 1) for word in sys.argv[1:])
folder = pathlib.Path(options["--checkpoint-dir"])
rank, world = os.environ["RANK"], os.environ["WORLD_SIZE"]
store = os.environ["MASTER_ADDR"] + ":" + os.environ["MASTER_PORT"]
print(f"rank {rank} of {world} on {socket.gethostname()} uid {os.getuid()} store {store}\\n",
      end="", flush=True)
while not (folder / "go-on").exists():
    threading.Event().wait(0.05)
"""
STARTED = re.compile(r"^rank \d of 6 on \S+ uid 1000 store (10\.\S+)$", re.MULTILINE)


@pytest.fixture
def kubelet(ft: Launcher, network: Network, tmp_path: Path) -> Iterator[Kubelet]:
    (tmp_path / "image").mkdir()
    (tmp_path / "image/train_digits.py").write_text(SCRIPT)
    kubelet = Kubelet(ft, network, tmp_path / "image", TOKEN)
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
    job = job_of(load(EXAMPLES / "kubernetes/indexed-job.yaml"))
    pods = {pod.name: pod for pod in job.pods}
    for pod in job.pods:
        words = pod.container["args"]
        words[:] = [word for word in words if word not in TORCH]
    for pod in job.pods:
        kubelet.start(pod)
    for pod in job.pods:
        kubelet.containers[pod.name].command.expect("ft-run job=digits")
        kubelet.publish(pod)

    def store() -> str:
        """Return the address of the store of the last round; empty if a pod is not in it."""
        outputs = [kubelet.containers[name].command.stdout for name in pods]
        rounds = [STARTED.findall(output)[-2:] for output in outputs]
        found = {address for of_pod in rounds for address in of_pod}
        return found.pop() if len(found) == 1 and {*map(len, rounds)} == {2} else ""

    ft.wait_until(lambda: bool(store()), "all pods run one round")
    first = store()
    assert [kubelet.probe(pod, "startupProbe") for pod in job.pods] == [True] * 3
    drained = kubelet.containers["digits-0"]
    os.kill(drained.pid, signal.SIGTERM)
    status = drained.command.wait()
    assert status == 128 + signal.SIGTERM
    assert job.answer(status, disrupted=True) == "Ignore"
    kubelet.start(pods["digits-0"]).command.expect("ft-run job=digits")
    kubelet.publish(pods["digits-0"])
    ft.wait_until(lambda: store() not in ("", first), "all pods run a new round")
    folder = kubelet.claims / "checkpoints/digits"
    folder.mkdir()
    os.chown(folder, 1000, 1000)
    (folder / "go-on").touch()
    assert [container.command.wait() for container in kubelet.containers.values()] == [0, 0, 0]
