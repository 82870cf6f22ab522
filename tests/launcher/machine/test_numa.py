"""NUMA binding on a faked machine: two sockets, four NUMA nodes, two threads a core.

Node n holds cores 8n … 8n+7 with the second threads at 32 above, in two groups of four cores
with a common L3 cache. CPU 9 is thus core 9 of node 1, and CPU 41 is its second thread.
"""

import contextlib
from collections.abc import Iterator, Set
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from ft_run.errors import UsageError
from ft_run.launcher.machine.cpu_limit import format_cpus, parse_cpus
from ft_run.launcher.machine.numa import (
    NumaBinding,
    Topology,
    bind_workers,
    find_gpu_node,
    read_topology,
)
from hypothesis import given
from hypothesis import strategies as st

NODES = 4
CORES = 32
EVERY_CPU = frozenset(range(2 * CORES))


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree of ``/sys``; node 4 is memory only, GPU 0000:0g:00.0 is on node g."""
    root = tmp_path_factory.mktemp("machine")
    system = "sys/devices/system"
    write(root, f"{system}/cpu/online", f"0-{2 * CORES - 1}")
    write(root, f"{system}/node/online", f"0-{NODES}")
    write(root, f"{system}/node/node{NODES}/cpulist", "")
    for node in range(NODES):
        first = 8 * node
        cpus = f"{first}-{first + 7},{first + 32}-{first + 39}"
        write(root, f"{system}/node/node{node}/cpulist", cpus)
        write(root, f"sys/bus/pci/devices/0000:0{node}:00.0/numa_node", str(node))
    write(root, "sys/bus/pci/devices/0000:0f:00.0/numa_node", "-1")
    for cpu in EVERY_CPU:
        core = cpu % CORES
        group = core // 4 * 4
        entry = f"{system}/cpu/cpu{cpu}"
        write(root, f"{entry}/topology/physical_package_id", str(core // 16))
        write(root, f"{entry}/topology/thread_siblings_list", f"{core},{core + 32}")
        own = f"{core},{core + 32}"
        shared = f"{group}-{group + 3},{group + 32}-{group + 35}"
        caches = [(1, "Data", own), (1, "Instruction", own), (2, "Unified", own)]
        for index, (level, kind, sharing) in enumerate([*caches, (3, "Unified", shared)]):
            write(root, f"{entry}/cache/index{index}/level", str(level))
            write(root, f"{entry}/cache/index{index}/type", kind)
            write(root, f"{entry}/cache/index{index}/shared_cpu_list", sharing)
    return root


@pytest.fixture(scope="module")
def topology(machine: Path) -> Topology:
    return read_topology(machine)


def plan(
    root: Path, mode: str, *nodes: int, allowed: Set[int] = EVERY_CPU, workers: int = 0
) -> list[str]:
    """Return the CPUs of the workers (0: one per GPU), in the kernel's notation."""
    places = [find_gpu_node(f"0000:0{node}:00.0", root) for node in nodes]
    bound = bind_workers(
        NumaBinding(mode), read_topology(root), places, allowed, workers or len(nodes)
    )
    return [format_cpus(cpus) for cpus in bound]


def test_topology(topology: Topology) -> None:
    assert {node: len(cpus) for node, cpus in topology.node_cpus.items()} == {
        0: 16,
        1: 16,
        2: 16,
        3: 16,
        4: 0,
    }
    assert (topology.socket_of[15], topology.socket_of[16], topology.socket_of[47]) == (0, 1, 0)
    assert (topology.core_of[9], topology.core_of[41]) == (9, 9)
    assert (topology.cache_of[7], topology.cache_of[39], topology.cache_of[8]) == (4, 4, 8)


