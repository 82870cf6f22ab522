"""The CPUs of each worker under ``--numa-binding``: those near its GPU.

The modes are torchrun's (``torch.numa.binding.AffinityMode``). The topology is read from ``/sys``
(the kernel's ``admin-guide/cputopology.rst`` and ``ABI/stable/sysfs-devices-node``). This module
does not change an affinity mask.
"""

import enum
import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import Final

from msgspec import Struct

from ...errors import UsageError
from .cgroups import read_text
from .cpu_limit import format_cpus, parse_cpus

_ROOT: Final = Path("/")


class NumaBinding(enum.Enum):
    """The CPUs a worker gets, given the NUMA node of the GPU with its local rank."""

    NODE = "node"
    """All CPUs of that NUMA node."""
    SOCKET = "socket"
    """All CPUs of all NUMA nodes of that node's socket."""
    EXCLUSIVE = "exclusive"
    """An equal part of that node's physical cores, not shared with workers of other GPUs."""
    CORE_COMPLEX = "core-complex"
    """One group of cores with a common last-level cache on that node, a different one for each GPU
    if there are enough."""


class Topology(Struct, frozen=True):
    """The CPUs of a machine and their groups. A group is named by its lowest CPU."""

    node_cpus: Mapping[int, frozenset[int]]
    """NUMA node → its CPUs; empty for a memory-only node."""
    socket_of: Mapping[int, int]
    """CPU → physical package."""
    core_of: Mapping[int, int]
    """CPU → physical core."""
    cache_of: Mapping[int, int]
    """CPU → last-level cache, if the kernel shows it."""


def read_topology(root: Path = _ROOT) -> Topology:
    """Return the topology of this machine; a kernel without NUMA is one node with all CPUs.

    If a virtual machine does not show it, each CPU is a core, and all CPUs are in one socket.
    """
    cpu_root = root / "sys/devices/system/cpu"
    node_root = root / "sys/devices/system/node"
    nodes = {
        number: _read_cpus(node_root / f"node{number}" / "cpulist")
        for number in _numbers(node_root, "node")
    }
    if not any(nodes.values()):
        nodes = {0: _read_cpus(cpu_root / "online")}
    cpus = sorted(frozenset().union(*nodes.values()))
    sockets: dict[int, int] = {}
    cores: dict[int, int] = {}
    caches: dict[int, int] = {}
    for cpu in cpus:
        folder = cpu_root / f"cpu{cpu}"
        package = read_text(folder / "topology/physical_package_id").strip()
        sockets[cpu] = int(package) if package.isdecimal() else 0
        cores[cpu] = min(_read_cpus(folder / "topology/thread_siblings_list"), default=cpu)
        sharing = _last_level_cache(folder / "cache")
        if sharing:
            caches[cpu] = min(sharing)
    return Topology(nodes, sockets, cores, caches)


def find_gpu_node(pci_address: str | None, root: Path = _ROOT) -> int | None:
    """Return the NUMA node of a PCI device; None if unknown."""
    if pci_address is None:
        return None
    text = read_text(root / "sys/bus/pci/devices" / pci_address / "numa_node").strip()
    if not re.fullmatch(r"-?[0-9]+", text):
        return None
    return max(0, int(text))  # a machine with one node reports -1


def bind_workers(
    binding: NumaBinding,
    topology: Topology,
    gpu_nodes: Sequence[int | None],
    allowed: Set[int],
    worker_count: int,
) -> tuple[frozenset[int], ...]:
    """Return the CPUs of each worker, by local rank; no set is empty.

    Worker ``r`` belongs to GPU ``r``, on ``gpu_nodes[r]`` (None if unknown). Parts (``exclusive``,
    ``core-complex``) are made for all visible GPUs of a node, as by torchrun, even if there are
    fewer workers than GPUs.

    Raises:
        UsageError: If a worker has no GPU, the node of a GPU is unknown, or a node has too few
            allowed CPUs for the mode.
    """
    option = f"--numa-binding={binding.value}"
    if not gpu_nodes:
        raise UsageError(
            f"{option} puts workers near their GPUs and no GPU is visible; leave it out."
        )
    if worker_count > len(gpu_nodes):
        raise UsageError(
            f"{option} needs a GPU for each worker, and there are {worker_count} workers for "
            f"{len(gpu_nodes)} GPUs; give --nproc-per-node={len(gpu_nodes)} or less, "
            "or leave it out."
        )
    return tuple(
        _bind_one(binding, topology, gpu_nodes, allowed, gpu) for gpu in range(worker_count)
    )


