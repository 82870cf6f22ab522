"""Which accelerators the workers of this node can use, found without torch.

NVIDIA is asked through NVML, the others through ``/sys`` and ``/dev``: no runtime is initialised,
no context is created and no memory is taken on any device.
"""

import enum
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, cast

from ...values import dataclass

_ROOT: Final = Path("/")
_ORDINAL: Final = re.compile(r"\+?[0-9]{1,9}")
_PROPERTY: Final = re.compile(r"^(\w+) ([0-9]{1,20})$", re.MULTILINE)
_INTEL: Final = "0x8086"


class AcceleratorKind(enum.Enum):
    """A kind of accelerator; the values are those of ``--accelerator``.

    ``xpu`` is chosen by ``--nproc-per-node=xpu`` alone: Intel's driver shows integrated graphics
    as well, which nobody means by "an accelerator".
    """

    NVIDIA = "nvidia.com/gpu"
    AMD = "amd.com/gpu"
    ASCEND = "ascend-npu"
    XPU = "xpu"
    CPU = "cpu"


AUTO: Final = "auto"
ACCELERATOR_CHOICES: Final = (AUTO, "nvidia.com/gpu", "amd.com/gpu", "ascend-npu", "cpu")
"""What ``--accelerator`` accepts."""

VISIBLE_DEVICES_VARIABLE: Final[Mapping[AcceleratorKind, str]] = {
    AcceleratorKind.NVIDIA: "CUDA_VISIBLE_DEVICES",
    AcceleratorKind.AMD: "HIP_VISIBLE_DEVICES",
    AcceleratorKind.ASCEND: "ASCEND_RT_VISIBLE_DEVICES",
    AcceleratorKind.XPU: "ZE_AFFINITY_MASK",
}
"""The variable that gives one worker one device: set to that device's ``identifier``."""


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator that this node's workers can use.

    ``identifier`` is its entry in the variable of its kind: the parent's own entry where the
    parent had set the variable, else its index. ``pci_address`` is its name in
    ``/sys/bus/pci/devices`` (of the GPU that holds it, for a MIG device); None where unknown.
    """

    identifier: str
    pci_address: str | None = None


@dataclass(frozen=True, slots=True)
class Accelerators:
    """The usable accelerators of one kind, in the order in which workers see them.

    ``source`` says for people how they were counted, also where there are none.
    """

    kind: AcceleratorKind
    devices: tuple[Device, ...]
    source: str

    @property
    def count(self) -> int:
        return len(self.devices)

    @property
    def per_process(self) -> int:
        """How many of them one process can use at once.

        All, except that CUDA shows a process the first MIG device of its list and no other.
        Source: NVIDIA's MIG user guide, "CUDA device enumeration".
        """
        is_mig = self.count > 0 and self.devices[0].identifier.startswith("MIG-")
        return 1 if is_mig else self.count


class Nvml(Protocol):
    """What is used of ``pynvml``; handles are opaque, failures raise ``NVMLError``."""

    NVMLError: type[Exception]

    def nvmlInit(self) -> None: ...
    def nvmlShutdown(self) -> None: ...
    def nvmlDeviceGetCount(self) -> int: ...
    def nvmlDeviceGetHandleByIndex(self, index: int, /) -> Any: ...
    def nvmlDeviceGetUUID(self, handle: Any, /) -> str: ...
    def nvmlDeviceGetPciInfo(self, handle: Any, /) -> Any: ...
    def nvmlDeviceGetMaxMigDeviceCount(self, handle: Any, /) -> int: ...
    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Any, index: int, /) -> Any: ...
    def nvmlDeviceGetGpuInstanceId(self, handle: Any, /) -> int: ...
    def nvmlDeviceGetComputeInstanceId(self, handle: Any, /) -> int: ...


NvmlLoader = Callable[[], Nvml | None]


def load_nvml() -> Nvml | None:
    """Return ``pynvml``, or None where the driver's library is absent."""
    import ctypes

    # Tried first because it costs a tenth of importing pynvml, and most machines of a CI say no.
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    import importlib

    return cast(Nvml, importlib.import_module("pynvml"))


def find_accelerators(
    kind: AcceleratorKind,
    environ: Mapping[str, str],
    *,
    root: Path = _ROOT,
    nvml: NvmlLoader = load_nvml,
) -> Accelerators:
    """Return the accelerators of ``kind`` that the workers can use; none is no error.

    ``environ`` (the agent's, which the workers inherit) is honoured as the runtime of that kind
    honours it; ``ZE_AFFINITY_MASK`` alone is not read, so that a job that hides Intel devices by
    it gives ``--nproc-per-node`` as a number.

    Args:
        kind: what to look for.
        environ: the environment with the ``…_VISIBLE_DEVICES`` variables.
        root: the directory below which ``sys`` and ``dev`` are looked up.
        nvml: returns NVML, or None without a driver.
    """
    if kind is AcceleratorKind.NVIDIA:
        return _find_nvidia(environ, root, nvml)
    if kind is AcceleratorKind.AMD:
        return _find_amd(environ, root)
    if kind is AcceleratorKind.ASCEND:
        return _find_ascend(environ, root)
    if kind is AcceleratorKind.XPU:
        return _find_xpu(root)
    return Accelerators(kind, (), "no accelerator asked for")


