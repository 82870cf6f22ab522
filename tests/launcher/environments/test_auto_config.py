"""``--auto-config --dry-run`` in recorded environments, and the contradictions in them.

``recorded/`` holds what the programs have set, run as their names say. The rest is written down
from documentation: PRRTE (names of jobs), Slurm (man srun, "output environment variables";
topology_block.c, node_addr), Kubernetes (Indexed Jobs).
"""

import re
import socket
from pathlib import Path

import pytest
from ft_run.errors import UsageError
from ft_run.launcher.cli.parse import parse
from ft_run.launcher.options import LaunchOptions

RECORDED = Path(__file__).with_name("recorded")


def recorded(name: str) -> dict[str, str]:
    lines = (RECORDED / f"{name}.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines)


SLURM = recorded("slurm-22.05-srun-node-2-of-3")
BLOCK = {"SLURM_TOPOLOGY_ADDR": "b8.gpu003", "SLURM_TOPOLOGY_ADDR_PATTERN": "block.node"}
TREE = {
    "SLURM_TOPOLOGY_ADDR": "s0.s4.gpu003",
    "SLURM_TOPOLOGY_ADDR_PATTERN": "switch.switch.node",
}
ARRAY = recorded("slurm-22.05-array-task-2-node-1-of-2")
PARTS = recorded("slurm-22.05-two-parts-node-2-of-3")
FIRST_PART = recorded("slurm-22.05-two-parts-srun-of-the-first")
BATCH = recorded("slurm-22.05-batch-script-of-2-nodes")
FOUR_TASKS = recorded("slurm-22.05-srun-4-tasks-on-2-nodes")
PMI2 = recorded("slurm-22.05-srun-pmi2-node-1-of-2")
OPEN_MPI = recorded("openmpi-4.1.4-node-2-of-3")
MPIRUN_IN_SLURM = recorded("slurm-22.05-mpirun-4.1.4-node-1-of-3")
HYDRA_TWO_TASKS = recorded("mpich-4.0.2-2-tasks-on-1-node")
HYDRA = HYDRA_TWO_TASKS | {"MPI_LOCALNRANKS": "1", "PMI_RANK": "1"}
OPEN_MPI_5 = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
    "PMIX_NAMESPACE": "prterun-gpu-head-01-4711@1",
    "PMIX_HOSTNAME": "gpu-02",
    "PMIX_RANK": "1",
}
PMIX = {"PMIX_RANK": "1", "PMIX_NAMESPACE": "prun-7@1", "PMIX_SERVER_URI41": "prun@0;tcp4://h:1"}
INDEXED_JOB = {"JOB_COMPLETION_INDEX": "1", "HOSTNAME": "digits-1"}
SKYPILOT = {
    "SKYPILOT_NODE_IPS": "10.0.0.4\n10.0.0.7",
    "SKYPILOT_NUM_NODES": "2",
    "SKYPILOT_NODE_RANK": "1",
}