def _bind_one(
    binding: NumaBinding,
    topology: Topology,
    gpu_nodes: Sequence[int | None],
    allowed: Set[int],
    gpu: int,
) -> frozenset[int]:
    option = f"--numa-binding={binding.value}"
    node = gpu_nodes[gpu]
    if node is None:
        raise UsageError(
            f"{option} needs the NUMA node of GPU {gpu}, and this machine does not show it; "
            "leave it out."
        )
    cpus = topology.node_cpus.get(node, frozenset()) & allowed
    if not cpus:
        raise UsageError(
            f"{option} finds no CPU for GPU {gpu}: none of its NUMA node {node} is among the "
            f"CPUs {format_cpus(allowed)} that this process may run on; widen them, "
            "or leave it out."
        )
    # The position of the GPU among the GPUs of this node, and their number.
    turn, turns = gpu_nodes[:gpu].count(node), gpu_nodes.count(node)
    if binding is NumaBinding.SOCKET:
        return _socket_cpus(topology, node) & allowed
    if binding is NumaBinding.EXCLUSIVE:
        cores = _group(cpus, topology.core_of.__getitem__)
        if len(cores) < turns:
            raise UsageError(
                f"{option} needs a core for each of the {turns} GPUs of NUMA node {node}, and "
                f"this process may run on {len(cores)} of its cores; give --numa-binding=node."
            )
        return frozenset().union(*_share(cores, turn, turns))
    if binding is NumaBinding.CORE_COMPLEX:
        if not cpus <= topology.cache_of.keys():
            raise UsageError(
                f"{option} needs to know which CPUs share a cache, and this machine does not "
                "show it; give --numa-binding=node."
            )
        complexes = _group(cpus, topology.cache_of.__getitem__)
        # Complexes with the most allowed CPUs first: an affinity mask can split a complex.
        complexes.sort(key=len, reverse=True)
        return complexes[turn % len(complexes)]
    return cpus


def _socket_cpus(topology: Topology, node: int) -> frozenset[int]:
    sockets = {topology.socket_of[cpu] for cpu in topology.node_cpus[node]}
    return frozenset(cpu for cpu, socket in topology.socket_of.items() if socket in sockets)


def _group(cpus: Iterable[int], group_of: Callable[[int], int]) -> list[frozenset[int]]:
    """Return ``cpus`` in groups, in the order of the groups' names."""
    groups: dict[int, set[int]] = {}
    for cpu in cpus:
        groups.setdefault(group_of(cpu), set()).add(cpu)
    return [frozenset(groups[name]) for name in sorted(groups)]


def _share(cores: Sequence[frozenset[int]], turn: int, turns: int) -> Sequence[frozenset[int]]:
    """Return the ``turn``-th of ``turns`` contiguous parts; the first ones get the remainder."""
    size, extra = divmod(len(cores), turns)
    start = turn * size + min(turn, extra)
    return cores[start : start + size + (turn < extra)]


def _last_level_cache(directory: Path) -> frozenset[int]:
    """Return the CPUs that share the highest cache of one CPU; empty if unknown."""
    highest, sharing = -1, frozenset[int]()
    for number in _numbers(directory, "index"):
        index = directory / f"index{number}"
        level = read_text(index / "level").strip()
        is_data = read_text(index / "type").strip() in ("Unified", "Data")
        if is_data and level.isdecimal() and int(level) > highest:
            highest, sharing = int(level), _read_cpus(index / "shared_cpu_list")
    return sharing


def _numbers(directory: Path, prefix: str) -> list[int]:
    """Return the numbers of the entries ``<prefix><number>`` of ``directory``, in order."""
    try:
        names = [path.name for path in directory.iterdir()]
    except OSError:
        return []
    matches = (re.fullmatch(rf"{prefix}([0-9]+)", name) for name in names)
    return sorted(int(match[1]) for match in matches if match)


def _read_cpus(path: Path) -> frozenset[int]:
    try:
        return parse_cpus(read_text(path))
    except ValueError:
        return frozenset()
