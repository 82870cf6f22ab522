"""A check worker: one process per local worker, for as long as the node is being checked.

It reads orders from its standard input and answers on its standard output (``worker_config``
defines the messages); end-of-file ends it. It imports torch once, while it is idle. Each order that
needs other workers has a separate process group. Libraries' standard output is redirected to
standard error, whose last part the crew keeps for its reports.
"""

import importlib
import math
import os
import re
import select
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NoReturn

from . import fact_rules
from .facts import collect_facts, kind_of_gpus
from .faults import VARIABLE, ActiveFaults, parse_faults
from .gpu_facts import throttled_by
from .measure import BUDGETS, cpu_share
from .records import Fact, Level, Metrics, Phase, Record, record_to_json
from .worker_config import (
    ANSWER,
    FAREWELL,
    IMPORTING,
    LARGE,
    MEETING,
    REASON_MAX,
    SMALL,
    STAGE,
    CheckWorkerConfig,
    Delivery,
    Order,
    first_words,
)

if TYPE_CHECKING:
    import torch

    from .gpu_timer import GpuTimer
    from .measure_group import GroupProbe

_PATIENCE: Final = 0.85
"""The fraction of an order's time after which a collective times out, early enough to report why.
"""


class CheckError(Exception):
    """Raised if a check cannot be carried out, or its result is implausible."""


class CheckWorker:
    """Carries out orders, one after the other."""

    def __init__(self, config: CheckWorkerConfig, orders_fd: int, answers_fd: int) -> None:
        self._config = config
        self._orders = os.fdopen(orders_fd, "rb", buffering=0)
        self._answers_fd = answers_fd
        self._stage = ""
        self._has_torch = False
        self._on_gpu = False
        """Whether the current order has opened a GPU."""
        self._give_up_at = math.inf
        """Time on ``time.monotonic`` when the operations of the current order time out."""
        self._must_end = False
        """The state of this process can no longer be trusted: the crew starts another one."""

    def run(self) -> None:
        """Serve orders until end-of-file."""
        with self._orders:
            while not self._must_end:
                if not self._has_torch and not self._has_order():
                    self._import_torch()
                line = self._orders.readline()
                if not line:
                    return
                delivery = Delivery.from_json(line)
                self._answer(delivery.order, self._carry_out(delivery))

    def _has_order(self) -> bool:
        return bool(select.select([self._orders], [], [], 0)[0])

    def _import_torch(self) -> None:
        if not self._has_torch:
            self._enter(IMPORTING)
            # The answer to the first order that needs it reports the error.
            with suppress(Exception):
                importlib.import_module("torch")
                importlib.import_module("torch.distributed")
            self._has_torch = True

    def _carry_out(self, delivery: Delivery) -> Record:
        order = delivery.order
        record = Record(self._config.node, Phase(order.phase))
        self._on_gpu = False
        self._give_up_at = time.monotonic() + _PATIENCE * order.deadline_s - delivery.age_s
        try:
            match record.phase:
                case Phase.FACTS:
                    return self._facts(record, delivery.unix_time_s)
                case Phase.SOLO:
                    metrics, facts = self._solo(order)
                    return replace(record, metrics=plausible(metrics), facts=facts)
                case _:
                    return replace(record, metrics=plausible(self._together(order)))
        except Exception as error:  # every exception is the result of a check
            # A broken context or communicator cannot be trusted to shut down cleanly.
            self._must_end = self._must_end or self._on_gpu
            return replace(record, failure=self._in_words(error))

    # --- phases ------------------------------------------------------------------------------

    def _facts(self, record: Record, unix_time_s: float) -> Record:
        self._enter("collecting system information")
        config = self._config
        facts = collect_facts(config, _environ_of_node(config), unix_time_s)
        facts |= {"mig_devices": config.mig_devices} if config.mig_devices else {}
        found = fact_rules.findings(facts)
        fatal = [finding.text for finding in found if finding.is_fatal]
        warnings = [finding.text for finding in found if not finding.is_fatal]
        if warnings:
            facts[fact_rules.WARNINGS] = "; ".join(warnings)
        return replace(record, facts=facts, failure="; ".join(fatal))

    def _solo(self, order: Order) -> tuple[Metrics, dict[str, Fact]]:
        device, faults = self._begin(order)
        from .measure_device import DeviceProbe  # torch, which is imported while idle

        share = cpu_share(self._config.local_world_size)
        probe = DeviceProbe(device, BUDGETS[Level(order.level)], share, faults, self._timer())
        self._enter("matrix product")
        metrics = {"compute_tflops": probe.compute_tflops()}
        facts = self._throttled(device)
        self._enter("memory")
        metrics["memory_gb_per_s"] = probe.memory_gb_per_s()
        meeting: AbstractContextManager[GroupProbe | None] = nullcontext()
        if order.world_size > 1:
            meeting = self._group(order, device, faults)
        with meeting as group:
            if group is not None:
                # Workers share PCIe: the bandwidth left to each shows only if all copy
                # simultaneously.
                group.meet()
            if device.type != "cpu":
                self._enter("copy to the device")
                metrics["copy_gb_per_s"] = probe.copy_gb_per_s()
            if group is not None and not self._config.mig_devices:
                self._enter(LARGE)
                metrics["intra_gb_per_s"] = group.bandwidth_gb_per_s()
        probe.close()
        return metrics, facts

    def _throttled(self, device: "torch.device") -> dict[str, Fact]:
        """Return what throttles the GPU; call it right after work, while the GPU is hot."""
        if device.type == "cpu":
            return {}
        import torch  # as above

        uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
        words = "" if uuid is None else throttled_by(f"GPU-{uuid}")
        return {f"local_rank{self._config.local_rank}_throttled_by": words} if words else {}

    def _timer(self) -> "GpuTimer":
        from .gpu_timer import GpuTimer  # torch

        return GpuTimer(self._give_up_at)

    def _together(self, order: Order) -> Metrics:
        device, faults = self._begin(order)
        with self._group(order, device, faults) as group:
            self._enter(SMALL)
            latency = group.latency_us()
            self._enter(LARGE)
            return {"latency_us": latency, "bandwidth_gb_per_s": group.bandwidth_gb_per_s()}

    @contextmanager
    def _group(
        self, order: Order, device: "torch.device", faults: ActiveFaults
    ) -> "Iterator[GroupProbe]":
        from .measure_group import HOST, GroupProbe  # torch

        budget = BUDGETS[Level(order.level)]
        if order.phase == Phase.ALL.value:
            # Only success and correct values count here: the joint speed is not a node's own speed.
            budget = replace(budget, latency_s=0.0, bandwidth_s=0.0)
        self._enter(MEETING)
        if self._config.mig_devices:
            device = HOST  # over gloo
        rank = order.rank_offset + self._config.local_rank
        limit_s = max(self._give_up_at - time.monotonic(), 1.0)
        with GroupProbe(order, rank, limit_s, device, budget, faults, self._timer()) as group:
            yield group

    def _begin(self, order: Order) -> "tuple[torch.device, ActiveFaults]":
        """Return the order's device and faults; raise without torch or device, or for a fault."""
        self._import_torch()
        import torch  # as above; an error is the result of this order
        import torch.distributed  # as above

        config = self._config
        self._enter("opening the device")
        injected = parse_faults(os.environ.get(VARIABLE, ""))
        faults = ActiveFaults(injected, config.node, config.local_rank, Phase(order.phase))
        faults.strike(lambda: os._exit(1))
        built_for = kind_of_gpus(torch.version.cuda, torch.version.hip)
        if not has_gpu(config, torch.cuda, built_for):
            return torch.device("cpu"), faults
        device = torch.device("cuda", config.device_index)
        self._on_gpu = True
        torch.cuda.set_device(device)
        return device, faults

    # --- the crew ----------------------------------------------------------------------------

    def _answer(self, order: Order, record: Record) -> None:
        word = FAREWELL if self._must_end else ANSWER
        self._write_line(f"{word} {order.number} {record_to_json(record)}")

    def _enter(self, stage: str) -> None:
        self._stage = stage
        self._write_line(f"{STAGE} {stage}")

    def _write_line(self, line: str) -> None:
        data = (line + "\n").encode()
        while data:
            data = data[os.write(self._answers_fd, data) :]

    def _in_words(self, error: Exception) -> str:
        text = first_words(str(error))
        if not type(error).__module__.startswith(__package__ or "ft_run"):
            text = f"{type(error).__name__}: {text}"
        return f"{self._stage}: {text}"[:REASON_MAX]