COMMANDS = [
    # what the environment is, flags, what --dry-run prints between ft-run and the script; there
    # gpu00[1-3]:1 stands for three endpoints
    (SLURM, "", "--nnodes=3 --rdzv-endpoint=gpu00[1-3]:29401 --rdzv-id=1 --node-rank=2"),
    (SLURM | {"SLURM_RESTART_COUNT": "2"}, "",
     "--nnodes=3 --rdzv-endpoint=gpu00[1-3]:29401 --rdzv-id=1-r2 --node-rank=2"),
    (SLURM | {"SLURM_RESTART_COUNT": "0"}, "",
     "--nnodes=3 --rdzv-endpoint=gpu00[1-3]:29401 --rdzv-id=1 --node-rank=2"),
    (SLURM | {"SLURM_STEP_ID": "4", "SLURM_JOB_ID": "123456"}, "",
     "--nnodes=3 --rdzv-endpoint=gpu00[1-3]:29860 --rdzv-id=123456.4 --node-rank=2"),
    (SLURM | BLOCK, "",
     "--nnodes=3 --segment=b8 --rdzv-endpoint=gpu00[1-3]:29401 --rdzv-id=1 --node-rank=2"),
    (SLURM | BLOCK, "--standalone", "--rdzv-id=1 --standalone"),
    (SLURM | TREE, "", "--nnodes=3 --rdzv-endpoint=gpu00[1-3]:29401 --rdzv-id=1 --node-rank=2"),
    (SLURM | {"SLURM_GPUS_ON_NODE": "8"}, "",
     "--nproc-per-node=8 --nnodes=3 --rdzv-endpoint=gpu00[1-3]:29401 --rdzv-id=1 --node-rank=2"),
    (SLURM | {"SLURM_GPUS_ON_NODE": "2", "CUDA_VISIBLE_DEVICES": "0,1"}, "",
     "--nproc-per-node=2 --nnodes=3 --rdzv-endpoint=gpu00[1-3]:29401 --rdzv-id=1 --node-rank=2"),
    (SLURM, "--nnodes=2",  # the last one is a spare
     "--nnodes=2 --rdzv-endpoint=gpu00[1-3]:29401 --rdzv-id=1"),
    (SLURM, "--nnodes=1", "--nnodes=1 --rdzv-endpoint=gpu00[1-3]:29401 --rdzv-id=1"),
    (SLURM, "--nnodes=1:3",
     "--nnodes=1:3 --rdzv-endpoint=gpu00[1-3]:29401 --rdzv-id=1 --node-rank=2"),
    (SLURM, "--nnodes=9 --rdzv-endpoint=head:1 --rdzv-id=x",  # one of several allocations
     "--nnodes=9 --rdzv-endpoint=head:1 --rdzv-id=x"),
    (SLURM, "--rdzv-backend=c10d",  # which has no ranks of nodes
     "--nnodes=3 --rdzv-endpoint=gpu00[1-3]:29401 --rdzv-id=1 --rdzv-backend=c10d"),
    (SLURM, "--standalone", "--rdzv-id=1 --standalone"),
    (SLURM | {"PET_NODE_RANK": "0", "PET_RDZV_ENDPOINT": "gpu003"}, "",
     "--nnodes=3 --rdzv-endpoint=gpu003 --rdzv-id=1 --node-rank=0"),
    (PMI2, "", "--nnodes=2 --rdzv-endpoint=gpu001:29402 --rdzv-id=2 --node-rank=1"),
    (ARRAY, "", "--nnodes=2 --rdzv-endpoint=gpu001:29402 --rdzv-id=2_2 --node-rank=1"),
    (PARTS, "", "--nnodes=3 --rdzv-endpoint=gpu00[1-3]:29404 --rdzv-id=4 --node-rank=2"),
    (FIRST_PART, "--nnodes=1", "--nnodes=1 --rdzv-id=4.1"),
    (BATCH | {"SLURM_JOB_NUM_NODES": "1", "SLURM_NNODES": "1"}, "",
     "--nnodes=1 --rdzv-id=2_1"),
    (OPEN_MPI, "",
     "--nnodes=3 --rdzv-endpoint=10.77.0.2:29400 --rdzv-id=mpi-3627941888 --node-rank=2"),
    (OPEN_MPI_5, "",
     "--nnodes=4 --rdzv-endpoint=gpu-head-01:29400 --rdzv-id=mpi-gpu-head-01-4711 --node-rank=1"),
    # There Slurm says rank 0 of 2: those of mpirun's own daemons.
    (MPIRUN_IN_SLURM, "", "--nnodes=3 --rdzv-endpoint=gpu00[1-3]:29406 --rdzv-id=6 --node-rank=1"),
    (HYDRA, "--rdzv-endpoint=gpu001",
     "--nnodes=2 --rdzv-endpoint=gpu001 --node-rank=1"),
    (PMIX, "--nnodes=2 --rdzv-endpoint=gpu001",
     "--nnodes=2 --rdzv-endpoint=gpu001 --rdzv-id=prun-7@1 --node-rank=1"),
    (INDEXED_JOB, "--nnodes=2",
     "--nnodes=2 --rdzv-endpoint=digits-0.digits.default.svc.cluster.local:29400"
     " --rdzv-id=digits --node-rank=1"),
    (INDEXED_JOB, "--nnodes=2:3",
     "--nnodes=2:3 --rdzv-endpoint=digits-[0-2].digits.default.svc.cluster.local:29400"
     " --rdzv-id=digits --node-rank=1"),
    (INDEXED_JOB, "--nnodes=3 --rdzv-endpoint=digits-0.digits",
     "--nnodes=3 --rdzv-endpoint=digits-0.digits --rdzv-id=digits --node-rank=1"),
    ({}, "--standalone", "--standalone"),
]  # fmt: skip

