"""ft-run under a real Slurm: the recipes of ``examples/slurm`` as they stand."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from ft_run.tests.e2e.conftest import EXAMPLES, FT_RUN, Launcher
from ft_run.tests.harness.environments import slurm
from ft_run.tests.harness.environments.slurm import Slurm
from ft_run.tests.harness.hosts import Host, Network

pytestmark = pytest.mark.root
RECIPES = EXAMPLES / "slurm"
RECIPE = RECIPES / "train.sbatch"

WORKER = """\
import os, pathlib, signal, sys, threading
rank, round_ = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
run, world = os.environ["TORCHELASTIC_RUN_ID"], os.environ["WORLD_SIZE"]
go_on = pathlib.Path(sys.argv[1])
# Not by way of srun, whose connections to a node that is cut off hold up those to the others.
with open(f"{go_on}.workers", "a") as workers:
    workers.write(f"rank {rank} of {world} run {run} restarts {round_} pid {os.getpid()}\\n")
while not go_on.exists():
    threading.Event().wait(0.05)
"""


@pytest.fixture
def cluster(ft: Launcher, network: Network) -> Iterator[Slurm]:
    """Slurm with a controller and three nodes."""
    reason = slurm.unavailable()
    if reason is not None:
        pytest.skip(reason)
    for name in ("controller", "gpu001", "gpu002", "gpu003"):
        network.add(name)
    cluster = Slurm(network)
    yield cluster
    try:
        ft.wait_until(lambda: not ft.processes(), "all processes of the job have ended")
    finally:
        cluster.close()


class Job:
    """A job that was submitted, and what it has printed."""

    def __init__(
        self,
        ft: Launcher,
        cluster: Slurm,
        *options: str,
        script: Path = RECIPE,
        words: Sequence[str] = (),
    ) -> None:
        """Submit a recipe.

        Args:
            ft: starts it.
            cluster: where it runs.
            options: for ``sbatch``.
            script: the recipe.
            words: stand before the training script.
        """
        self.go_on = ft.folder / "go-on"
        self.output = ft.folder / f"output-{script.stem}"
        self._ft, self._cluster = ft, cluster
        worker = ft.script(WORKER)
        temporary = ft.folder / "of-nodes"  # a node that loses its power leaves files
        temporary.mkdir(exist_ok=True)
        variables = {"PATH": f"{Path(FT_RUN).parent}:/usr/bin:/bin", "TMPDIR": str(temporary)}
        submitted = ft.run(
            "--parsable", f"--output={self.output}", *options, script, *words, worker, self.go_on,
            program=("sbatch",),
            env=cluster.environment() | variables,
            host=cluster.controller,
        )  # fmt: skip
        assert submitted.process.returncode == 0, submitted.stderr
        self.number = submitted.stdout.strip()

    def text(self) -> str:
        """What the job has printed so far."""
        files = (self.output, Path(f"{self.go_on}.workers"))
        return "".join(file.read_text() for file in files if file.exists())

    def nodes(self) -> str:
        """Return the list of the job's nodes."""
        return self._cluster.job(self.number)["NodeList"]

    def expect(self, pattern: str, count: int = 1) -> list[re.Match[str]]:
        """Wait until as many lines match."""
        found: list[re.Match[str]] = []

        def enough() -> bool:
            found[:] = re.finditer(pattern, self.text(), re.MULTILINE)
            return len(found) >= count

        try:
            self._ft.wait_until(enough, f"{count} lines match {pattern!r}")
        except BaseException:
            print(self.text(), self._cluster.job(self.number), self._cluster.log())
            raise
        return found

    def goes_on_without(self, node: Host) -> None:
        """Take a node's cable and power: a spare takes its place, and the job ends well."""
        node.cut()
        node.kill()
        self.expect(r"rank \d of 2 run \S+ restarts 1 ", 2)
        self.go_on.touch()
        ended = self._cluster.wait_for_job(self.number, "COMPLETED", "FAILED", "NODE_FAIL")
        assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "0")


