"""The number of workers of a node, from ``--nproc-per-node`` and ``--accelerator``."""

from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from ...errors import UsageError
from .accelerators import AUTO, GPUS, AcceleratorKind, Accelerators, find_accelerators
from .cpu_limit import CpuLimit, allowed_cpus, read_cpu_limit

_NOTHING_TO_COUNT = (
    "no accelerator and no CPU limit; --nproc-per-node cpu starts a worker per CPU, as torchrun "
    "does"
)

_MOST = 16_384
"""A higher number is refused before an environment is made for each worker: no host supports it."""


class WorkerCount(Struct, frozen=True):
    """The number of workers of this node (at least 1), and its source, for the log."""

    count: int
    source: str


def resolve_worker_count(
    nproc_per_node: str,
    accelerator: str,
    environ: Mapping[str, str],
    *,
    virtual_local_rank: bool = False,
    root: Path = Path("/"),
) -> WorkerCount:
    """Return the number of workers of ``--nproc-per-node`` on this machine.

    An integer is used without inspecting the machine. ``gpu``: the GPUs (NVIDIA, else AMD);
    ``xpu``: Intel's; ``cpu``: the CPU limit, else the CPUs this process may run on; ``auto``: the
    accelerators if there are any, else the CPU limit, else 1. ``accelerator`` restricts ``auto``
    and ``gpu``. With ``virtual_local_rank`` each worker is shown one device, so every MIG device
    counts; otherwise a process can use only one of them.

    Raises:
        UsageError: If no host supports the count, a kind is not available, or two options
            contradict each other.
    """
    try:
        count = int(nproc_per_node)
    except ValueError:
        pass
    else:
        if count > _MOST:
            raise UsageError(
                f"--nproc-per-node={count} is more than {_MOST}; give as many workers as this host"
                " has accelerators or CPUs, or auto."
            )
        return WorkerCount(count, "fixed number")
    if nproc_per_node == "cpu":
        return _count_cpus(root)
    kinds = _kinds(nproc_per_node)
    wanted = None if accelerator == AUTO else AcceleratorKind(accelerator)
    if wanted is not None:
        if nproc_per_node != "auto" and wanted not in kinds:
            raise UsageError(
                f"--nproc-per-node={nproc_per_node} conflicts with --accelerator={accelerator}; "
                "give --nproc-per-node=auto, or leave --accelerator out."
            )
        kinds = (wanted,)
    looked_at = [find_accelerators(kind, environ, root=root) for kind in kinds]
    found = [accelerators for accelerators in looked_at if accelerators.count]
    if found:
        return _workers(*found, virtual_local_rank=virtual_local_rank)
    if nproc_per_node != "auto":
        noun = "Intel GPU" if nproc_per_node == "xpu" else "NVIDIA or AMD GPU"
        seen = "; ".join(accelerators.source for accelerators in looked_at)
        raise UsageError(
            f"--nproc-per-node={nproc_per_node} needs an {noun} and none is visible ({seen}); "
            "make one visible, or give --nproc-per-node=cpu or a number."
        )
    if wanted not in (None, AcceleratorKind.CPU):
        raise UsageError(
            f"--accelerator={accelerator} finds none of its kind ({looked_at[0].source}); "
            "make one visible, or give --accelerator=cpu or a number of workers."
        )
    limit = read_cpu_limit(root)
    if limit is None:
        return WorkerCount(1, _NOTHING_TO_COUNT)
    return WorkerCount(limit.cpus, limit.source)


def omp_num_threads(
    environ: Mapping[str, str], worker_count: int, cpu_limit: CpuLimit | None
) -> str | None:
    """Return the ``OMP_NUM_THREADS`` of the workers; None to leave it unchanged.

    As with torchrun, it is 1 with several workers. A single worker gets the CPU limit, because
    OpenMP by default starts a thread for each CPU of the machine, regardless of the quota.
    """
    if "OMP_NUM_THREADS" in environ:
        return None
    if worker_count > 1:
        return "1"
    return None if cpu_limit is None else str(cpu_limit.cpus)


def _kinds(name: str) -> tuple[AcceleratorKind, ...]:
    """Return the kinds of accelerators that ``auto``, ``gpu`` or ``xpu`` counts, in order."""
    if name == "xpu":
        return (AcceleratorKind.XPU,)
    return GPUS if name == "gpu" else (*GPUS, AcceleratorKind.ASCEND)


def _workers(chosen: Accelerators, *others: Accelerators, virtual_local_rank: bool) -> WorkerCount:
    count, source = chosen.count, chosen.source
    if not virtual_local_rank and chosen.per_process != count:
        count = chosen.per_process
        source += (
            "; a process can use one MIG device, and --virtual-local-rank would give each worker"
            " its own"
        )
    for other in others:
        source += f"; not counted: {other.count} that --accelerator={other.kind.value} would choose"
    return WorkerCount(count, source)


def _count_cpus(root: Path) -> WorkerCount:
    limit = read_cpu_limit(root)
    if limit is not None:
        return WorkerCount(limit.cpus, limit.source)
    count = len(allowed_cpus())
    return WorkerCount(count, f"no CPU limit, {count} CPUs to run on")