REFUSALS = [
    # what the environment is, flags, words of the sentence
    ({}, "", "--auto-config found no supported environment (Slurm, Open MPI,"),
    (BATCH, "", "not started by srun, but the Slurm allocation has 2 nodes"
     " (SLURM_JOB_NUM_NODES); expected srun --ntasks-per-node=1 ft-run --auto-config"),
    (SLURM | {"SLURM_STEP_ID": "4294967290"}, "", "not started by srun"),
    (SLURM | {"SLURM_STEP_ID": "", "SLURM_STEPID": "4294967290"}, "", "not started by srun"),
    (FOUR_TASKS, "", "SLURM_STEP_NUM_TASKS is 4, but SLURM_STEP_NUM_NODES is 2, and one ft-run per"
     " node starts all its workers; expected srun --ntasks-per-node=1 ft-run"),
    (FIRST_PART, "", "the step has 1 (SLURM_STEP_NUM_NODES) of the 3 nodes of a heterogeneous job"
     " of 2 parts (SLURM_HET_SIZE); expected srun --het-group=0-1 ft-run"),
    (SLURM | {"SLURM_PROCID": "3"}, "",
     "SLURM_PROCID is 3, but SLURM_STEP_NUM_NODES is 3, and the last rank is 2"),
    (SLURM | {"SLURM_STEP_NODELIST": "gpu[001-002]"}, "",
     "SLURM_STEP_NUM_NODES is 3, but SLURM_STEP_NODELIST has 2 hosts"),
    (SLURM | {"SLURM_STEP_NODELIST": "gpu[001-"}, "",
     "invalid value 'gpu[001-' for SLURM_STEP_NODELIST (unmatched brackets): expected a list"),
    (SLURM | {"SLURM_PROCID": "two"}, "",
     "invalid value 'two' for SLURM_PROCID: expected a whole number >= 0, or no --auto-config."),
    (SLURM | {"SLURM_STEP_NUM_NODES": "0"}, "", "expected a whole number >= 1"),
    (SLURM | {"SLURM_GPUS_ON_NODE": "8", "CUDA_VISIBLE_DEVICES": "0,1"}, "",
     "SLURM_GPUS_ON_NODE is 8, but CUDA_VISIBLE_DEVICES shows 2 (0,1); expected"
     " --nproc-per-node 2, or 8 with all of them visible."),
    (OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "8"}, "",
     "Open MPI has started 8 tasks on this node (OMPI_COMM_WORLD_LOCAL_SIZE), but one ft-run per"
     " node starts all its workers; expected mpirun --map-by ppr:1:node --bind-to none ft-run"
     " --auto-config --nproc-per-node 8 SCRIPT."),
    (OPEN_MPI | {"OMPI_COMM_WORLD_RANK": "0"}, "",
     "mpirun runs on 10.77.0.2 (OMPI_MCA_orte_hnp_uri), which is not the host of rank 0"),
    (OPEN_MPI_5 | {"OMPI_COMM_WORLD_RANK": "0"}, "",
     "mpirun runs on gpu-head-01 (PMIX_NAMESPACE), which is not the host of rank 0"),
    (HYDRA_TWO_TASKS, "", "expected mpiexec -ppn 1 ft-run --auto-config --nproc-per-node 2"),
    (HYDRA, "", "--auto-config found no endpoint in MPICH's Hydra;"
     " expected --rdzv-endpoint HOST:PORT"),
    (PMIX, "", "PMIx sets the rank of a task, but not the number of tasks;"
     " expected --nnodes N or PET_NNODES=N"),
    (INDEXED_JOB, "", "the pods of an Indexed Job have no variable with their number; expected"
     " --nnodes N or PET_NNODES=N"),
    (SLURM | SKYPILOT, "", "SLURM_STEP_NUM_NODES is 3, but SKYPILOT_NUM_NODES is 2; expected"
     " --nnodes 3 or --nnodes 2."),
    (SLURM, "--nnodes=2 --standalone", "--standalone is for one node"),
]  # fmt: skip


