"""The number of workers of a node, from ``--nproc-per-node`` and ``--accelerator``."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ...errors import UsageError
from ...values import dataclass

# The modules that inspect the machine are imported where they are needed: a plain number needs none
# of them, and they would delay the first line of a worker.
if TYPE_CHECKING:
    from .accelerators import AcceleratorKind, Accelerators
    from .cpu_limit import CpuLimit


_NOTHING_TO_COUNT = (
    "no accelerator and no CPU limit; --nproc-per-node cpu starts a worker per CPU, as torchrun "
    "does"
)

_MOST = 16_384
"""More workers are refused, before an environment is made for each: no host supports them."""


@dataclass(frozen=True, slots=True)
class WorkerCount:
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

    An integer is used as it is, without a look at the machine. ``gpu``: the GPUs (NVIDIA, else
    AMD); ``xpu``: Intel's; ``cpu``: the CPU limit, else the CPUs this process may run on; ``auto``:
    the accelerators if there are any, else the CPU limit, else 1.

    Args:
        nproc_per_node: an integer of at least 1, ``auto``, ``cpu``, ``gpu`` or ``xpu``, validated
            by the command line.
        accelerator: ``--accelerator``: the kind that ``auto`` and ``gpu`` count; ignored with a
            number or ``cpu``.
        environ: the agent's environment, with the ``…_VISIBLE_DEVICES`` variables.
        virtual_local_rank: each worker is shown one device, so that MIG devices, of which one
            process can use one, count for as many workers.
        root: the directory below which ``proc``, ``sys`` and ``dev`` are looked up.

    Raises:
        UsageError: a count that no host supports, a kind that is not available, or two options that
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
    from .accelerators import AUTO, AcceleratorKind

    wanted = None if accelerator == AUTO else AcceleratorKind(accelerator)
    search = _Search(wanted, environ, root, virtual_local_rank)
    return _count_auto(search) if nproc_per_node == "auto" else _count(nproc_per_node, search)


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


class _Search(NamedTuple):
    """The kinds of accelerators to find, and how they count."""

    wanted: "AcceleratorKind | None"
    environ: Mapping[str, str]
    root: Path
    virtual_local_rank: bool

    def look(self, kinds: "Iterable[AcceleratorKind]") -> "list[Accelerators]":
        from .accelerators import find_accelerators

        return [find_accelerators(kind, self.environ, root=self.root) for kind in kinds]

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
    from .cpu_limit import read_cpu_limit

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
    limit = read_cpu_limit(search.root)
    if limit is None:
        return WorkerCount(1, _NOTHING_TO_COUNT)
    return WorkerCount(limit.cpus, limit.source)


def _count_cpus(root: Path) -> WorkerCount:
    from .cpu_limit import allowed_cpus, read_cpu_limit

    limit = read_cpu_limit(root)
    if limit is not None:
        return WorkerCount(limit.cpus, limit.source)
    count = len(allowed_cpus())
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
