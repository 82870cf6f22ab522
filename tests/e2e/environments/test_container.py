"""The image and the compose file of ``examples/container``, in real containers.

Once with this machine's files as the image, and in the slow tests with one that is built, where
podman-compose reads the file.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ft_run.tests.e2e.conftest import EXAMPLES, FT_RUN, Launcher
from ft_run.tests.harness.environments import podman as containers
from ft_run.tests.harness.environments.podman import Podman, Stage, compose_options, host_base

pytestmark = pytest.mark.root
FOLDER = EXAMPLES / "container"
ROOT = EXAMPLES.parent
STAGE = Stage.read(FOLDER / "Dockerfile")
TOKEN = "9c41d07e5b2f863ae17d5a0b94c2f368"
TORCH = ("--preload=torch,torch._dynamo", "--network-check", "--check-timeout=300")

# In place of the training: it waits for a file in the volume.
SCRIPT = """\
import os, pathlib, socket, sys, threading
folder = pathlib.Path(sys.argv[1].partition("=")[2])
first = open("/proc/1/cmdline").read().split("\\0")[1]
print(f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']} store {os.environ['MASTER_PORT']}"
      f" uid {os.getuid()} first {pathlib.Path(first).name}\\n", end="", flush=True)
while not (folder / "go-on").exists():
    threading.Event().wait(0.05)