@pytest.fixture(autouse=True)
def host_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name of a pod of an Indexed Job with a headless service."""
    monkeypatch.setattr(socket, "getfqdn", lambda: "digits-1.digits.default.svc.cluster.local")


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    return "train.py"


def launch(argv: list[str], environ: dict[str, str]) -> LaunchOptions:
    options = parse(argv, environ)
    assert isinstance(options, LaunchOptions)
    return options


def with_all_hosts(command: str) -> str:
    """Return a command with each host of a range such as ``a[1-3].b:1``."""
    found = re.search(r"(?<==)([^= ]*)\[(\d)-(\d)\](\S*)", command)
    if found is None:
        return command
    before, first, last, after = found.groups()
    hosts = [f"{before}{number}{after}" for number in range(int(first), int(last) + 1)]
    return command.replace(found[0], ",".join(hosts))


@pytest.mark.parametrize(("environ", "flags", "command"), COMMANDS)
def test_what_dry_run_prints(
    environ: dict[str, str],
    flags: str,
    command: str,
    script: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ending:
        parse(["--auto-config", "--dry-run", *flags.split(), script, "--lr", "0 1"], environ)
    assert ending.value.code == 0
    output = capfd.readouterr()
    printed = output.out.removeprefix("ft-run ").removesuffix(" train.py --lr '0 1'\n")
    assert printed.removeprefix("--nproc-per-node=auto ") == with_all_hosts(command)
    if "--nproc" not in command:
        assert printed.startswith("--nproc-per-node=auto ")
    told = [line for line in output.err.splitlines() if "ft-run: --auto-config: " in line]
    assert len(told) == 1


@pytest.mark.parametrize(("environ", "flags", "sentence"), REFUSALS)
def test_what_is_refused(environ: dict[str, str], flags: str, sentence: str, script: str) -> None:
    with pytest.raises(UsageError) as error:
        parse(["--auto-config", *flags.split(), script], environ)
    assert sentence in error.value.sentence


def test_one_line_says_what_was_taken_from_where(
    script: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse(["--auto-config", "--dry-run", "--nproc-per-node=4", script], SLURM)
    assert capfd.readouterr().err == (
        "ft-run: --auto-config: --rdzv-id=1 (SLURM_JOB_ID), --nnodes=3 (SLURM_STEP_NUM_NODES),"
        " --node-rank=2 (SLURM_PROCID), --rdzv-endpoint=gpu001:29401,gpu002:29401,gpu003:29401"
        " (SLURM_STEP_NODELIST)\n"
    )


def test_a_pod_without_a_service_cannot_be_found(
    script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "getfqdn", lambda: "digits-1")
    with pytest.raises(UsageError, match="a headless service whose name is the subdomain"):
        parse(["--auto-config", "--nnodes=2", script], INDEXED_JOB)


@pytest.mark.parametrize("environ", [SLURM, OPEN_MPI, HYDRA, SKYPILOT])
def test_without_the_flag_a_line_suggests_it_and_nothing_is_taken(
    environ: dict[str, str], script: str
) -> None:
    options = launch([script], environ)
    (warning,) = options.warnings
    assert "but this job has one node; use" in warning
    assert "ft-run --auto-config" in warning
    assert options.rendezvous.endpoint is None


def test_a_batch_script_is_told_of_srun(script: str) -> None:
    options = launch([script], BATCH)
    (warning,) = options.warnings
    assert warning.startswith("not started by srun, but the Slurm allocation has 2 nodes")


@pytest.mark.parametrize(
    ("environ", "flags"),
    [
        (SLURM, ["--standalone"]),
        (SLURM, ["--nnodes=1"]),
        (SLURM, ["--rdzv-endpoint=gpu001"]),
        (SLURM | {"PET_NNODES": "1"}, []),
        (BATCH, ["--nnodes=1"]),
        (FOUR_TASKS, []),
        (SLURM | {"SLURM_PROCID": "nonsense"}, []),
        ({}, []),
    ],
)
def test_nothing_is_suggested(environ: dict[str, str], flags: list[str], script: str) -> None:
    options = launch([*flags, script], environ)
    assert not any("--auto-config" in warning for warning in options.warnings)


def test_dry_run_alone_shows_what_variables_add(
    script: str, capfd: pytest.CaptureFixture[str]
) -> None:
    environ = {"PET_ON_FAILURE": "exit:3=fail;oom=restart", "PET_NNODES": "1", "PET_MODULE": "0"}
    with pytest.raises(SystemExit) as ending:
        parse(["--dry-run", "-r", "3", "--nnodes=1:1", "--", script], environ)
    assert ending.value.code == 0
    assert capfd.readouterr().out == (
        "ft-run --nnodes=1:1 --on-failure=exit:3=fail --on-failure=oom=restart --redirects=3"
        " train.py\n"
    )


def test_dry_run_shows_a_command_that_is_read_the_same(
    script: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """A dash dash directly after the script is dropped, a second one is not."""
    with pytest.raises(SystemExit):
        parse(["--dry-run", "--nnodes=1", script, "--", "--", "-x"], {})
    shown = capfd.readouterr().out
    assert shown == "ft-run --nnodes=1 -- train.py -- -x\n"
    assert launch(shown.split()[1:], {}).script_args == ("--", "-x")


def test_dry_run_refuses_what_a_run_would(script: str) -> None:
    with pytest.raises(UsageError):
        parse(["--dry-run", "--standalone", "--nnodes=2", script], {})