class _Installed(NamedTuple):
    """A device that the driver shows: the names it has besides its index, and its place."""

    names: tuple[str, ...] = ()
    pci_address: str | None = None


def _select(
    value: str | None, installed: Sequence[_Installed], partitions: Sequence[_Installed] = ()
) -> tuple[Device, ...]:
    """Return what ``CUDA_VISIBLE_DEVICES`` (HIP's has the same grammar) leaves visible.

    The list is read up to its first invalid entry; an empty one, -1, or a device named twice
    leaves none. The first entry decides between UUIDs of GPUs (``GPU-…``), UUIDs of MIG devices
    (``MIG-…``), both of which may be cut short while they stay unique, and indices, which may have
    letters after the digits. Source: the CUDA C++ programming guide, "CUDA environment
    variables", and ``torch.cuda.device_count``.
    """
    if value is None:
        return tuple(Device(str(index), it.pci_address) for index, it in enumerate(installed))
    chosen = _choose(value, installed, partitions)
    return tuple(Device(entry, device.pci_address) for entry, device in chosen)


_Chosen = list[tuple[str, _Installed]]


def _choose(
    value: str, installed: Sequence[_Installed], partitions: Sequence[_Installed] = ()
) -> _Chosen:
    entries = value.split(",")
    if value.startswith("GPU-"):
        return _by_name(_leading_names(entries, "GPU-"), installed)
    if value.startswith("MIG-"):
        return _by_name(_leading_names(entries, "MIG-"), partitions)
    return _by_index(entries, installed)


def _by_index(entries: Sequence[str], installed: Sequence[_Installed]) -> _Chosen:
    chosen: dict[int, str] = {}
    for entry in entries:
        number = _ORDINAL.match(entry.strip())
        index = int(number[0]) if number else -1
        if index in chosen:
            return []
        if index < 0:
            break
        chosen[index] = entry.strip()
    valid = itertools.takewhile(lambda item: item[0] < len(installed), chosen.items())
    return [(entry, installed[index]) for index, entry in valid]


def _by_name(entries: Sequence[str], installed: Sequence[_Installed]) -> _Chosen:
    chosen: dict[int, str] = {}
    for entry in entries:
        matches = [
            index
            for index, device in enumerate(installed)
            if any(name.startswith(entry) for name in device.names)
        ]
        if len(matches) != 1:
            break
        if matches[0] in chosen:
            return []
        chosen[matches[0]] = entry
    return [(entry, installed[index]) for index, entry in chosen.items()]


def _leading_names(entries: Sequence[str], prefix: str) -> list[str]:
    """Return the entries up to the first without ``prefix``; none when one of them repeats."""
    named: list[str] = []
    for entry in entries:
        if entry in named:
            return []
        if not entry.startswith(prefix):
            break
        named.append(entry)
    return named


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


def _find_nvidia(environ: Mapping[str, str], root: Path, load: NvmlLoader) -> Accelerators:
    kind, variable = AcceleratorKind.NVIDIA, VISIBLE_DEVICES_VARIABLE[AcceleratorKind.NVIDIA]
    value, note = environ.get(variable), _setting(environ, variable)
    library = load()
    trouble = "without NVML"
    if library is not None:
        names_mig = value is not None and value.startswith("MIG-")
        try:
            with _session(library):
                count = library.nvmlDeviceGetCount()
                gpus = [_read_gpu(library, index) for index in range(count)]
                partitions = _read_mig_devices(library, gpus) if names_mig else []
        except library.NVMLError as error:
            trouble = f"NVML fails: {error}"
        else:
            source = f"NVIDIA GPUs by NVML: {count}{note}"
            return Accelerators(kind, _select(value, gpus, partitions), source)
    files = _names(root / "dev", r"nvidia[0-9]+")
    if files and value is not None and value.startswith(("GPU-", "MIG-")):
        # Nothing here knows the UUIDs; who wrote the list did.
        devices = tuple(Device(name) for name in _leading_names(value.split(","), value[:4]))
    else:
        devices = _select(value, [_Installed()] * len(files))
    source = f"device files /dev/nvidia* ({trouble}): {len(files)}{note}"
    return Accelerators(kind, devices, source)


@contextmanager
def _session(nvml: Nvml) -> Iterator[None]:
    nvml.nvmlInit()
    try:
        yield
    finally:
        nvml.nvmlShutdown()