@pytest.mark.parametrize("is_whole", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_rank_is_killed_and_the_job_ends_well(
    ft: Launcher, cluster: Slurm, is_whole: bool
) -> None:
    """Without checks and torch too, which take more than all the rest."""
    job = Job(
        *(ft, cluster, *(() if is_whole else ("--export=ALL,CHECK=",))),
        words=() if is_whole else ("--preload", "json"),
    )

    workers = job.expect(r"rank \d of 2 run (\S+) restarts 0 pid (\d+)$", 2)
    assert {worker[1] for worker in workers} == {job.number}
    assert len(re.findall("--node-rank=", job.text())) == 2  # the spare has none
    secret = ft.folder / f"train-{job.number}.token"
    assert secret.stat().st_mode & 0o777 == 0o600
    lines = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in cluster.nodes[0].pids()]
    assert lines
    assert not any(secret.read_bytes().strip() in line for line in lines)
    cluster.nodes[0].run("kill", "-9", workers[0][2])
    job.expect(r"rank \d of 2 run \S+ restarts 1 ", 2)
    job.go_on.touch()

    cluster.wait_for_job(job.number, "COMPLETED")
    assert cluster.states() <= {"idle", "comp"}
    assert [*ft.folder.glob("train-*")] == []


@pytest.mark.slow
def test_a_spare_takes_the_place_of_a_node_without_power(ft: Launcher, cluster: Slurm) -> None:
    job = Job(ft, cluster)
    found = job.expect(r"rank \d of 2 run \S+ restarts 0 pid (\d+)$", 2)
    workers = {int(match[1]) for match in found}
    # The batch script runs on the first; which of the others is the spare is open.
    (node,) = [node for node in cluster.nodes[1:] if node.pids() & workers]
    job.goes_on_without(node)


@pytest.mark.slow
def test_the_job_is_requeued_when_its_first_node_is_lost(ft: Launcher, cluster: Slurm) -> None:
    job = Job(ft, cluster, "--nodes=2", "--export=ALL,PET_RDZV_CONF=master_timeout=3")
    # One trains, and one is a spare.
    (worker,) = job.expect(r"rank 0 of 1 run (\S+) restarts 0 pid \d+$")
    assert worker[1] == job.number
    cluster.nodes[0].cut()
    cluster.nodes[0].kill()
    job.expect(rf"rank 0 of 1 run {job.number}-r1 restarts 0 pid \d+$")
    job.go_on.touch()

    assert cluster.wait_for_job(job.number, "COMPLETED")["Restarts"] == "1"


@pytest.mark.slow
def test_a_requeued_job_has_an_id_of_its_own(ft: Launcher, cluster: Slurm) -> None:
    job = Job(ft, cluster, "--nodes=2", "--export=ALL,SPARES=0")
    workers = job.expect(r"rank \d of 2 run \d+ restarts 0 pid \d+$", 2)
    assert len(workers) == 2
    cluster.ask("scontrol", "requeue", job.number)
    job.expect(r"ft-run received SIGTERM", 2)
    job.expect(rf"rank \d of 2 run {job.number}-r1 restarts 0 pid \d+$", 2)
    job.go_on.touch()

    assert cluster.wait_for_job(job.number, "COMPLETED")["Restarts"] == "1"


@pytest.mark.slow
def test_wrong_ways_to_start_are_refused(ft: Launcher, cluster: Slurm) -> None:
    where = {"env": cluster.environment(), "host": cluster.controller}
    train = ft.script("print('trained')")
    several = ft.run(*("-N2", "-n4", FT_RUN, "--auto-config", train), program=("srun",), **where)
    assert several.process.returncode == 2
    assert "SLURM_STEP_NUM_TASKS is 4, but SLURM_STEP_NUM_NODES is 2" in several.stderr
    alone = ft.run("-N2", FT_RUN, "--auto-config", train, program=("salloc",), **where)
    assert alone.process.returncode == 2
    assert "not started by srun, but the Slurm allocation has 2 nodes" in alone.stderr


@pytest.mark.slow
def test_arrays_and_jobs_of_two_parts(ft: Launcher, cluster: Slurm) -> None:
    where = {"env": cluster.environment(), "host": cluster.controller}
    train = ft.script("import os; print(os.environ['TORCHELASTIC_RUN_ID'], os.environ['RANK'])")
    command = f"srun --het-group=0-1 {FT_RUN} --auto-config {train}"
    parts = ft.run("-N1", ":", "-N2", "sh", "-c", command, program=("salloc",), **where)
    assert parts.process.returncode == 0, parts.stderr
    words = [line.split() for line in parts.stdout.splitlines()]
    assert sorted(rank for _, rank in words) == ["0", "1", "2"]
    assert len({run for run, _ in words}) == 1

    script = ft.script(f"#!/bin/sh\nsrun {FT_RUN} --auto-config {train}\n", "array.sh")
    done = ft.run(
        *("--wait", "-N2", "--array=3-4", f"--output={ft.folder}/array-%a", script),
        program=("sbatch",), **where,
    )  # fmt: skip
    assert done.process.returncode == 0, done.stderr
    for task in "34":
        runs = re.findall(r"^\d+_(\d) \d$", (ft.folder / f"array-{task}").read_text(), re.MULTILINE)
        assert runs == [task, task]


