"""Finds the accelerators that the workers of this node can use, without torch.

It uses NVML for NVIDIA, and ``/sys`` and ``/dev`` for others: it initializes no runtime, creates no
context and allocates no device memory.
"""

import enum
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from msgspec import Struct

from .cgroups import read_text
from .nvml import NvmlFailedError, NvmlGpu, gpus_by_process, has_library, visible
from .visible_devices import Chosen, choose, leading_names

_ROOT: Final = Path("/")
_PROPERTY: Final = re.compile(r"^(\w+) ([0-9]{1,20})$", re.MULTILINE)
_INTEL: Final = "0x8086"


class AcceleratorKind(enum.Enum):
    """A kind of accelerator; the values are the values of ``--accelerator``."""

    NVIDIA = "nvidia.com/gpu"
    AMD = "amd.com/gpu"
    ASCEND = "ascend-npu"
    XPU = "xpu"
    """It decides the number of workers only with ``--nproc-per-node=xpu``: Intel's driver lists
    integrated graphics too."""
    CPU = "cpu"


GPUS: Final = (AcceleratorKind.NVIDIA, AcceleratorKind.AMD)
"""The kinds that are torch's ``cuda`` devices."""

AUTO: Final = "auto"
ACCELERATOR_CHOICES: Final = (AUTO, "nvidia.com/gpu", "amd.com/gpu", "ascend-npu", "cpu")
"""What ``--accelerator`` accepts."""

VISIBLE_DEVICES_VARIABLE: Final[Mapping[AcceleratorKind, str]] = {
    AcceleratorKind.NVIDIA: "CUDA_VISIBLE_DEVICES",
    AcceleratorKind.AMD: "HIP_VISIBLE_DEVICES",
    AcceleratorKind.ASCEND: "ASCEND_RT_VISIBLE_DEVICES",
    AcceleratorKind.XPU: "ZE_AFFINITY_MASK",
}
"""The variable that assigns a device to a worker; the value is the device's ``identifier``."""


class Device(Struct, frozen=True):
    """One accelerator that this node's workers can use."""

    identifier: str
    """Its entry in the variable of its kind: the parent's own entry if the parent set the variable,
    else the index."""
    pci_address: str | None = None
    """The name in ``/sys/bus/pci/devices`` (for a MIG device, of its GPU); None if unknown."""


class Accelerators(Struct, frozen=True):
    """The usable accelerators of one kind, in the order in which workers see them."""

    kind: AcceleratorKind
    devices: tuple[Device, ...]
    source: str
    """Text on how they were counted, even if there are none."""

    @property
    def count(self) -> int:
        """Return the number of usable devices."""
        return len(self.devices)

    @property
    def per_process(self) -> int:
        """Return how many of them one process can use simultaneously."""
        # CUDA shows a process only the first MIG device of its list. Source: NVIDIA's MIG user
        # guide, "CUDA device enumeration".
        is_mig = any(device.identifier.startswith("MIG-") for device in self.devices)
        return 1 if is_mig else self.count


def find_accelerators(
    kind: AcceleratorKind, environ: Mapping[str, str], *, root: Path = _ROOT
) -> Accelerators:
    """Return the accelerators of ``kind`` that the workers can use; zero is not an error.

    ``environ`` (the agent's, which the workers inherit) is interpreted as by the runtime of that
    kind, except that ``ZE_AFFINITY_MASK`` is ignored: a job that hides Intel devices with it
    needs a number for ``--nproc-per-node``. ``sys`` and ``dev`` are read below ``root``.
    """
    if kind is AcceleratorKind.NVIDIA:
        return _find_nvidia(environ, root)
    if kind is AcceleratorKind.AMD:
        return _find_amd(environ, root)
    if kind is AcceleratorKind.ASCEND:
        return _find_ascend(environ, root)
    if kind is AcceleratorKind.XPU:
        return _find_xpu(root)
    return Accelerators(kind, (), "no accelerator asked for")


def find_devices(
    accelerator: str, environ: Mapping[str, str], *, root: Path = _ROOT
) -> tuple[Device, ...]:
    """Return the devices of the kind ``accelerator``; ``auto`` is the first available kind."""
    kinds = tuple(AcceleratorKind) if accelerator == AUTO else (AcceleratorKind(accelerator),)
    found = (find_accelerators(kind, environ, root=root).devices for kind in kinds)
    return next(filter(None, found), ())


def device_names(accelerator: str, environ: Mapping[str, str]) -> list[str]:
    """Return text that distinguishes machines by devices: their kind, and models of NVIDIA GPUs."""
    kinds = tuple(AcceleratorKind) if accelerator == AUTO else (AcceleratorKind(accelerator),)
    for kind in kinds:
        found = find_accelerators(kind, environ)
        if found.count:
            models: list[str] = []
            if kind is AcceleratorKind.NVIDIA:
                with suppress(NvmlFailedError):
                    models = [gpu.model for gpu in _nvidia_gpus() or ()]
            return [kind.value] * found.count + sorted(set(models))
    return []


