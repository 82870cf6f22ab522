"""How many workers, and the environment of each: on one node, on several, on other machines."""

from pathlib import Path
from typing import Final

from ft_run.tests.conformance.launchers import Surroundings
from ft_run.tests.conformance.row import PAIR, Row

ENVIRONMENT: Final = [
    Row("two workers", "environment OMP_NUM_THREADS", PAIR, env={"OMP_NUM_THREADS": ""}),
    Row(
        "what the agent has",
        "environment OMP_NUM_THREADS proxies",
        PAIR,
        env={
            "OMP_NUM_THREADS": "3",
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
            "CUDA_VISIBLE_DEVICES": "5,3",
            "http_proxy": "http://proxy.invalid:1",
            "RANK": "77",
            "MASTER_ADDR": "elsewhere",
            "LOGLEVEL": "ERROR",
            "EMPTY": "",
            "NOT_UTF8": "\udcff",
        },
    ),
    Row("another Python", "PYTHON_EXEC", "--standalone", env={"PYTHON_EXEC": "{dir}/python"}),
    Row("virtual ranks", "virtual-local-rank", PAIR + "--virtual-local-rank"),
    Row(
        "virtual ranks among visible devices",
        "virtual-local-rank",
        PAIR + "--virtual-local-rank",
        env={"CUDA_VISIBLE_DEVICES": "7, 4,GPU-1"},
    ),
    Row(
        "virtual ranks among AMD devices",
        "virtual-local-rank",
        PAIR + "--virtual-local-rank",
        env={"HIP_VISIBLE_DEVICES": "7, 4", "CUDA_VISIBLE_DEVICES": "1"},
        since="2.15",
    ),
    Row("standard input", "stdin", PAIR, script="say(sys.stdin.readline() if rank == '0' else '')"),
    Row("an id of a standalone job", "standalone rdzv-id", "--standalone --rdzv-id mine",
        job_id="mine", differs=("standalone id",)),
    Row("an id without an endpoint", "rdzv-id", "--rdzv-id mine", job_id="mine",
        differs=("standalone id",)),
]  # fmt: skip

_MEETS: Final = """
from torch.distributed import rendezvous
store, *_ = next(rendezvous(f"{sys.argv[1]}?rank={rank}&world_size=2"))
store.set(rank, "here")
store.wait(["0", "1"])
if rank == "1":
    store.set("left", "")
else:
    store.wait(["left"])  # or the other may lose the store
say("met")
"""
"""A script that names the endpoint of its job."""

NAMED_ENDPOINT: Final = [
    Row(
        f"a script that names the endpoint, {backend or 'no backend'}",
        f"rdzv-endpoint {covers}",
        "--nproc-per-node 2 --nnodes 1 --rdzv-endpoint localhost:{port}"
        + (f" --rdzv-backend {backend}" if backend else ""),
        _MEETS,
        words=("{script}", "tcp://localhost:{port}"),
        job_id="none",
        differs=differs,
        since=since,
    )
    for backend, covers, differs, since in (
        ("", "static", (), ""),
        ("c10d", "c10d", ("named endpoint",), "2.15"),
    )
]


_ROLES: Final = "--nnodes 3 --master-addr 127.0.0.1 --master-port {port} --rdzv-id roles "

NODES: Final = [
    Row(
        "three agents, two roles",
        "role static nnodes node-rank",
        _ROLES,
        agents=(
            "--node-rank 0 --role trainer --nproc-per-node 2",
            "--node-rank 1 --role ps --nproc-per-node 1",
            "--node-rank 2 --role trainer --nproc-per-node 3",
        ),
        job_id="roles",
        differs=("port",),
    ),
    Row(
        "two agents",
        "c10d nnodes rdzv-conf",
        "--nnodes 2 --rdzv-backend c10d --rdzv-endpoint localhost:{port} --rdzv-id two "
        "--nproc-per-node 2 --local-addr 127.0.0.1 --rdzv-conf 'timeout=60',unknown=7",
        agents=("--rdzv-conf is_host=1", "--rdzv-conf is_host=0"),
        job_id="two",
    ),
    Row(
        "two agents on IPv6",
        "c10d rdzv-endpoint",
        "--nnodes 2:2 --rdzv-backend c10d --rdzv-endpoint [::1]:{port} --rdzv-id six "
        "--local-addr ::1",
        agents=("", ""),
        job_id="six",
    ),
    Row(
        "too few nodes",
        "rdzv-conf c10d",
        "--nnodes 2 --rdzv-backend c10d --rdzv-endpoint localhost:{port} --rdzv-id few "
        "--rdzv-conf join_timeout=1,timeout=1",
        job_id="few",
        differs=("rendezvous failed",),
    ),
]


