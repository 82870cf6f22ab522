"""Health of NVIDIA GPUs through NVML: no context is created, no memory is taken on a device."""

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final, Protocol, cast

from .records import Fact


class Nvml(Protocol):
    """What is used of ``pynvml``: its functions and constants by name; failures ``NVMLError``."""

    NVMLError: type[Exception]

    def __getattr__(self, name: str) -> Any: ...


NvmlLoader = Callable[[], Nvml | None]

_THROTTLE_REASONS: Final = {
    0x8: "a hardware limit (power brake, heat)",
    0x20: "heat (software limit)",
    0x40: "heat (hardware limit)",
    0x80: "the power supply (power brake)",
}
"""Bits of ``nvmlDeviceGetCurrentClocksThrottleReasons`` that healthy hardware does not set.

Idle (0x1), application clocks (0x2) and the power cap under load (0x4) are normal.
Source: nvml.h, ``nvmlClocksThrottleReason…``.
"""


def load_nvml() -> Nvml | None:
    """Return ``pynvml``; None where it is not installed."""
    try:
        return cast(Nvml, importlib.import_module("pynvml"))
    except ImportError:
        return None


def collect_gpu_facts(environ: Mapping[str, str], load: NvmlLoader = load_nvml) -> dict[str, Fact]:
    """Return the facts of every GPU that ``CUDA_VISIBLE_DEVICES`` leaves visible.

    ``gpus`` is their number; ``gpu0_…`` is the first in the order of NVML. Without a driver there
    are none. MIG devices are judged by the GPU they are a part of, so all GPUs count then.
    """
    nvml = load()
    if nvml is None:
        return {}
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        if "NotFound" in type(error).__name__ or "Not Found" in str(error):
            return {}  # no driver, so no GPU
        return {"nvml_error": str(error)}
    try:
        return _collect(nvml, environ.get("CUDA_VISIBLE_DEVICES"))
    except nvml.NVMLError as error:
        return {"nvml_error": str(error)}
    finally:
        with suppress(nvml.NVMLError):
            nvml.nvmlShutdown()


def _collect(nvml: Nvml, visible: str | None) -> dict[str, Fact]:
    facts: dict[str, Fact] = {"driver": _text(nvml.nvmlSystemGetDriverVersion())}
    chosen = [
        index for index in range(nvml.nvmlDeviceGetCount()) if _is_visible(nvml, index, visible)
    ]
    facts["gpus"] = len(chosen)
    for index in chosen:
        prefix = f"gpu{index}"
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
        except nvml.NVMLError as error:
            facts[f"{prefix}_error"] = str(error)  # fallen off the bus, say
            continue
        for name, value in _gpu(nvml, handle):
            facts[f"{prefix}_{name}"] = value
    return facts


def _is_visible(nvml: Nvml, index: int, visible: str | None) -> bool:
    if visible is None or visible.startswith("MIG-"):
        return True
    entries = [entry.strip() for entry in visible.split(",") if entry.strip()]
    if str(index) in entries:
        return True
    try:
        uuid = _text(nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(index)))
    except nvml.NVMLError:
        return False
    return any(entry.startswith("GPU-") and uuid.startswith(entry) for entry in entries)


def _gpu(nvml: Nvml, handle: Any) -> Iterator[tuple[str, Fact]]:
    """Yield what one GPU says; what its generation or driver does not know is left out."""
    for collect in (_memory, _memory_health, _pace, _pcie, _nvlink):
        yield from collect(nvml, handle)


def _ask(nvml: Nvml, function: str, *args: Any) -> Any:
    """Return an answer of NVML; None where it is not supported."""
    try:
        return getattr(nvml, function)(*args)
    except (nvml.NVMLError, AttributeError):
        return None


def _memory(nvml: Nvml, handle: Any) -> Iterator[tuple[str, Fact]]:
    name = _ask(nvml, "nvmlDeviceGetName", handle)
    if name is not None:
        yield "name", _text(name)
    memory = _ask(nvml, "nvmlDeviceGetMemoryInfo", handle)
    if memory is not None:
        yield "memory_gb", round(memory.total / 1e9, 1)
        yield "used_gb", round(memory.used / 1e9, 1)


def _memory_health(nvml: Nvml, handle: Any) -> Iterator[tuple[str, Fact]]:
    """Uncorrected errors since the driver was loaded; rows (A100 on) or pages to be replaced."""
    # 1: uncorrected; 0: volatile, since the driver was loaded.
    errors = _ask(nvml, "nvmlDeviceGetTotalEccErrors", handle, 1, 0)
    if errors is not None:
        yield "ecc_uncorrected", int(errors)
    rows = _ask(nvml, "nvmlDeviceGetRemappedRows", handle)
    if rows is not None:
        corrected, uncorrected, pending, failed = rows[:4]
        yield "rows_remapped", int(corrected) + int(uncorrected)
        yield "row_remap_pending", int(pending)
        yield "row_remap_failed", int(failed)
    pages = _ask(nvml, "nvmlDeviceGetRetiredPagesPendingStatus", handle)
    if pages is not None:
        yield "page_retirement_pending", int(pages)


def _pace(nvml: Nvml, handle: Any) -> Iterator[tuple[str, Fact]]:
    reasons = _ask(nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", handle)
    if reasons is not None:
        words = [text for bit, text in _THROTTLE_REASONS.items() if int(reasons) & bit]
        yield "throttled_by", " and ".join(words)
    temperature = _ask(nvml, "nvmlDeviceGetTemperature", handle, 0)  # 0: of the GPU itself
    if temperature is not None:
        yield "temperature_c", int(temperature)
        slowdown = _ask(nvml, "nvmlDeviceGetTemperatureThreshold", handle, 1)  # 1: slowdown
        if slowdown:
            yield "temperature_margin_c", int(slowdown) - int(temperature)


def _pcie(nvml: Nvml, handle: Any) -> Iterator[tuple[str, Fact]]:
    """Lanes, and the generation, which an idle GPU lowers to save power."""
    lanes = _ask(nvml, "nvmlDeviceGetCurrPcieLinkWidth", handle)
    most = _ask(nvml, "nvmlDeviceGetMaxPcieLinkWidth", handle)
    if lanes is not None and most is not None:
        yield "pcie_lanes", int(lanes)
        yield "pcie_lanes_missing", int(most) - int(lanes)
    generation = _ask(nvml, "nvmlDeviceGetCurrPcieLinkGeneration", handle)
    highest = _ask(nvml, "nvmlDeviceGetMaxPcieLinkGeneration", handle)
    if generation is not None and highest is not None:
        yield "pcie_generation", int(generation)
        yield "pcie_generation_max", int(highest)


def _nvlink(nvml: Nvml, handle: Any) -> Iterator[tuple[str, Fact]]:
    up = down = 0
    for link in range(int(getattr(nvml, "NVML_NVLINK_MAX_LINKS", 18))):
        state = _ask(nvml, "nvmlDeviceGetNvLinkState", handle, link)
        if state is None:
            break  # no such link
        up, down = up + (state == 1), down + (state != 1)
    # Where no link is up, the board has NVLink but this machine does not use it.
    if up:
        yield "nvlinks_up", up
        yield "nvlinks_down", down


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