def gpus_asked_by(nproc_per_node: str, accelerator: str) -> str:
    """Return the option that requires GPUs, as the user wrote it; empty if no option does."""
    if accelerator in {kind.value for kind in GPUS}:
        return f"--accelerator={accelerator}"
    return "--nproc-per-node=gpu" if nproc_per_node == "gpu" and accelerator == AUTO else ""


def shown_gpus(
    accelerator: str, environ: Mapping[str, str], *, root: Path = _ROOT
) -> dict[str, str]:
    """Return the GPUs that checks should find, by kind, and how they were counted.

    Empty unless ``accelerator`` is ``auto``.
    """
    kinds = GPUS if accelerator == AUTO else ()
    found = [find_accelerators(kind, environ, root=root) for kind in kinds]
    return {gpus.kind.value: gpus.source for gpus in found if gpus.count}


def nvlink_domain() -> str:
    """Return the NVLink domain of this node's GPUs; empty if none, several, or NVML fails."""
    try:
        domains = {gpu.nvlink_domain for gpu in _nvidia_gpus() or ()}
    except NvmlFailedError:
        return ""
    return domains.pop() if len(domains) == 1 else ""


class _Installed(NamedTuple):
    """A device that the driver lists. ``names`` are its names besides the index."""

    names: tuple[str, ...] = ()
    pci_address: str | None = None


def _select(value: str | None, installed: Sequence[_Installed]) -> tuple[Device, ...]:
    """Return the devices visible under ``CUDA_VISIBLE_DEVICES``; HIP's has the same grammar."""
    if value is None:
        return tuple(Device(str(index), it.pci_address) for index, it in enumerate(installed))
    return tuple(
        Device(entry, installed[it].pci_address) for entry, it in _choose(value, installed)
    )


def _choose(value: str, installed: Sequence[_Installed]) -> Chosen:
    return choose(value, [device.names for device in installed])


def _strict_indices(value: str, count: int) -> list[int]:
    """Return the plain indices of a list up to the first entry that is invalid or repeats."""
    indices: list[int] = []
    for entry in value.split(","):
        index = int(entry) if re.fullmatch(r"[0-9]{1,6}", entry) else count
        if index >= count or index in indices:
            break
        indices.append(index)
    return indices


def _setting(environ: Mapping[str, str], *names: str) -> str:
    return "".join(f", {name}={environ[name]}" for name in names if name in environ)


def _find_nvidia(environ: Mapping[str, str], root: Path) -> Accelerators:
    kind, variable = AcceleratorKind.NVIDIA, VISIBLE_DEVICES_VARIABLE[AcceleratorKind.NVIDIA]
    value, note = environ.get(variable), _setting(environ, variable)
    trouble = "without NVML"
    try:
        gpus = _nvidia_gpus()
    except NvmlFailedError as error:
        trouble = f"NVML fails: {error}"
    else:
        if gpus is not None:
            source = f"NVIDIA GPUs by NVML: {len(gpus)}{note}"
            return Accelerators(kind, _select_nvidia(gpus, environ), source)
    files = _names(root / "dev", r"nvidia[0-9]+")
    if files and value is not None and value.startswith(("GPU-", "MIG-")):
        # The UUIDs cannot be verified here; the list is trusted.
        devices = tuple(Device(name) for name in leading_names(value.split(","), value[:4]))
    else:
        devices = _select(value, [_Installed()] * len(files))
    source = f"device files /dev/nvidia* ({trouble}): {len(files)}{note}"
    return Accelerators(kind, devices, source)


def _nvidia_gpus() -> Sequence[NvmlGpu] | None:
    """Return the GPUs that NVML lists; None without a driver. Raises ``NvmlFailedError``."""
    if not has_library():
        return None
    gpus, why = _gpus_of_machine()
    if why:
        raise NvmlFailedError(why)
    return gpus


@cache
def _gpus_of_machine() -> tuple[tuple[NvmlGpu, ...], str]:
    """Return NVML's GPUs, or an error. Cached, because a driver that hangs would hang again."""
    try:
        return tuple(gpus_by_process()), ""
    except NvmlFailedError as error:
        return (), str(error)


def _select_nvidia(gpus: Sequence[NvmlGpu], environ: Mapping[str, str]) -> tuple[Device, ...]:
    """Return the devices that CUDA shows, with MIG devices, by name, in place of their GPU."""
    named, is_known = visible(gpus, environ)
    devices = []
    for entry, index in named:
        gpu = gpus[index]
        # However a GPU in MIG mode is named, CUDA shows a process only one of its devices.
        is_whole = is_known and not entry.startswith("MIG-")
        names = [name for name, *_ in gpu.mig] if is_whole else []
        address = gpu.pci_address if is_known else None
        devices += [Device(name, address) for name in names or [entry]]
    return tuple(devices)


