"""The number of workers of a node, from ``--nproc-per-node`` and ``--accelerator``."""

from collections.abc import Iterable, Mapping, Set
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ...errors import UsageError
from ...values import dataclass

# The modules that inspect the machine are imported where they are needed: a plain number needs none
# of them, and they would delay the first line of a worker.
if TYPE_CHECKING:
    from .accelerators import AcceleratorKind, Accelerators
    from .cpu_limit import CpuLimit
    from .nvml import NvmlLoader


_NOTHING_TO_COUNT = (
    "no accelerator and no CPU limit; --nproc-per-node cpu starts a worker per CPU, as torchrun "
    "does"
)

_PLAUSIBLE = 1024
"""Up to this many workers the kernel's limit of processes is not checked."""


@dataclass(frozen=True, slots=True)
class WorkerCount:
    """The number of workers of this node (at least 1), and its source, for the log."""

    count: int
    source: str


class Machine(NamedTuple):
    """The machine to inspect; the defaults are the real one.

    ``affinity`` and ``machine_cpus`` as in :func:`.cpu_limit.read_cpu_limit`,
    ``nvml`` as in :func:`.accelerators.find_accelerators`.
    """

    root: Path = Path("/")
    nvml: "NvmlLoader | None" = None
    affinity: Set[int] | None = None
    machine_cpus: int | None = None

    def accelerators(self, kind: "AcceleratorKind", environ: Mapping[str, str]) -> "Accelerators":
        """Return the usable accelerators of a kind; ``environ`` may hide some of them."""
        from .accelerators import find_accelerators

        return find_accelerators(kind, environ, root=self.root, nvml=self.nvml)

    def cpu_limit(self) -> "CpuLimit | None":
        """Return the CPU limit of this process's cgroup; None where there is none."""
        from .cpu_limit import read_cpu_limit

        return read_cpu_limit(self.root, affinity=self.affinity, machine_cpus=self.machine_cpus)

    def allowed_cpus(self) -> Set[int]:
        """Return the numbers of the CPUs on which this process may run."""
        from .cpu_limit import allowed_cpus

        return allowed_cpus() if self.affinity is None else self.affinity


def resolve_worker_count(
    nproc_per_node: str,
    accelerator: str,
    environ: Mapping[str, str],
    *,
    virtual_local_rank: bool = False,
    machine: Machine | None = None,
) -> WorkerCount:
    """Return the number of workers of ``--nproc-per-node`` on this machine.

    An integer is used as it is; only one in the thousands is checked against the machine. ``gpu``:
    the GPUs (NVIDIA, else AMD); ``xpu``: Intel's; ``cpu``: the CPU limit, else the CPUs this
    process may run on; ``auto``: the accelerators if there are any, else the CPU limit, else 1.

    Args:
        nproc_per_node: an integer of at least 1, ``auto``, ``cpu``, ``gpu`` or ``xpu``, validated
            by the command line.
        accelerator: ``--accelerator``: the kind that ``auto`` and ``gpu`` count; ignored with a
            number or ``cpu``.
        environ: the agent's environment, with the ``…_VISIBLE_DEVICES`` variables.
        virtual_local_rank: each worker is shown one device, so that MIG devices, of which one
            process can use one, count for as many workers.
        machine: the machine to inspect; None: this machine.

    Raises:
        UsageError: a count beyond the kernel's limit, a kind that is not available, or two
            options that contradict each other.
    """
    try:
        count = int(nproc_per_node)
    except ValueError:
        pass
    else:
        _refuse_impossible(count, machine or Machine())
        return WorkerCount(count, "fixed number")
    machine = machine or Machine()
    if nproc_per_node == "cpu":
        return _count_cpus(machine)
    search = _Search(_wanted(accelerator), environ, machine, virtual_local_rank)
    return _count_auto(search) if nproc_per_node == "auto" else _count(nproc_per_node, search)


def _refuse_impossible(count: int, machine: Machine) -> None:
    """Refuse a count that no host supports, before an environment is made for each worker."""
    if count <= _PLAUSIBLE:
        return
    from .shortage import most_processes

    most = most_processes(machine.root)
    if most is not None and count > most:
        raise UsageError(
            f"--nproc-per-node={count} is more than the {most} processes that this host can have; "
            "give as many workers as it has accelerators or CPUs, or auto."
        )