@pytest.mark.parametrize(
    ("mode", "nodes", "allowed", "expected"),
    [
        ("node", (0, 3, 0), EVERY_CPU, ["0-7,32-39", "24-31,56-63", "0-7,32-39"]),
        ("socket", (0, 1, 3), EVERY_CPU, ["0-15,32-47", "0-15,32-47", "16-31,48-63"]),
        # The first GPUs of a node get what remains.
        ("exclusive", (0, 0, 0), EVERY_CPU, ["0-2,32-34", "3-5,35-37", "6-7,38-39"]),
        ("exclusive", (0, 0), parse_cpus("2-4,34"), ["2-3,34", "4"]),
        # Those with the most allowed CPUs first, and shared when they run out.
        ("core-complex", (0, 0, 0), EVERY_CPU, ["0-3,32-35", "4-7,36-39", "0-3,32-35"]),
        ("core-complex", (0, 0), parse_cpus("0,4-6"), ["4-6", "0"]),
    ],
)
def test_the_cpus_of_each_mode(
    machine: Path, mode: str, nodes: tuple[int, ...], allowed: Set[int], expected: list[str]
) -> None:
    """``test_binds_as_torch_does`` has the others."""
    assert plan(machine, mode, *nodes, allowed=allowed) == expected


def test_shares_are_cut_for_gpus_without_a_worker_too(machine: Path) -> None:
    assert plan(machine, "exclusive", 1, 1, workers=1) == ["8-11,40-43"]


def test_minus_one_is_node_0(machine: Path) -> None:
    assert find_gpu_node("0000:0f:00.0", machine) == 0
    assert find_gpu_node("0000:02:00.0", machine) == 2
    assert find_gpu_node("0000:99:00.0", machine) is None
    assert find_gpu_node(None, machine) is None


@pytest.mark.parametrize(
    ("mode", "nodes", "workers", "allowed", "sentence"),
    [
        (
            "node",
            (),
            1,
            EVERY_CPU,
            "--numa-binding=node puts workers near their GPUs and no GPU is visible; leave it out.",
        ),
        (
            "socket",
            (0, 1),
            3,
            EVERY_CPU,
            "--numa-binding=socket needs a GPU for each worker, and there are 3 workers for "
            "2 GPUs; give --nproc-per-node=2 or less, or leave it out.",
        ),
        (
            "node",
            (0, 9),
            2,
            EVERY_CPU,
            "--numa-binding=node needs the NUMA node of GPU 1, and this machine does not show "
            "it; leave it out.",
        ),
        (
            "node",
            (0, 2),
            2,
            frozenset(range(8)),
            "--numa-binding=node finds no CPU for GPU 1: none of its NUMA node 2 is among the "
            "CPUs 0-7 that this process may run on; widen them, or leave it out.",
        ),
        (
            "exclusive",
            (0, 0, 0),
            3,
            parse_cpus("0,1,32,33"),
            "--numa-binding=exclusive needs a core for each of the 3 GPUs of NUMA node 0, and "
            "this process may run on 2 of its cores; give --numa-binding=node.",
        ),
    ],
)
def test_refusals(
    mode: str,
    nodes: tuple[int, ...],
    workers: int,
    allowed: Set[int],
    sentence: str,
    machine: Path,
) -> None:
    with pytest.raises(UsageError) as refusal:
        plan(machine, mode, *nodes, allowed=allowed, workers=workers)
    assert refusal.value.sentence == sentence


def test_a_virtual_machine_shows_little(tmp_path: Path) -> None:
    write(tmp_path, "sys/devices/system/cpu/online", "0-3")
    write(tmp_path, "sys/devices/system/cpu/cpu0/topology/physical_package_id", "-1")
    topology = read_topology(tmp_path)
    assert topology.node_cpus == {0: {0, 1, 2, 3}}
    assert set(topology.socket_of.values()) == {0}

    def bind(binding: NumaBinding) -> list[str]:
        bound = bind_workers(binding, topology, [0, 0], frozenset(range(4)), 2)
        return [format_cpus(cpus) for cpus in bound]

    assert bind(NumaBinding.SOCKET) == ["0-3", "0-3"]
    assert bind(NumaBinding.EXCLUSIVE) == ["0-1", "2-3"]
    with pytest.raises(UsageError, match=r"which CPUs share a cache.*--numa-binding=node\.$"):
        bind(NumaBinding.CORE_COMPLEX)