@pytest.mark.slow
def test_a_spare_of_an_allocation_of_its_own(ft: Launcher, cluster: Slurm) -> None:
    job = Job(ft, cluster, "--nodes=2", "--export=ALL,SPARES=0")
    job.expect(r"rank \d of 2 run \S+ restarts 0 pid \d+$", 2)
    spare = Job(
        *(ft, cluster, "--array=1-1", "--export=ALL,POLL=1"),
        script=RECIPES / "spare.sbatch",
        words=(job.number,),
    )
    spare.expect("standing by as a spare")
    job.goes_on_without(cluster.nodes[1])
    cluster.wait_for_job(f"{spare.number}_1", "COMPLETED")


@pytest.mark.slow
def test_a_job_that_is_requeued_only_if_that_may_help_is_done_after_the_loss_of_a_node(
    ft: Launcher, cluster: Slurm
) -> None:
    """The script of the guide, with as many nodes and workers as there are here."""
    guide = (EXAMPLES.parent / "docs/guide/failure-policy.md").read_text()
    (text,) = re.findall(r"```bash\n(#!/bin/bash\n#SBATCH.*?)```", guide, re.DOTALL)
    for old, new in {
        "--nodes=5": "--nodes=3 --requeue",
        " --gpus-per-node=8": "",
        "--nnodes 4 --nproc-per-node 8": "--nnodes 2 --nproc-per-node 1",
        " train.py": ' "$@"',
    }.items():
        assert old in text
        text = text.replace(old, new)
    script = ft.folder / "of-the-guide.sbatch"
    script.write_text(text)
    job = Job(ft, cluster, script=script)
    workers = job.expect(r"rank \d of 2 run \S+ restarts 0 pid (\d+)$", 2)
    pids = {int(worker[1]) for worker in workers}
    # The two that joined first train; the first node also runs the script.
    job.goes_on_without(next(node for node in cluster.nodes[1:] if pids & node.pids()))


@pytest.mark.slow
def test_a_node_that_fails_its_check_gets_no_job(ft: Launcher, cluster: Slurm) -> None:
    wanted = "export PET_MIN_COMPUTE_TFLOPS=99999 PET_EXCLUDE_STRAGGLER=1"
    cluster.prolog(
        f"[ $SLURMD_NODENAME != gpu002 ] || {wanted}\nFT_RUN={FT_RUN} exec {RECIPES}/prolog.sh"
    )
    job = Job(ft, cluster, "--nodes=2", "--export=ALL,SPARES=0,CHECK=")
    job.expect(r"rank \d of 2 run \S+ restarts 0 pid \d+$", 2)
    node = cluster.ask("scontrol", "-o", "show", "node", "gpu002")
    assert "DRAIN" in node
    assert "Reason=ft-run check: " in node
    assert "less than the required 1e+05" in node
    assert "gpu002" not in cluster.ask("scontrol", "show", "hostnames", job.nodes())
    job.go_on.touch()
    cluster.wait_for_job(job.number, "COMPLETED")


@pytest.mark.slow
def test_three_nodes_of_one_host(ft: Launcher, network: Network) -> None:
    """As on a machine where Slurm is tried out: the listed hosts are one, which leads alone."""
    reason = slurm.unavailable()
    if reason is not None:
        pytest.skip(reason)
    network.add("controller")
    box = network.add("box")
    names = ("gpu001", "gpu002", "gpu003")
    for name in names:
        network.alias(name, box)
    cluster = Slurm(network, of_one_host=names)
    try:
        recipe = ft.folder / "one-host.sbatch"
        recipe.write_text(
            '#!/bin/bash\nsrun ft-run --auto-config --nproc-per-node 1 --max-restarts 1 "$@"\n'
        )
        job = Job(ft, cluster, "--nodes=3", "--ntasks-per-node=1", script=recipe)
        job.expect(r"rank \d of 3 run \S+ restarts 0 ", 3)
        job.expect("gpu001:[0-9]+, gpu002:[0-9]+, gpu003:[0-9]+ are all this process and count as")
        job.go_on.touch()
        cluster.wait_for_job(job.number, "COMPLETED")
        ft.wait_until(lambda: not ft.processes(), "all processes of the job have ended")
    finally:
        cluster.close()