def _environ_of_node(config: CheckWorkerConfig) -> Mapping[str, str]:
    if config.devices is None:
        return os.environ
    return os.environ | {"CUDA_VISIBLE_DEVICES": config.devices}


def has_gpu(config: CheckWorkerConfig, gpus: Any, built_for: str | None) -> bool:
    """Return whether a worker checks its GPU (otherwise a CPU); ``gpus`` is ``torch.cuda``.

    Raises:
        CheckError: If torch cannot use a GPU although one was requested or torch was built for the
            machine's GPUs; or if there are GPUs, but none for this worker.
    """
    if config.accelerator == "cpu":
        return False
    if not gpus.is_available():
        if config.gpus_asked_by:
            why = "was built without GPU support"
            if built_for:
                why = f"finds no working GPU{_why_no_gpu(gpus)}"
            raise CheckError(
                f"{config.gpus_asked_by} requires GPUs, but this torch {why}"
                " (--accelerator=cpu checks CPUs)"
            )
        if built_for is not None and built_for in config.gpus_shown:
            raise CheckError(
                f"GPUs found ({config.gpus_shown[built_for]}), but this torch, which was built "
                f"for them, finds no working GPU{_why_no_gpu(gpus)} (--accelerator=cpu checks "
                "CPUs)"
            )
        return False
    count = gpus.device_count()
    if config.device_index >= count:
        raise CheckError(
            f"no GPU for local rank {config.local_rank}: {count} visible"
            " (--accelerator=cpu checks CPUs)"
        )
    return True


def _why_no_gpu(gpus: Any) -> str:
    """Return the error of CUDA, e.g. ``: Error 802: system not yet initialized``."""
    try:
        gpus.init()
    except Exception as error:  # any exception is the reason
        found = re.search(r"Error \d+: .*", str(error))
        text = found[0] if found else first_words(str(error))
        hint = " (is nvidia-fabricmanager running?)" if "Error 802" in text else ""
        return f": {text}{hint}"
    return ""


def plausible(metrics: Metrics) -> Metrics:
    """Return ``metrics``; raise ``CheckError`` if a value is not a positive finite number."""
    for name, value in metrics.items():
        if not (value > 0 and math.isfinite(value)):
            raise CheckError(f"{name} was measured as {value}")
    return metrics


def main() -> NoReturn:
    """Run a check worker until the crew has no more orders."""
    # Libraries may write to the standard streams from here on.
    orders, answers = os.dup(0), os.dup(1)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    CheckWorker(CheckWorkerConfig.from_json(sys.argv[1]), orders, answers).run()
    # A communicator that has lost its peers could block in a destructor.
    os._exit(0)
