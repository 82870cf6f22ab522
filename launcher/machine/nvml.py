"""NVML, the library of NVIDIA's driver. All queries of the driver use this module.

A call into a driver that hangs (XID 79 or 119) never returns, and its process may be impossible to
kill. So the agent never makes such a call: it uses a separate process with a deadline
(``gpus_by_process``). Check workers are separate processes already.
"""

import ctypes
import functools
import importlib
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, NamedTuple, Protocol, cast

from .visible_devices import Chosen, choose

LIBRARY: Final = "libnvidia-ml.so.1"
_OTHER_DRIVERS: Final = ("/dev/kfd", "/dev/davinci_manager")
"""Device files of AMD's and Ascend's drivers."""
DEADLINE_S: Final = 15.0
"""Limit of one query. Without the persistence daemon a driver initializes each GPU first, which
takes seconds."""

_READER: Final = (
    *(sys.executable, "-c"),
    # -c puts the working directory first on the path; its modules must not replace a library.
    "import sys; sys.path[:] = filter(None, sys.path);"
    "from ft_run.launcher.machine.gpu_readings import main; main()",
)
WATCH: Final = (*_READER, "watch")
"""Command of a process that prints the memory in use for each byte of input, and Xid errors as they
occur."""
GPUS: Final = (*_READER, "gpus")
"""Command of a process that prints the result of ``read_gpus``, and exits."""

NOT_SUPPORTED, NO_PERMISSION, GPU_IS_LOST, RESET_REQUIRED = 3, 4, 15, 16
"""Codes of ``nvmlReturn_t``."""


class Nvml(Protocol):
    """The interface of ``pynvml``: its functions and constants by name; raises ``NVMLError``."""

    NVMLError: type[Exception]

    def __getattr__(self, name: str) -> Any: ...


NvmlLoader = Callable[[], Nvml | None]


class NvmlGpu(NamedTuple):
    """One GPU that this process may use."""

    nvml_index: int
    """The index among all GPUs that NVML lists, in PCI order."""
    uuid: str = ""
    """Empty if the GPU does not respond."""
    pci_address: str | None = None
    """The name in ``/sys/bus/pci/devices``."""
    model: str = ""
    mig: tuple[tuple[str, ...], ...] = ()
    """The names of each of its MIG devices, with the name of driver R470 and later first."""
    nvlink_domain: str = ""
    """``CLUSTER_UUID.CLIQUE``, as in the node label ``nvidia.com/gpu.clique``; empty unless it
    spans several machines."""


class NvmlFailedError(Exception):
    """Raised if NVML does not respond, with the reason."""


@functools.cache  # called at each restart; drivers are not loaded later
def has_library() -> bool:
    """Return whether NVIDIA's driver is installed, without using it."""
    # First, because it costs a tenth of the import of pynvml, and many machines have no driver.
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        return False
    return True


def has_driver() -> bool:
    """Return whether a driver of any kind of device is installed, without using it."""
    return has_library() or any(map(os.path.exists, _OTHER_DRIVERS))


def load_nvml() -> Nvml | None:
    """Return ``pynvml``; None without a driver. Raises ``NvmlFailedError`` without pynvml."""
    if not has_library():
        return None
    try:
        return cast(Nvml, importlib.import_module("pynvml"))
    except ImportError:
        raise NvmlFailedError(
            f"{sys.executable} has no pynvml (pip install nvidia-ml-py)"
        ) from None


@contextmanager
def opened(nvml: Nvml) -> Iterator[None]:
    """Open NVML and close it again; raises ``NVMLError``."""
    nvml.nvmlInit()
    try:
        yield
    finally:
        with suppress(nvml.NVMLError):
            nvml.nvmlShutdown()


def code_of(error: Exception) -> int | None:
    """Return the ``nvmlReturn_t`` of an error."""
    return getattr(error, "value", None)


def ask(nvml: Nvml, function: str, *args: Any) -> Any:
    """Return the result of a query; None if the driver or the GPU does not support it.

    Raises ``NVMLError`` if the GPU is lost or must be reset: its other results are meaningless.
    """
    try:
        return getattr(nvml, function)(*args)
    except AttributeError:
        return None
    except nvml.NVMLError as error:
        if code_of(error) in (GPU_IS_LOST, RESET_REQUIRED):
            raise
        return None


def read_gpus(nvml: Nvml) -> list[NvmlGpu]:
    """Return the GPUs that this process may use; one that does not respond keeps its position.

    NVML may list GPUs that a device cgroup denies, e.g. under Slurm's ``--gres=gpu:2``: CUDA does
    not count them. The library must be open.
    """
    found = []
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            found.append(_read_gpu(nvml, index))
        except nvml.NVMLError as error:  # noqa: PERF203 - each GPU can fail on its own
            if code_of(error) != NO_PERMISSION:
                found.append(NvmlGpu(index))  # e.g. lost from the bus
    return found


def _read_gpu(nvml: Nvml, index: int) -> NvmlGpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    uuid = text(nvml.nvmlDeviceGetUUID(handle))
    pci = ask(nvml, "nvmlDeviceGetPciInfo", handle)
    address = None if pci is None else f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0"
    model = text(ask(nvml, "nvmlDeviceGetName", handle) or "")
    mig = tuple(_mig_devices(nvml, handle, uuid))
    return NvmlGpu(index, uuid, address, model, mig, _nvlink_domain(nvml, handle))