def _read_gpu(nvml: Nvml, index: int) -> _Installed:
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        pci = nvml.nvmlDeviceGetPciInfo(handle)
        address = f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0"
        return _Installed((nvml.nvmlDeviceGetUUID(handle),), address)
    except nvml.NVMLError:
        return _Installed()  # lost from the bus, say: it keeps its index


def _read_mig_devices(nvml: Nvml, gpus: Sequence[_Installed]) -> list[_Installed]:
    """Return the MIG devices of all GPUs, by the name of driver R470 and by the older one."""
    found: list[_Installed] = []
    for index, gpu in enumerate(gpus):
        try:
            parent = nvml.nvmlDeviceGetHandleByIndex(index)
            slots = nvml.nvmlDeviceGetMaxMigDeviceCount(parent)
        except nvml.NVMLError:
            continue
        for slot in range(slots):
            try:
                handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(parent, slot)
                names = [nvml.nvmlDeviceGetUUID(handle)]
                gpu_instance = nvml.nvmlDeviceGetGpuInstanceId(handle)
                compute_instance = nvml.nvmlDeviceGetComputeInstanceId(handle)
            except nvml.NVMLError:
                continue  # an empty slot
            names += [f"MIG-{name}/{gpu_instance}/{compute_instance}" for name in gpu.names]
            found.append(_Installed(tuple(dict.fromkeys(names)), gpu.pci_address))
    return found


def _find_amd(environ: Mapping[str, str], root: Path) -> Accelerators:
    """Count the GPUs of the kernel's KFD topology (``amdgpu``).

    ``ROCR_VISIBLE_DEVICES`` reduces them first; ``HIP_VISIBLE_DEVICES`` (without it
    ``CUDA_VISIBLE_DEVICES``, which HIP reads too) then chooses among the rest. Source: the ROCm
    documentation, "GPU isolation techniques".
    """
    installed = _read_kfd_gpus(root)
    rest: Sequence[_Installed] = installed
    rocr = environ.get("ROCR_VISIBLE_DEVICES")
    if rocr is not None:
        rest = [device for _, device in _choose(rocr, installed)]
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
        # Of a GPU that the container was not given, the kernel refuses the properties.
        properties = _read(nodes / node / "properties")
        numbers = {name: int(text) for name, text in _PROPERTY.findall(properties)}
        if not numbers.get("simd_count"):
            continue  # a CPU
        minor = numbers.get("drm_render_minor")
        if minor and not (root / f"dev/dri/renderD{minor}").exists():
            continue  # nor can it be used without its device file
        location = numbers.get("location_id", 0)
        address = (
            f"{numbers.get('domain', 0):04x}:{location >> 8 & 0xFF:02x}"
            f":{location >> 3 & 0x1F:02x}.{location & 0x7:x}"
        )
        unique = numbers.get("unique_id")
        gpus.append(_Installed((f"GPU-{unique:016x}",) if unique else (), address))
    return gpus


def _find_ascend(environ: Mapping[str, str], root: Path) -> Accelerators:
    """Count ``/dev/davinci<N>``. The variable is read up to the first entry that is not the
    plain index of a device, spaces included. Source: CANN, "ASCEND_RT_VISIBLE_DEVICES".
    """
    variable = VISIBLE_DEVICES_VARIABLE[AcceleratorKind.ASCEND]
    value = environ.get(variable)
    files = _names(root / "dev", r"davinci[0-9]+")
    # In a container the numbers of the files may have gaps; the runtime counts from 0.
    everything = list(range(len(files)))
    indices = everything if value is None else _strict_indices(value, len(files))
    source = f"device files /dev/davinci*: {len(files)}{_setting(environ, variable)}"
    devices = tuple(Device(str(index)) for index in indices)
    return Accelerators(AcceleratorKind.ASCEND, devices, source)


def _find_xpu(root: Path) -> Accelerators:
    """Count the render nodes of Intel devices, integrated graphics included."""
    addresses: list[str | None] = []
    for name in _names(root / "dev/dri", r"renderD[0-9]+"):
        device = root / "sys/class/drm" / name / "device"
        if _read(device / "vendor").strip() == _INTEL:
            slot = re.search(r"^PCI_SLOT_NAME=(\S+)$", _read(device / "uevent"), re.MULTILINE)
            addresses.append(slot[1] if slot else None)
    devices = tuple(Device(str(index), address) for index, address in enumerate(addresses))
    source = f"render nodes of Intel in /dev/dri: {len(devices)}"
    return Accelerators(AcceleratorKind.XPU, devices, source)


def _names(directory: Path, pattern: str) -> list[str]:
    """Return the entries of ``directory`` that match, in the order of their numbers."""
    try:
        names = [path.name for path in directory.iterdir() if re.fullmatch(pattern, path.name)]
    except OSError:
        return []
    return sorted(names, key=lambda name: int(re.sub(r"\D", "", name)))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