def name_mig_devices(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment that names the MIG devices, if there are any, one for each worker."""
    found = find_accelerators(AcceleratorKind.NVIDIA, environ)
    names = [device.identifier for device in found.devices]
    if not any(name.startswith("MIG-") for name in names):
        return dict(environ)
    return {**environ, VISIBLE_DEVICES_VARIABLE[AcceleratorKind.NVIDIA]: ",".join(names)}


def _find_amd(environ: Mapping[str, str], root: Path) -> Accelerators:
    """Return the GPUs of the kernel's KFD topology (``amdgpu``).

    ``ROCR_VISIBLE_DEVICES`` restricts them first; ``HIP_VISIBLE_DEVICES`` (if unset,
    ``CUDA_VISIBLE_DEVICES``, which HIP reads too) then selects among the rest. Source: the ROCm
    documentation, "GPU isolation techniques".
    """
    installed = _read_kfd_gpus(root)
    rest: Sequence[_Installed] = installed
    rocr = environ.get("ROCR_VISIBLE_DEVICES")
    if rocr is not None:
        rest = [installed[index] for _, index in _choose(rocr, installed)]
    hip = VISIBLE_DEVICES_VARIABLE[AcceleratorKind.AMD]
    variable = hip if hip in environ else "CUDA_VISIBLE_DEVICES"
    devices = _select(environ.get(variable), rest)
    note = _setting(environ, "ROCR_VISIBLE_DEVICES", variable)
    source = f"AMD GPUs by the kernel: {len(installed)}{note}"
    return Accelerators(AcceleratorKind.AMD, devices, source)


def _read_kfd_gpus(root: Path) -> list[_Installed]:
    nodes = root / "sys/class/kfd/kfd/topology/nodes"
    gpus: list[_Installed] = []
    for node in _names(nodes, "[0-9]+"):
        # The kernel denies access to the properties of a GPU that the container does not have.
        properties = read_text(nodes / node / "properties")
        numbers = {name: int(text) for name, text in _PROPERTY.findall(properties)}
        if not numbers.get("simd_count"):
            continue  # a CPU
        minor = numbers.get("drm_render_minor")
        if minor and not (root / f"dev/dri/renderD{minor}").exists():
            continue  # it cannot be used without its device file
        location = numbers.get("location_id", 0)
        address = (
            f"{numbers.get('domain', 0):04x}:{location >> 8 & 0xFF:02x}"
            f":{location >> 3 & 0x1F:02x}.{location & 0x7:x}"
        )
        unique = numbers.get("unique_id")
        gpus.append(_Installed((f"GPU-{unique:016x}",) if unique else (), address))
    return gpus


def _find_ascend(environ: Mapping[str, str], root: Path) -> Accelerators:
    """Return the devices of ``/dev/davinci<N>``.

    The variable is read up to the first entry that is not the plain index of a device, spaces
    included. Source: CANN, "ASCEND_RT_VISIBLE_DEVICES".
    """
    variable = VISIBLE_DEVICES_VARIABLE[AcceleratorKind.ASCEND]
    value = environ.get(variable)
    files = _names(root / "dev", r"davinci[0-9]+")
    # In a container the files' numbers can have gaps; the runtime's indices start at 0.
    everything = list(range(len(files)))
    indices = everything if value is None else _strict_indices(value, len(files))
    source = f"device files /dev/davinci*: {len(files)}{_setting(environ, variable)}"
    devices = tuple(Device(str(index)) for index in indices)
    return Accelerators(AcceleratorKind.ASCEND, devices, source)


def _find_xpu(root: Path) -> Accelerators:
    """Return the render nodes of Intel devices, including integrated graphics."""
    addresses: list[str | None] = []
    for name in _names(root / "dev/dri", r"renderD[0-9]+"):
        device = root / "sys/class/drm" / name / "device"
        if read_text(device / "vendor").strip() == _INTEL:
            slot = re.search(r"^PCI_SLOT_NAME=(\S+)$", read_text(device / "uevent"), re.MULTILINE)
            addresses.append(slot[1] if slot else None)
    devices = tuple(Device(str(index), address) for index, address in enumerate(addresses))
    source = f"render nodes of Intel in /dev/dri: {len(devices)}"
    return Accelerators(AcceleratorKind.XPU, devices, source)


def _names(directory: Path, pattern: str) -> list[str]:
    """Return the matching entries of ``directory``, in the order of their numbers."""
    try:
        names = [path.name for path in directory.iterdir() if re.fullmatch(pattern, path.name)]
    except OSError:
        return []
    return sorted(names, key=lambda name: int(re.sub(r"\D", "", name)))
