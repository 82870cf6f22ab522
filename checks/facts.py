"""Collects system information without torch: limits, space, versions, health of devices.

Files are read below an injectable root. Values that cannot be read are omitted.
"""

import hashlib
import math
import os
import platform
import re
import resource
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from importlib import metadata, util
from pathlib import Path
from typing import Final

from ..launcher.machine.cgroups import own_directories
from ..launcher.machine.nvml import NvmlLoader, load_nvml
from ..launcher.version import VERSION
from .gpu_facts import collect_gpu_facts
from .records import Fact
from .worker_config import CheckWorkerConfig

_BUILT_FOR: Final = re.compile(r"^(cuda|hip)(?:: [^=\n]+)? = ['\"]([^'\"]+)['\"]", re.MULTILINE)
_LIBRARIES: Final = {
    "nccl": ("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11"),
    "torch": ("torch",),
    "grpc": ("grpcio",),
}
_HASH_BYTES: Final = 16
_KERNEL_RECORD_MAX: Final = 8192
_PORT_ERRORS: Final = (
    "port_rcv_errors",
    "link_error_recovery",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
)
_PEER_MODULES: Final = ("nvidia_peermem", "nv_peer_mem")
_XIDS_OF_PROGRAMS: Final = frozenset({13, 31, 43, 45})
"""Errors that a program causes itself: a fault of its kernel, and its end. Source: NVIDIA, "XID
Errors"."""


def collect_facts(
    config: CheckWorkerConfig,
    environ: Mapping[str, str],
    unix_time_s: float = 0.0,
    *,
    root: Path = Path("/"),
    nvml: NvmlLoader = load_nvml,
) -> dict[str, Fact]:
    """Return the system information by name; units are in the names, GB are 10^9 bytes.

    Args:
        environ: environment that exposes all GPUs of the node's workers.
        unix_time_s: this node's clock when the other nodes read theirs; 0 for now.
        root: parent of ``proc``, ``sys`` and ``dev``.
        nvml: factory for the NVML interface.
    """
    facts: dict[str, Fact] = {"local_world_size": config.local_world_size}
    facts |= _versions(config.script)
    facts |= _torch_build({} if config.gpus_asked_by else config.gpus_shown)
    facts |= _limits(root)
    facts |= _disks(root, config.log_dir)
    facts |= _infiniband(root)
    facts["unix_time_s"] = unix_time_s or time.time()
    if config.accelerator != "cpu":
        facts |= collect_gpu_facts(environ, nvml)
        if facts.get("gpus"):
            facts |= collect_xids(root)
            facts |= _gpudirect(root)
    return facts


