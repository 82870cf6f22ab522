"""Health of NVIDIA GPUs through NVML, without creating a context or allocating device memory."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from ..launcher.machine.nvml import (
    NOT_SUPPORTED,
    Nvml,
    NvmlFailedError,
    NvmlLoader,
    ask,
    code_of,
    load_nvml,
    opened,
    read_gpus,
    text,
    visible_gpus,
)
from .records import Fact

_THROTTLE_REASONS: Final = {
    0x8: "a hardware limit (power brake, temperature)",
    0x20: "temperature (software limit)",
    0x40: "temperature (hardware limit)",
    0x80: "the power supply (power brake)",
}
"""Bits of ``nvmlDeviceGetCurrentClocksThrottleReasons`` that healthy hardware does not set.

Idle (0x1), application clocks (0x2) and the power cap under load (0x4) are normal. Source: nvml.h,
``nvmlClocksThrottleReason…``."""


def collect_gpu_facts(environ: Mapping[str, str], load: NvmlLoader = load_nvml) -> dict[str, Fact]:
    """Return the system information of every GPU that ``CUDA_VISIBLE_DEVICES`` leaves visible.

    ``gpus`` is their number; ``gpu0_…`` is the first GPU of this process in NVML's order. Without a
    driver the result is empty. A MIG device is judged by the GPU that it is part of.
    """
    try:
        nvml = load()
    except NvmlFailedError as error:
        return {"nvml_error": str(error)}
    if nvml is None:
        return {}
    try:
        with opened(nvml):
            return _collect(nvml, environ)
    except nvml.NVMLError as error:
        if "NotFound" in type(error).__name__ or "Not Found" in str(error):
            return {}  # no driver, so no GPU
        return {"nvml_error": str(error)}


def throttled_by(uuid: str, load: NvmlLoader = load_nvml) -> str:
    """Return what currently throttles the GPU with this UUID; empty for nothing or unknown."""
    with suppress(NvmlFailedError):
        nvml = load()
        if nvml is None:
            return ""
        with suppress(nvml.NVMLError), opened(nvml):
            return _throttle_words(nvml, nvml.nvmlDeviceGetHandleByUUID(uuid)) or ""
    return ""


def _collect(nvml: Nvml, environ: Mapping[str, str]) -> dict[str, Fact]:
    facts: dict[str, Fact] = {"driver": text(nvml.nvmlSystemGetDriverVersion())}
    gpus = read_gpus(nvml)
    chosen = visible_gpus(gpus, environ)
    facts["gpus"] = len(chosen)
    for index in chosen:
        prefix = f"gpu{index}"
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(gpus[index].nvml_index)
            values = dict(_gpu(nvml, handle))
        except nvml.NVMLError as error:
            facts[f"{prefix}_error"] = str(error)  # e.g. fallen off the bus, or in need of a reset
            continue
        facts |= {f"{prefix}_{name}": value for name, value in values.items()}
    return facts | _compared(facts, chosen)


def _compared(facts: Mapping[str, Fact], chosen: Sequence[int]) -> dict[str, Fact]:
    models = [str(facts.get(f"gpu{index}_name", "unknown")) for index in chosen]
    found: dict[str, Fact] = {}
    if models:
        counts = sorted(Counter(models).items())
        found["gpu_models"] = ", ".join(f"{count} x {model}" for model, count in counts)
    links = [int(facts.get(f"gpu{index}_nvlinks_up", 0)) for index in chosen]
    if any(links):
        found["nvlinks_up"] = sum(links)
        for index, model, up in zip(chosen, models, links, strict=True):
            most = max(n for n, other in zip(links, models, strict=True) if other == model)
            found[f"gpu{index}_nvlinks_missing"] = most - up
    return found


def _gpu(nvml: Nvml, handle: Any) -> Iterator[tuple[str, Fact]]:
    """Yield the values of one GPU, without values that its generation or driver lacks."""
    for collect in (_memory, _memory_health, _pace, _pcie, _nvlink):
        yield from collect(nvml, handle)


def _memory(nvml: Nvml, handle: Any) -> Iterator[tuple[str, Fact]]:
    """Yield name and memory; raise ``NVMLError`` if it fails, as every other call would."""
    yield "name", text(nvml.nvmlDeviceGetName(handle))
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    except nvml.NVMLError as error:
        if code_of(error) != NOT_SUPPORTED:
            raise
    else:  # GPUs that share the host's memory do not have this value
        yield "memory_gb", round(memory.total / 1e9, 1)
        yield "used_gb", round(memory.used / 1e9, 1)


def _memory_health(nvml: Nvml, handle: Any) -> Iterator[tuple[str, Fact]]:
    """Yield uncorrected errors since the driver was loaded; rows (A100 on) or pages to replace."""
    # 1: uncorrected; 0: volatile, since the driver was loaded.
    errors = ask(nvml, "nvmlDeviceGetTotalEccErrors", handle, 1, 0)
    if errors is not None:
        yield "ecc_uncorrected", int(errors)
    rows = ask(nvml, "nvmlDeviceGetRemappedRows", handle)
    if rows is not None:
        corrected, uncorrected, pending, failed = rows[:4]
        yield "rows_remapped", int(corrected) + int(uncorrected)
        # A row whose errors were all corrected has not lost data, and is replaced in due course.
        lost_data = bool(uncorrected or errors)
        yield "row_remap_pending", int(pending and lost_data)
        yield "row_remap_pending_corrected", int(pending and not lost_data)
        yield "row_remap_failed", int(failed)
    pages = ask(nvml, "nvmlDeviceGetRetiredPagesPendingStatus", handle)
    if pages is not None:
        yield "page_retirement_pending", int(pages)


def _pace(nvml: Nvml, handle: Any) -> Iterator[tuple[str, Fact]]:
    words = _throttle_words(nvml, handle)
    if words is not None:
        yield "throttled_by", words
    temperature = ask(nvml, "nvmlDeviceGetTemperature", handle, 0)  # 0: the GPU's own temperature
    if temperature is not None:
        yield "temperature_c", int(temperature)
        margin = ask(nvml, "nvmlDeviceGetMarginTemperature", handle)
        if margin is None:  # before Ada and Hopper; 1: the threshold at which it slows down
            slowdown = ask(nvml, "nvmlDeviceGetTemperatureThreshold", handle, 1)
            margin = int(slowdown) - int(temperature) if slowdown else None
        if margin is not None:
            yield "temperature_margin_c", int(margin)


def _throttle_words(nvml: Nvml, handle: Any) -> str | None:
    reasons = ask(nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", handle)
    if reasons is None:
        return None
    return " and ".join(word for bit, word in _THROTTLE_REASONS.items() if int(reasons) & bit)


def _pcie(nvml: Nvml, handle: Any) -> Iterator[tuple[str, Fact]]:
    """Yield the lanes, and the generation, which an idle GPU lowers to save power."""
    lanes = ask(nvml, "nvmlDeviceGetCurrPcieLinkWidth", handle)
    most = ask(nvml, "nvmlDeviceGetMaxPcieLinkWidth", handle)
    if lanes is not None and most is not None:
        yield "pcie_lanes", int(lanes)
        yield "pcie_lanes_missing", int(most) - int(lanes)
    generation = ask(nvml, "nvmlDeviceGetCurrPcieLinkGeneration", handle)
    highest = ask(nvml, "nvmlDeviceGetMaxPcieLinkGeneration", handle)
    if generation is not None and highest is not None:
        yield "pcie_generation", int(generation)
        yield "pcie_generation_max", int(highest)


def _nvlink(nvml: Nvml, handle: Any) -> Iterator[tuple[str, Fact]]:
    up = down = 0
    for link in range(int(getattr(nvml, "NVML_NVLINK_MAX_LINKS", 18))):
        state = ask(nvml, "nvmlDeviceGetNvLinkState", handle, link)
        if state is None:
            break  # no such link
        up, down = up + (state == 1), down + (state != 1)
    # If no link is up, the board has NVLink but this machine does not use it.
    if up:
        yield "nvlinks_up", up
        yield "nvlinks_down", down