def _nvlink_domain(nvml: Nvml, gpu: Any) -> str:
    """Return the NVLink domain of a GPU.

    GPUs with the same cluster UUID and clique can reach each other over NVLink; without a fabric of
    several machines the UUID is zero. Source: NVML, ``nvmlGpuFabricInfoV_t``; NCCL's ``mnnvl.cc``
    has the same rule.
    """
    try:
        info = nvml.c_nvmlGpuFabricInfoV_t()
        nvml.nvmlDeviceGetGpuFabricInfoV(gpu, ctypes.byref(info))
    except (AttributeError, nvml.NVMLError):  # an earlier driver or pynvml
        return ""
    cluster = bytes(info.clusterUuid)
    is_complete = info.state == nvml.NVML_GPU_FABRIC_STATE_COMPLETED and not info.status
    return f"{uuid.UUID(bytes=cluster)}.{info.cliqueId}" if is_complete and any(cluster) else ""


def _mig_devices(nvml: Nvml, gpu: Any, gpu_uuid: str) -> Iterator[tuple[str, ...]]:
    for slot in range(ask(nvml, "nvmlDeviceGetMaxMigDeviceCount", gpu) or 0):
        try:
            handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, slot)
            uuid = text(nvml.nvmlDeviceGetUUID(handle))
            gpu_instance = nvml.nvmlDeviceGetGpuInstanceId(handle)
            compute_instance = nvml.nvmlDeviceGetComputeInstanceId(handle)
        except nvml.NVMLError:
            continue  # an empty slot
        old = f"MIG-{gpu_uuid}/{gpu_instance}/{compute_instance}"
        yield tuple(dict.fromkeys((uuid, old)))


def visible(gpus: Sequence[NvmlGpu], environ: Mapping[str, str]) -> tuple[Chosen, bool]:
    """Return the devices that CUDA shows, and whether the positions of their GPUs are certain.

    Each is an entry of ``CUDA_VISIBLE_DEVICES``, or an index, with the position of its GPU. By
    default CUDA starts with the fastest GPU, and NVML has PCI order, so their indices differ if
    there are several models.
    """
    value = environ.get("CUDA_VISIBLE_DEVICES")
    if value is not None and value.startswith("MIG-"):
        parts = [(names, index) for index, gpu in enumerate(gpus) for names in gpu.mig]
        places = choose(value, [names for names, _ in parts])
        return [(entry, parts[place][1]) for entry, place in places], True
    if value is None:
        chosen = [(str(index), index) for index in range(len(gpus))]
    else:
        chosen = choose(value, [(gpu.uuid,) if gpu.uuid else () for gpu in gpus])
    in_pci_order = environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    are_alike = len({gpu.model for gpu in gpus if gpu.model}) < 2
    return chosen, in_pci_order or are_alike or (value or "").startswith("GPU-")


def visible_gpus(gpus: Sequence[NvmlGpu], environ: Mapping[str, str]) -> list[int]:
    """Return the GPUs that are visible in an environment; all, if it is unknown which."""
    chosen, is_known = visible(gpus, environ)
    if chosen and not is_known:
        return list(range(len(gpus)))
    return sorted({index for _, index in chosen})


def used_bytes(nvml: Nvml) -> dict[str, int]:
    """Return the memory in use on each visible GPU that responds, by UUID."""
    found = {}
    gpus = read_gpus(nvml)
    for gpu in (gpus[index] for index in visible_gpus(gpus, os.environ)):
        with suppress(nvml.NVMLError):  # it is lost
            handle = nvml.nvmlDeviceGetHandleByIndex(gpu.nvml_index)
            memory = ask(nvml, "nvmlDeviceGetMemoryInfo", handle) if gpu.uuid else None
            if memory is not None:
                found[gpu.uuid] = int(memory.used)
    return found


def text(value: str | bytes) -> str:
    """Return a string of NVML, which some versions return as bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


# --- from a process that must not hang -------------------------------------------------------

NO_ANSWER: Final = "the process that asks it has failed"
_HUNG: Final[list[object]] = []
"""Processes that may never exit."""


def gpus_by_process(command: Sequence[str] = GPUS, deadline_s: float = DEADLINE_S) -> list[NvmlGpu]:
    """Return the result of ``read_gpus`` from another process; raises ``NvmlFailedError``."""
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
    except OSError as error:
        raise NvmlFailedError(error.strerror or str(error)) from error
    try:
        output, _ = process.communicate(timeout=deadline_s)
    except subprocess.TimeoutExpired:
        process.kill()
        _HUNG.append(process)  # no wait: it may be in uninterruptible sleep
        assert process.stdout is not None
        process.stdout.close()
        raise NvmlFailedError(f"no answer within {deadline_s:g} s: the driver hangs") from None
    try:
        found = json.loads(output.splitlines()[-1])  # a library may have printed lines before
        if "error" in found:
            raise NvmlFailedError(found["error"])
        return [
            NvmlGpu(index, uuid, address, model, tuple(map(tuple, mig)), domain)
            for index, uuid, address, model, mig, domain in found["answer"]
        ]
    except (ValueError, LookupError, TypeError):
        raise NvmlFailedError(NO_ANSWER) from None