def _versions(script: str | None) -> dict[str, Fact]:
    facts: dict[str, Fact] = {
        "host": platform.node(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "ft_run": VERSION,
    }
    for name, distributions in _LIBRARIES.items():
        for distribution in distributions:
            with suppress(metadata.PackageNotFoundError):
                facts[name] = metadata.version(distribution)
                break
    if script is not None:
        with suppress(OSError):
            digest = hashlib.sha256(Path(script).read_bytes()).hexdigest()
            facts["script_sha256"] = digest[: 2 * _HASH_BYTES]
    return facts


def _torch_build(gpus_shown: Mapping[str, str]) -> dict[str, Fact]:
    """Return what torch was built for, without importing it, and GPUs that it cannot use."""
    with suppress(ImportError, ValueError, OSError):
        spec = util.find_spec("torch")
        if spec is None or spec.origin is None:
            return {}
        text = Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")
        facts: dict[str, Fact] = dict(_BUILT_FOR.findall(text))
        kind = kind_of_gpus(facts.get("cuda"), facts.get("hip"))
        if gpus_shown and kind not in gpus_shown:
            facts["gpus_without_torch"] = "; ".join(gpus_shown.values())
        return facts
    return {}


def kind_of_gpus(cuda: object, hip: object) -> str | None:
    """Return the kind of GPUs that torch was built for, as in ``--accelerator``; None for none."""
    if hip:
        return "amd.com/gpu"
    return "nvidia.com/gpu" if cuda else None


def _limits(root: Path) -> dict[str, Fact]:
    facts: dict[str, Fact] = {"cpus": len(os.sched_getaffinity(0))}
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    facts["open_files_limit"] = files  # -1 means no limit
    facts["memlock_limit_gb"] = -1 if locked == resource.RLIM_INFINITY else _gb(locked)
    with suppress(OSError, ValueError, IndexError):
        text = (root / "proc/meminfo").read_text(encoding="ascii")
        facts["memory_gb"] = _gb(int(text.split("MemTotal:")[1].split()[0]) * 1024)
    limit = min(map(_memory_limit, own_directories(root, "memory")), default=math.inf)
    if limit < float(facts.get("memory_gb", math.inf)) * 1e9:
        facts["memory_limit_gb"] = _gb(int(limit))
    return facts


def _memory_limit(directory: Path) -> float:
    """Return the limit of one cgroup in bytes: v2 ``memory.max``, v1 ``memory.limit_in_bytes``."""
    for name in ("memory.max", "memory.limit_in_bytes"):
        with suppress(OSError, ValueError):
            return int((directory / name).read_text(encoding="ascii"))
    return math.inf


def _disks(root: Path, log_dir: str | None) -> dict[str, Fact]:
    """Return the free space. A file system without blocks has no limit, or does not report it."""
    facts: dict[str, Fact] = {}
    with suppress(OSError):
        shm = os.statvfs(root / "dev/shm")
        if shm.f_blocks:
            facts["dev_shm_gb"] = _gb(shm.f_frsize * shm.f_blocks)
            facts["dev_shm_free_gb"] = _gb(shm.f_frsize * shm.f_bavail)
    folder = Path(log_dir or tempfile.gettempdir()).absolute()
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent  # the directory is created when the job starts
    try:
        disk = os.statvfs(folder)
    except OSError as error:
        facts["log_dir_error"] = f"{folder}: {error.strerror}"
    else:
        if disk.f_blocks:
            facts["log_dir_free_gb"] = _gb(disk.f_frsize * disk.f_bavail)
        if not os.access(folder, os.W_OK | os.X_OK):
            facts["log_dir_error"] = f"{folder} is not writable"
    return facts


def _infiniband(root: Path) -> dict[str, Fact]:
    """Return state, rate and errors of each InfiniBand or RoCE port.

    For an active port also how much slower it is than the fastest active port of its board.
    """
    facts: dict[str, Fact] = {}
    rates: dict[str, dict[str, float]] = {}
    states = []
    for port in sorted(root.glob("sys/class/infiniband/*/ports/*")):
        adapter = port.parent.parent
        name, state, board = f"ib_{adapter.name}_{port.name}", "", ""
        with suppress(OSError):
            # "4: ACTIVE"
            facts[f"{name}_state"] = state = _word(port / "state").partition(":")[2].strip()
            states.append(state)
        with suppress(OSError):
            board = _word(adapter / "board_id")
        with suppress(OSError, ValueError):
            # "400 Gb/sec (4X NDR)"
            facts[f"{name}_rate_gbit_per_s"] = rate = float(_word(port / "rate").split()[0])
            if state == "ACTIVE":
                rates.setdefault(board, {})[name] = rate
        facts |= _port_errors(port, name)
    if states:
        facts["ib_ports_active"] = states.count("ACTIVE")
    for of_board in rates.values():
        for name, rate in of_board.items():
            facts[f"{name}_gbit_per_s_missing"] = max(of_board.values()) - rate
    return facts


def _port_errors(port: Path, name: str) -> dict[str, Fact]:
    """Return the errors of a port since its driver was loaded; a pulled cable is not an error."""
    counts = []
    for counter in _PORT_ERRORS:
        with suppress(OSError, ValueError):
            counts.append(int(_word(port / "counters" / counter)))
    return {f"{name}_errors": sum(counts)} if counts else {}


def _gpudirect(root: Path) -> dict[str, Fact]:
    """Return whether NVIDIA GPUs and network cards can exchange data without the host's memory.

    Source: NCCL's documentation, "GPU Direct RDMA": ``nvidia_peermem``, or DMA-BUF with the open
    kernel modules. Network cards from other vendors use other modules.
    """
    adapters = root.glob("sys/class/infiniband/*/hca_type")
    with suppress(OSError):
        if not any(_word(adapter).startswith("MT") for adapter in adapters):
            return {}
        has_module = any((root / "sys/module" / name).exists() for name in _PEER_MODULES)
        driver = _word(root / "proc/driver/nvidia/version")
        return {"gpudirect_rdma": int(has_module or "Open Kernel Module" in driver)}
    return {}


def _word(path: Path) -> str:
    return path.read_text(encoding="ascii", errors="replace").strip()


def collect_xids(root: Path) -> dict[str, Fact]:
    """Return the XID errors in the kernel log since the NVIDIA driver started.

    This requires permission to read ``/dev/kmsg``. Errors that a program causes itself are not a
    fault of a GPU and are omitted.
    """
    numbers: dict[str, None] = {}
    try:
        log = os.open(root / "dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return {}
    try:
        while record := _kernel_record(log):
            match = re.search(rb"NVRM: Xid \([^)]*\): (\d+)", record)
            if match and int(match[1]) not in _XIDS_OF_PROGRAMS:
                numbers[match[1].decode()] = None
    finally:
        os.close(log)
    return {"gpu_xids": ", ".join(numbers)}


def _kernel_record(log: int) -> bytes:
    """Return the next record, or nothing at the end of the log. One read returns one record."""
    with suppress(OSError):
        with suppress(
            BrokenPipeError
        ):  # records were overwritten: reading continues at the next one
            return os.read(log, _KERNEL_RECORD_MAX)
        return os.read(log, _KERNEL_RECORD_MAX)
    return b""


def _gb(size: int) -> float:
    return round(size / 1e9, 3)