def omp_num_threads(
    environ: Mapping[str, str], worker_count: int, cpu_limit: "CpuLimit | None"
) -> str | None:
    """Return the ``OMP_NUM_THREADS`` of the workers; None: unchanged.

    As with torchrun, it is 1 with several workers. A single worker gets the CPU limit, since OpenMP
    by default starts a thread for each CPU of the machine, regardless of the quota.
    """
    if "OMP_NUM_THREADS" in environ:
        return None
    if worker_count > 1:
        return "1"
    return None if cpu_limit is None else str(cpu_limit.cpus)


def _wanted(text: str) -> "AcceleratorKind | None":
    """Return the kind that ``--accelerator`` names; None for ``auto``."""
    from .accelerators import AUTO, AcceleratorKind

    return None if text == AUTO else AcceleratorKind(text)


class _Search(NamedTuple):
    """The kinds of accelerators to find, and how they count."""

    wanted: "AcceleratorKind | None"
    environ: Mapping[str, str]
    machine: Machine
    virtual_local_rank: bool

    def look(self, kinds: "Iterable[AcceleratorKind]") -> "list[Accelerators]":
        return [self.machine.accelerators(kind, self.environ) for kind in kinds]

    def workers(self, accelerators: "Accelerators") -> WorkerCount:
        if self.virtual_local_rank or accelerators.per_process == accelerators.count:
            return WorkerCount(accelerators.count, accelerators.source)
        return WorkerCount(
            accelerators.per_process,
            f"{accelerators.source}; a process can use one MIG device, and "
            "--virtual-local-rank would give each worker its own",
        )


def _count_auto(search: _Search) -> WorkerCount:
    from .accelerators import AcceleratorKind

    wanted = search.wanted
    in_order = (AcceleratorKind.NVIDIA, AcceleratorKind.AMD, AcceleratorKind.ASCEND)
    kinds = in_order if wanted is None else (wanted,)
    looked_at = search.look(kinds)
    found = [accelerators for accelerators in looked_at if accelerators.count]
    if found:
        chosen = search.workers(found[0])
        ignored = "".join(
            f"; not counted: {other.count} that --accelerator={other.kind.value} would choose"
            for other in found[1:]
        )
        return WorkerCount(chosen.count, chosen.source + ignored)
    if wanted not in (None, AcceleratorKind.CPU):
        raise UsageError(
            f"--accelerator={wanted.value} finds none of its kind ({looked_at[0].source}); "
            "make one visible, or give --accelerator=cpu or a number of workers."
        )
    limit = search.machine.cpu_limit()
    if limit is None:
        return WorkerCount(1, _NOTHING_TO_COUNT)
    return WorkerCount(limit.cpus, limit.source)


def _count_cpus(machine: Machine) -> WorkerCount:
    limit = machine.cpu_limit()
    if limit is not None:
        return WorkerCount(limit.cpus, limit.source)
    count = len(machine.allowed_cpus())
    return WorkerCount(count, f"no CPU limit, {count} CPUs to run on")


def _count(name: str, search: _Search) -> WorkerCount:
    """Count the devices of ``gpu`` or ``xpu``; ``--accelerator`` restricts the kinds."""
    from .accelerators import AcceleratorKind

    kinds: tuple[AcceleratorKind, ...]
    if name == "gpu":
        noun, kinds = "NVIDIA or AMD GPU", (AcceleratorKind.NVIDIA, AcceleratorKind.AMD)
    else:
        noun, kinds = "Intel GPU", (AcceleratorKind.XPU,)
    if search.wanted is not None:
        if search.wanted not in kinds:
            raise UsageError(
                f"--nproc-per-node={name} conflicts with --accelerator={search.wanted.value}; "
                "give --nproc-per-node=auto, or leave --accelerator out."
            )
        kinds = (search.wanted,)
    looked_at = search.look(kinds)
    for accelerators in looked_at:
        if accelerators.count:
            return search.workers(accelerators)
    seen = "; ".join(accelerators.source for accelerators in looked_at)
    raise UsageError(
        f"--nproc-per-node={name} needs an {noun} and none is visible ({seen}); "
        "make one visible, or give --nproc-per-node=cpu or a number."
    )
