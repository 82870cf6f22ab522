"""The table of system information that counts against a node. No I/O, no clock.

A missing value (no permission, different kind of device) counts neither for nor against the node.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from .records import Fact

WARNINGS: Final = "warnings"
"""The name of a value whose text is a warning that does not exclude the node."""

UNDER_LOAD: Final = "local_rank"
"""The name prefix of values that are reported by a phase with load."""


class Finding(NamedTuple):
    """A value that counts against the node."""

    is_fatal: bool
    """Whether the node would make the run fail. Otherwise it would run, perhaps slower."""
    text: str


@dataclass(frozen=True, slots=True)
class _Rule:
    """A rule: ``name`` counts against a node if ``is_bad``.

    ``name`` is a pattern for the whole name of the value. In ``text``, ``{0}`` is the group of the
    pattern, ``{value}`` is the value, and ``{facts[name]}`` is any other value.
    """

    name: str
    is_fatal: bool
    is_bad: Callable[[Fact, Mapping[str, Fact]], bool]
    text: str


def _number(facts: Mapping[str, Fact], name: str, default: float = 0.0) -> float:
    value = facts.get(name, default)
    return default if isinstance(value, str) else float(value)


def _above(limit: float) -> Callable[[Fact, Mapping[str, Fact]], bool]:
    return lambda value, _: not isinstance(value, str) and value > limit


def _below(limit: float) -> Callable[[Fact, Mapping[str, Fact]], bool]:
    return lambda value, _: not isinstance(value, str) and value < limit


def _is_text(value: Fact, _: Mapping[str, Fact]) -> bool:
    return bool(value)


def _shares_memory(value: Fact, facts: Mapping[str, Fact]) -> bool:
    """NCCL uses /dev/shm between several workers of a node whose GPUs have no direct connection."""
    workers = _number(facts, "local_world_size", 1)
    needed = workers * SHM_PER_WORKER_GB
    return workers > 1 and not isinstance(value, str) and value < needed


def _needs_shm(value: Fact, facts: Mapping[str, Fact]) -> bool:
    return _number(facts, "gpus") > 0 and _shares_memory(value, facts)


def _wastes_shm(value: Fact, facts: Mapping[str, Fact]) -> bool:
    return _number(facts, "gpus") == 0 and _shares_memory(value, facts)


def _cannot_pin(value: Fact, facts: Mapping[str, Fact]) -> bool:
    has_fabric = any(name.startswith("ib_") for name in facts)
    return has_fabric and not isinstance(value, str) and 0 <= value < MEMLOCK_LEAST_GB


SHM_PER_WORKER_GB: Final = 0.032
"""NCCL's buffers in shared memory, per worker; Docker's default of 64 MB is enough for two."""
MEMLOCK_LEAST_GB: Final = 1.0
LOG_DIR_FULL_GB: Final = 0.01
LOG_DIR_LOW_GB: Final = 1.0
OPEN_FILES_LEAST: Final = 1024
GPU_FOREIGN_GB: Final = 2.0
"""Memory in use on a GPU before any process of the job runs there."""

_FATAL, _WARNING = True, False
_SHM = "/dev/shm has {value:g} GB free, too little for {facts[local_world_size]} workers"  # noqa: S108 - text only, no file is created there

RULES: Final = (
    _Rule(r"gpu(\d+)_error", _FATAL, _is_text, "GPU {0} does not answer: {value}"),
    _Rule(
        r"gpu(\d+)_ecc_uncorrected",
        _FATAL,
        _above(0),
        "GPU {0} has {value} uncorrected memory errors since the driver was loaded",
    ),
    _Rule(
        r"gpu(\d+)_row_remap_failed",
        _FATAL,
        _above(0),
        "GPU {0} could not replace a bad row of its memory",
    ),
    _Rule(
        r"gpu(\d+)_row_remap_pending",
        _FATAL,
        _above(0),
        "GPU {0} must be reset to replace a bad row of its memory",
    ),
    _Rule(
        r"gpu(\d+)_row_remap_pending_corrected",
        _WARNING,
        _above(0),
        "GPU {0} will replace a row of its memory, whose errors were corrected, at its next reset",
    ),
    _Rule(
        r"gpu(\d+)_page_retirement_pending",
        _FATAL,
        _above(0),
        "GPU {0} must be reset to retire a bad page of its memory",
    ),
    _Rule(
        r"gpu(\d+)_nvlinks_missing",
        _WARNING,
        _above(0),
        "GPU {0} has {value} fewer active NVLink(s) than another GPU of this node",
    ),
    _Rule(r"gpu(\d+)_throttled_by", _WARNING, _is_text, "GPU {0} is throttled by {value}"),
    _Rule(
        r"gpu(\d+)_temperature_margin_c",
        _WARNING,
        _below(5),
        "GPU {0} is {value} degrees C below the temperature at which it is throttled",
    ),
    _Rule(
        r"gpu(\d+)_pcie_lanes_missing",
        _WARNING,
        _above(0),
        "GPU {0} uses {value} fewer PCIe lanes than it has",
    ),
    _Rule(
        r"gpu(\d+)_used_gb",
        _WARNING,
        _above(GPU_FOREIGN_GB),
        "GPU {0} has {value:g} GB in use before the job starts",
    ),
    _Rule(r"gpu_xids", _WARNING, _is_text, "the kernel log has GPU errors (XID {value})"),
    _Rule(r"nvml_error", _WARNING, _is_text, "the NVIDIA driver does not answer: {value}"),
    _Rule(
        r"gpus_without_torch",
        _WARNING,
        _is_text,
        "GPUs found ({value}), but this torch was not built for them: checking CPUs",
    ),
    _Rule(
        r"ib_(.+)_state",
        _WARNING,
        lambda value, _: value not in ("ACTIVE", "DOWN"),  # a port may have no cable
        "InfiniBand port {0} is {value}",
    ),
    _Rule(
        r"ib_ports_active",
        _WARNING,
        lambda value, _: value == 0,
        "no InfiniBand port is ACTIVE",
    ),
    _Rule(
        r"ib_(.+)_gbit_per_s_missing",
        _WARNING,
        _above(0),
        "InfiniBand port {0} is {value:g} Gbit/s slower than another one of its kind",
    ),
    _Rule(
        r"ib_(.+)_errors",
        _WARNING,
        _above(0),
        "InfiniBand port {0} has {value} errors since its driver was loaded",
    ),
    _Rule(
        r"gpudirect_rdma",
        _WARNING,
        _below(1),
        "no GPUDirect RDMA: neither nvidia_peermem nor NVIDIA's open kernel modules are loaded",
    ),
    _Rule(
        r"mig_devices",
        _WARNING,
        _above(0),
        "{value} MIG devices: NCCL may not connect those of one GPU; checks use gloo instead, and "
        "do not measure the bandwidth within the node",
    ),
    _Rule(
        r"local_rank(\d+)_throttled_by",
        _WARNING,
        _is_text,
        "the GPU of local rank {0} was throttled by {value} under load",
    ),
    _Rule(r"dev_shm_free_gb", _FATAL, _needs_shm, _SHM),
    _Rule(r"dev_shm_free_gb", _WARNING, _wastes_shm, _SHM),
    _Rule(
        r"log_dir_free_gb", _FATAL, _below(LOG_DIR_FULL_GB), "the disk of the log directory is full"
    ),
    _Rule(
        r"log_dir_free_gb",
        _WARNING,
        lambda value, _: not isinstance(value, str) and LOG_DIR_FULL_GB <= value < LOG_DIR_LOW_GB,
        "the disk of the log directory has {value:g} GB left",
    ),
    _Rule(r"log_dir_error", _FATAL, _is_text, "the log directory cannot be used: {value}"),
    _Rule(
        r"open_files_limit",
        _WARNING,
        lambda value, _: not isinstance(value, str) and 0 <= value < OPEN_FILES_LEAST,
        "the limit of open files is {value} (ulimit -n)",
    ),
    _Rule(
        r"memlock_limit_gb",
        _WARNING,
        _cannot_pin,
        "the limit of locked memory is {value:g} GB (ulimit -l), too low for InfiniBand",
    ),
)


def findings(facts: Mapping[str, Fact]) -> tuple[Finding, ...]:
    """Return the findings against a node, in the order of the table."""
    found: list[Finding] = []
    for rule in RULES:
        for name, value in facts.items():
            match = re.fullmatch(rule.name, name)
            if match and rule.is_bad(value, facts):
                text = rule.text.format(*match.groups(), value=value, facts=facts)
                found.append(Finding(rule.is_fatal, text))
    return tuple(found)