def test_a_machine_that_shows_nothing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="finds no CPU for GPU 0"):
        bind_workers(NumaBinding.NODE, read_topology(tmp_path), [0], frozenset({0}), 1)


def test_this_machine_can_be_read() -> None:
    topology = read_topology()
    cpus = frozenset[int]().union(*topology.node_cpus.values())
    assert cpus == topology.socket_of.keys() == topology.core_of.keys()


PLACES = st.lists(st.integers(0, NODES - 1), min_size=1, max_size=8)
MASKS = st.sets(st.sampled_from(sorted(EVERY_CPU)), min_size=1)


@given(nodes=PLACES, allowed=MASKS)
def test_exclusive_shares_no_core(nodes: list[int], allowed: Set[int], topology: Topology) -> None:
    try:
        bound = bind_workers(NumaBinding.EXCLUSIVE, topology, nodes, allowed, len(nodes))
    except UsageError:
        return
    cores = [{topology.core_of[cpu] for cpu in cpus} for cpus in bound]
    assert sum(map(len, cores)) == len(set().union(*cores))
    used = frozenset[int]().union(*bound)
    near = frozenset[int]().union(*(topology.node_cpus[node] for node in nodes))
    assert used == near & allowed


@contextlib.contextmanager
def torch_on(topology: Topology, nodes: list[int], allowed: Set[int]) -> Iterator[Any]:
    """``torch.numa.binding`` with its reads of the machine answered from ``topology``."""
    binding = pytest.importorskip("torch.numa.binding")

    def same(group_of: dict[int, int], cpu: int) -> set[int]:
        return {other for other, name in group_of.items() if name == group_of[cpu]}

    answers = {
        "_get_cpu_indices_for_numa_node_MAYBE_NOT_ALLOWED": lambda *, numa_node_index: set(
            topology.node_cpus[numa_node_index]
        ),
        **_of_devices(binding, nodes),
        "_get_allowed_cpu_indices_for_current_thread": lambda: set(allowed),
        "_get_socket_index_for_cpu": lambda *, cpu_index: topology.socket_of[cpu_index],
        "_get_systemwide_numa_node_indices": lambda: {
            node for node, cpus in topology.node_cpus.items() if cpus & allowed
        },
        "_get_logical_cpu_indices_sharing_same_physical_core_as": lambda *, logical_cpu_index: same(
            dict(topology.core_of), logical_cpu_index
        ),
        "_get_logical_cpus_sharing_same_max_level_cache_as": lambda *, logical_cpu_index: same(
            dict(topology.cache_of), logical_cpu_index
        ),
    }
    with contextlib.ExitStack() as stack:
        for name, answer in answers.items():
            stack.enter_context(mock.patch.object(binding, name, answer))
        yield binding


def _of_devices(binding: Any, nodes: list[int]) -> dict[str, Any]:
    if hasattr(binding, "_get_gpu_count"):  # before torch 2.15
        return {
            "_get_gpu_count": lambda: len(nodes),
            "_get_numa_node_index_for_gpu_index": lambda *, gpu_index: nodes[gpu_index],
        }
    return {
        "_get_device_count": lambda: len(nodes),
        "_get_numa_node_index_for_device_index": lambda *, device_index: nodes[device_index],
    }


@pytest.mark.parametrize("mode", [mode.value for mode in NumaBinding])
@given(nodes=PLACES, allowed=MASKS)
def test_binds_as_torch_does(
    mode: str, nodes: list[int], allowed: Set[int], topology: Topology
) -> None:
    try:
        ours = bind_workers(NumaBinding(mode), topology, nodes, allowed, len(nodes))
    except UsageError:
        return
    with torch_on(topology, nodes, allowed) as binding:
        options = binding.NumaOptions(binding.AffinityMode(mode))
        index = "gpu_index" if hasattr(binding, "_get_gpu_count") else "device_index"
        for gpu, cpus in enumerate(ours):
            theirs = binding._get_logical_cpus_to_bind_to(**{index: gpu}, numa_options=options)
            assert cpus == theirs
