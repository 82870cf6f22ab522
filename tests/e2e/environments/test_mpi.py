"""ft-run under a real Open MPI: the recipe of ``examples/mpi`` as it stands.

In place of ssh, ``mpirun`` starts its daemons by a script that enters the host.
"""

import contextlib
import shlex
import shutil
from pathlib import Path

import pytest
from ft_run.tests.e2e.conftest import EXAMPLES, FT_RUN, Command, Launcher
from ft_run.tests.harness.hosts import Host, Network

pytestmark = pytest.mark.root
RECIPE = EXAMPLES / "mpi" / "train.sh"

WORKER = """\
import os, pathlib, sys, threading
rank, world = os.environ["RANK"], os.environ["WORLD_SIZE"]
restarts = os.environ["TORCHELASTIC_RESTART_COUNT"]
print(f"rank {rank} of {world} restarts {restarts} pid {os.getpid()}\\n", end="", flush=True)
go_on = pathlib.Path(sys.argv[1])
while not go_on.exists():
    threading.Event().wait(0.05)
"""


@pytest.fixture(autouse=True)
def open_mpi() -> None:
    if shutil.which("mpirun") is None:
        pytest.skip("Debian's openmpi-bin is not installed: there is no mpirun")


class Mpi:
    """Three hosts, and how ``mpirun`` of the first reaches the others."""

    def __init__(self, ft: Launcher, network: Network) -> None:
        self._ft = ft
        self.hosts = [network.add(name) for name in ("gpu001", "gpu002", "gpu003")]
        self.hostfile = ft.folder / "hostfile"
        self.hostfile.write_text("".join(f"{host.name} slots=1\n" for host in self.hosts))
        cases = [f'{host.name}) exec {shlex.join(host.enter)} sh -c "$*";;' for host in self.hosts]
        agent = ft.script(
            "\n".join(
                [
                    "#!/bin/sh",
                    "unset FT_RUN_TOKEN  # as by ssh",
                    "host=$1; shift; case $host in",
                    *cases,
                    "esac",
                ]
            )
        )
        agent = agent.rename(agent.with_name("agent"))
        agent.chmod(0o755)
        temporary = ft.folder / "of-nodes"  # a node that loses its power leaves files
        temporary.mkdir()
        self._variables = {
            "PATH": f"{Path(FT_RUN).parent}:/usr/bin:/bin",
            "TMPDIR": str(temporary),
            "OMPI_MCA_plm": "rsh",
            "OMPI_MCA_plm_rsh_agent": str(agent),
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        }
        self.go_on = ft.folder / "go-on"

    def start(self, *command: object, **variables: str) -> Command:
        """Start a command on the first host."""
        env = self._variables | variables
        return self._ft.start(*command, program=(), env=env, host=self.hosts[0], new_session=True)

    def train(self, *flags: str, **variables: str) -> Command:
        """Start the recipe."""
        worker = self._ft.script(WORKER)
        return self.start(RECIPE, self.hostfile, *flags, worker, self.go_on, **variables)


def _tokens(host: Host) -> list[str]:
    """Return the tokens that processes of a host were started with."""
    found = []
    for pid in host.pids():
        with contextlib.suppress(OSError):  # it has ended meanwhile
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            found += [word[13:].decode() for word in variables if word.startswith(b"FT_RUN_TOKEN=")]
    return found


@pytest.mark.parametrize("is_whole", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_rank_is_killed_and_the_job_ends_well(
    ft: Launcher, network: Network, is_whole: bool
) -> None:
    """Without checks and torch too, which take more than all the rest."""
    mpi = Mpi(ft, network)
    job = mpi.train() if is_whole else mpi.train("--preload", "json", CHECK="")
    workers = job.expect(r"rank \d of 3 restarts 0 pid (\d+)$", 3)
    assert len(job.expect(r"--rdzv-endpoint=10.77.0.1:29400 \(OMPI_MCA_orte_hnp_uri\)", 3)) == 3
    secrets = {variable for host in mpi.hosts for variable in _tokens(host)}
    assert len(secrets) == 1, "all nodes have the same"
    lines = "".join(ft.processes().values())
    assert "mpirun" in lines
    assert secrets.pop() not in lines
    mpi.hosts[0].run("kill", "-9", workers[1][1])
    job.expect(r"rank \d of 3 restarts 1 ", 3)
    mpi.go_on.touch()
    assert job.wait() == 0


@pytest.mark.slow
def test_a_lost_host_ends_the_job_and_it_can_be_started_again(
    ft: Launcher, network: Network
) -> None:
    mpi = Mpi(ft, network)
    job = mpi.train()
    job.expect(r"rank \d of 3 restarts 0 pid (\d+)$", 3)
    mpi.hosts[2].kill()
    assert job.wait() != 0
    ft.wait_until(lambda: not ft.processes(), "nothing is left on the other hosts")
    mpi.go_on.touch()
    again = mpi.train()
    assert again.wait() == 0


@pytest.mark.slow
def test_several_tasks_on_a_host_are_refused(ft: Launcher, network: Network) -> None:
    mpi = Mpi(ft, network)
    train = ft.script("print('trained')")
    job = mpi.start("mpirun", "--map-by", "ppr:2:node", "--oversubscribe", "--hostfile",
                    mpi.hostfile, FT_RUN, "--auto-config", train)  # fmt: skip
    assert job.wait() == 2
    job.expect(r"expected mpirun --map-by ppr:1:node --bind-to none ft-run --auto-config")