def _faked(torchrun: str, ft_run: str) -> Surroundings:
    return Surroundings(prelude={"torchrun": torchrun, "ft-run": ft_run})


_ONE_CPU: Final = "import os\nos.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"

_TWO_GPUS: Final = {
    "torchrun": """
import types, torch
torch.cuda.is_available = torch.accelerator.is_available = lambda: True
torch.cuda.device_count = torch.accelerator.device_count = lambda: 2
torch.accelerator.current_accelerator = lambda: torch.device("cuda")
torch.cuda.get_device_properties = lambda index: types.SimpleNamespace(
    pci_domain_id=0, pci_bus_id=index + 1, pci_device_id=0)
""",
    "ft-run": """
import types
from ft_run.launcher.machine import accelerators
from ft_run.launcher.machine.nvml import read_gpus
nvml = types.SimpleNamespace(
    NVMLError=OSError, nvmlInit=lambda: None, nvmlShutdown=lambda: None,
    nvmlDeviceGetCount=lambda: 2, nvmlDeviceGetHandleByIndex=lambda index: index,
    nvmlDeviceGetUUID=lambda index: f"GPU-{index}",
    nvmlDeviceGetPciInfo=lambda index: types.SimpleNamespace(domain=0, bus=index + 1, device=0))
accelerators._nvidia_gpus = lambda: read_gpus(nvml)
""",
}
"""A machine with two GPUs, as each launcher looks for them."""

_TWO_AMD_GPUS: Final = {
    **_TWO_GPUS,  # which torch for ROCm calls cuda too
    "ft-run": """
from ft_run.launcher.machine import accelerators
accelerators._read_kfd_gpus = lambda root: [
    accelerators._Installed((), f"0000:{bus:02}:00.0") for bus in (1, 2)]
""",
}


def _numa(prelude: dict[str, str]) -> Surroundings:
    nodes, devices = "/sys/devices/system/node", "/sys/bus/pci/devices"
    return Surroundings(prelude=prelude, mounts={nodes: "numa/node", devices: "numa/pci"})


_NUMACTL: Final = {"PATH": "{dir}/bin:/usr/bin:/bin"}


def _cgroup_mount() -> str:
    """Return where the controller of CPUs, version 1 or 2, is mounted."""
    found = "/sys/fs/cgroup"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        if kind == "cgroup2" or (kind == "cgroup" and "cpu" in options.split(",")):
            found = before.split(" ")[4]
            if kind == "cgroup":
                break
    return found


MACHINES: Final = [
    *(
        Row(f"a limit of one CPU, {word}", "nproc-per-node",
            f"--standalone --nproc-per-node {word}",
            surroundings=Surroundings(mounts={_cgroup_mount(): "cgroup"}), needs_root=True,
            differs=("worker count",))
        for word in ("auto", "cpu")
    ),
    Row("one CPU of several, auto", "nproc-per-node", "--standalone --nproc-per-node auto",
        surroundings=_faked(_ONE_CPU, _ONE_CPU)),
    Row("one CPU of several, cpu", "nproc-per-node", "--standalone --nproc-per-node=cpu",
        surroundings=_faked(_ONE_CPU, _ONE_CPU)),
    Row("two GPUs, auto", "nproc-per-node", "--standalone --nproc-per-node auto",
        surroundings=Surroundings(prelude=_TWO_GPUS)),
    Row("two GPUs, gpu", "nproc-per-node virtual-local-rank",
        "--standalone --nproc_per_node gpu --virtual_local_rank",
        surroundings=Surroundings(prelude=_TWO_GPUS)),
    *(
        Row(f"NUMA binding, {mode}", "numa-binding", f"{PAIR}--numa-binding {mode}",
            env=_NUMACTL, surroundings=_numa(_TWO_GPUS), needs_root=True)
        for mode in ("node", "exclusive")
    ),
    Row("NUMA binding, AMD", "numa-binding", PAIR + "--numa-binding node",
        env=_NUMACTL, surroundings=_numa(_TWO_AMD_GPUS), needs_root=True),
    Row("no NUMA binding by itself", "numa-binding", PAIR,
        env=_NUMACTL, surroundings=_numa(_TWO_GPUS), needs_root=True),
    Row("the default port", "rdzv-endpoint", "--rdzv-backend c10d --rdzv-endpoint 127.0.0.1 "
        "--rdzv-id port", job_id="port", surroundings=Surroundings(network=True), needs_root=True),
]  # fmt: skip