"""
STARTED = r"rank \d of 4 store (\d+) uid 1000 first ft-run$"


@pytest.fixture
def podman(ft: Launcher) -> Iterator[Podman]:
    reason = containers.unavailable()
    if reason is not None:
        pytest.skip(reason)
    podman = Podman()
    yield podman
    podman.close()


class Composed:
    """The two services of the compose file."""

    def __init__(self, ft: Launcher, podman: Podman, *, without: tuple[str, ...] = ()) -> None:
        self._ft = ft
        self.podman = podman
        described = yaml.safe_load((FOLDER / "compose.yaml").read_text())
        self.services: dict[str, dict[str, Any]] = described["services"]
        assert described["secrets"] == {"token": {"file": "../../job.token"}}
        self._token = ft.folder / "job.token"
        self._token.write_text(TOKEN)
        self._token.chmod(0o600)
        os.chown(self._token, 1000, -1)
        self._without = without
        self._stores: set[str] = set()
        self.names = {name: name for name in self.services}

    def up(self) -> None:
        """Have podman-compose start both, by the file as it stands."""
        file = self._ft.folder / "examples" / "container" / "compose.yaml"
        file.parent.mkdir(parents=True)
        shutil.copy(FOLDER / file.name, file)
        self.podman.compose(file, "up", "--no-build", "--detach")
        self.names = {name: self.podman.of_service(name) for name in self.services}

    def start(self, image: list[str], options: list[str], volume: str) -> None:
        """Start both; the volume is a folder of this machine or the name of one."""
        for name, service in self.services.items():
            words = [word for word in service["command"] if word not in self._without]
            own = compose_options(service, {"token": self._token})
            assert service["volumes"] == ["checkpoints:/checkpoints"]
            own += [f"--volume={volume}:/checkpoints", *options]
            self.podman.start(name, own, image, words)

    def until(self, condition: Callable[[], bool], what: str, limit_s: float = 120) -> None:
        """Wait; say what the containers have printed where it does not come."""
        try:
            self._ft.wait_until(condition, what, limit_s)
        except BaseException:
            for name in self.services:
                print(f"--- {name}\n{self.log(name)}")
            raise

    def log(self, name: str) -> str:
        """Return what a service has printed."""
        return self.podman.log(self.names[name])

    def run(self) -> None:
        """Wait until both run the workers of one round, a newer one."""
        self.until(self._is_new_round, "both containers run a new round")

    def _is_new_round(self) -> bool:
        logs = (self.log(name) for name in self.services)
        rounds = [re.findall(STARTED, log, re.MULTILINE)[-2:] for log in logs]
        stores = {store for of_node in rounds for store in of_node}
        if {len(of_node) for of_node in rounds} != {2} or len(stores) != 1:
            return False
        is_new = stores != self._stores
        self._stores = stores
        return is_new

    def end(self) -> dict[str, int]:
        """Wait until both have ended; return their statuses."""
        return {name: int(self.podman.run("wait", own)) for name, own in self.names.items()}


def on_this_machine(image: Path) -> tuple[list[str], list[str]]:
    """Return image and options of a container with this machine's files and the Dockerfile's say.

    Its user may look into the folders of root, where Python may be.
    """
    seen = {str(ROOT), sys.prefix, sys.base_prefix}
    options = [
        f"--user={STAGE.user}", f"--workdir={STAGE.folder}", f"--stop-signal={STAGE.stop_signal}",
        "--no-healthcheck", "--cap-add=DAC_READ_SEARCH", f"--volume={image}:/examples:ro",
        *(f"--volume={path}:{path}:ro" for path in seen),
        f"--env=PATH={Path(FT_RUN).parent}:/usr/bin:/bin", "--env=PYTHONUNBUFFERED=1",
    ]  # fmt: skip
    assert STAGE.entrypoint == ["ft-run"]
    return ["--entrypoint=ft-run", "--rootfs", "/:O"], options


@pytest.mark.long
def test_two_containers_of_one_job(ft: Launcher, podman: Podman) -> None:
    image = ft.folder / "image"
    image.mkdir()
    (image / "train_digits.py").write_text(SCRIPT)
    shared = ft.folder / "checkpoints"
    shared.mkdir()
    job = Composed(ft, podman, without=TORCH)
    job.start(*on_this_machine(image), str(shared))
    job.run()
    # What is left to process 1 is reaped.
    podman.run("exec", "node0", "sh", "-c", "sh -c 'exit 3' & sh -c 'sleep 0.01 &' & :")
    job.until(lambda: "Z" not in podman.run("top", "node0", "state").split(), "no zombie is left")
    assert podman.run("exec", "node0", *STAGE.health).startswith("job digits")
    assert podman.run("exec", "node1", *STAGE.health).startswith("job digits")
    seen = podman.run("top", "node0", "hpid", "args")
    (worker, *_) = re.findall(r"^(\d+) .* -u /examples/train_digits.py", seen, re.MULTILINE)
    os.kill(int(worker), signal.SIGKILL)
    job.run()
    os.kill(podman.state("node1")["Pid"], signal.SIGKILL)
    job.run()
    assert podman.run("inspect", "--type=container", "--format={{.RestartCount}}", "node1") == "1"
    podman.run("stop", "node1")
    assert podman.state("node1")["ExitCode"] == 143
    assert "ft-run received SIGTERM" in podman.log("node1")
    podman.run("start", "node1")
    job.run()
    (shared / "go-on").touch()
    assert job.end() == {"node0": 0, "node1": 0}


@pytest.mark.slow
@pytest.mark.timeout(1800)  # pip installs torch into the image
def test_the_image_is_built_and_trains(
    ft: Launcher, podman: Podman, record_property: Callable[[str, object], None]
) -> None:
    base = ft.folder / "base.tar"
    host_base(base)
    podman.run("import", base, "localhost/base:latest")
    build = ["--network=host", "--format=docker", "--pull=never", "--layers=false", "--tag=ft-run"]
    build += ["--build-arg=BASE=localhost/base:latest", f"--file={FOLDER}/Dockerfile"]
    podman.run("build", *build, *pip_of_this_machine(ft), ROOT)
    sizes = [int(podman.run("image", "inspect", "--format={{.Size}}", name)) / 1e9
             for name in ("ft-run", "base")]  # fmt: skip
    record_property("detection time", "image: {:.2f} GB, its base {:.2f} GB".format(*sizes))
    assert podman.run("run", "--rm", "--entrypoint=id", "ft-run", "-u") == "1000"
    done = podman.run("run", "--rm", "--no-healthcheck", "ft-run", "--standalone",
                      "--nproc-per-node=2", "/examples/smoke.py")  # fmt: skip
    assert done.count("of 2: all-reduce ok") == 2
    job = Composed(ft, podman)
    job.up()
    # From its start on: a training that is over has no master to ask.
    healthy = "the image's own health check answers"
    job.until(lambda: podman.is_healthy(job.names["node0"]), healthy, 300)
    assert job.end() == {"node0": 0, "node1": 0}
    assert "test accuracy: 0.9" in job.log("node0")


def pip_of_this_machine(ft: Launcher) -> list[str]:
    """Return options of a build by which pip has the index of this machine, if it has its own."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    ).stdout
    settings = dict(re.findall(r"^[^.]+\.(\S+)='(.*)'$", listed, re.MULTILINE))
    paths = re.findall(r"(?:^|\s|file://)(/\S+)", " ".join(settings.values()))
    paths = [path.removesuffix("/simple") for path in paths]  # an index has its files beside it
    conf = ft.folder / "pip.conf"
    conf.write_text("[global]\n" + "".join(f"{key} = {text}\n" for key, text in settings.items()))
    mounts = [f"--volume={path}:{path}:ro" for path in sorted({*paths}) if Path(path).exists()]
    # Where wheels are at hand, torch for CPUs is among them.
    torch = ["https://pypi.org/simple"] if "find-links" in settings else []
    return [f"--volume={conf}:/etc/pip.conf:ro", *mounts,
            *(f"--build-arg=TORCH_INDEX={url}" for url in torch)]  # fmt: skip
