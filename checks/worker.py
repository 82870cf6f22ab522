"""A check worker: one process per local worker, for as long as the node is being checked.

It reads orders from its standard input and answers on its standard output (``post`` has the words).
End-of-file ends it. It imports torch once, while it has nothing else to do; each order that needs
other workers has a process group of its own. Whatever a library writes to standard output goes to
standard error instead, of which the crew keeps the end for its reports.
"""

import importlib
import math
import os
import select
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Final, NoReturn, Protocol

from . import fact_rules
from .facts import FactSources, collect_facts, kind_of_gpus
from .faults import VARIABLE, ActiveFaults, parse_faults
from .measure import BUDGETS, QuotaWatch
from .records import Metrics, Order, Phase, Record, order_from_json, record_to_json
from .worker_config import (
    ANSWER,
    FAREWELL,
    IMPORTING,
    LARGE,
    MEETING,
    SMALL,
    STAGE,
    CheckWorkerConfig,
)

if TYPE_CHECKING:
    import torch

    from .measure_group import GroupProbe, Meeting

_PATIENCE: Final = 0.85
"""The part of an order's time after which a collective gives up: its reason then still counts."""

_REASON_MAX: Final = 400

_GLOO_INTERFACE: Final = "GLOO_SOCKET_IFNAME"


class CheckError(Exception):
    """Raised when a check cannot be carried out, or its outcome makes no sense."""


class CheckWorker:
    """Carries out orders, one after the other."""

    def __init__(self, post: CheckWorkerConfig, orders_fd: int, answers_fd: int) -> None:
        self._post = post
        self._orders = os.fdopen(orders_fd, "rb", buffering=0)
        self._answers_fd = answers_fd
        self._binds_gloo = _GLOO_INTERFACE not in os.environ
        self._stage = ""
        self._has_torch = False
        self._must_end = False
        """The state of this process can no longer be trusted: the crew starts another."""

    def run(self) -> None:
        """Serve until end-of-file."""
        with self._orders:
            while not self._must_end:
                if not self._has_torch and not self._has_order():
                    self._import_torch()
                line = self._orders.readline()
                if not line:
                    return
                order = order_from_json(line)
                record = self._carry_out(order)
                word = FAREWELL if self._must_end else ANSWER
                self._say(f"{word} {order.number} {record_to_json(record)}")

    def _has_order(self) -> bool:
        return bool(select.select([self._orders], [], [], 0)[0])

    def _import_torch(self) -> None:
        if not self._has_torch:
            self._enter(IMPORTING)
            # What is wrong with it is said in the answer to the first order that needs it.
            with suppress(Exception):
                importlib.import_module("torch")
                importlib.import_module("torch.distributed")
            self._has_torch = True

    def _carry_out(self, order: Order) -> Record:
        record = Record(self._post.node, order.phase)
        try:
            match order.phase:
                case Phase.FACTS:
                    return self._facts(order, record)
                case Phase.SOLO:
                    return replace(record, metrics=plausible(self._solo(order)))
                case _:
                    return replace(record, metrics=plausible(self._together(order)))
        except Exception as error:  # every way to fail is the outcome of a check
            return replace(record, failure=self._in_words(error))

    # --- phases ------------------------------------------------------------------------------

    def _facts(self, order: Order, record: Record) -> Record:
        self._enter("collecting facts")
        post = self._post
        facts = collect_facts(
            FactSources(
                local_world_size=post.local_world_size,
                use_gpus=post.accelerator != "cpu",
                gpus_shown={} if post.gpus_asked_by else post.gpus_shown,
                log_dir=post.log_dir,
                script=post.script,
                memory_cgroups=post.memory_cgroups,
                ft_run_version=post.ft_run_version,
                environ=_environ_of_node(post),
                unix_time_s=order.unix_time_s or None,
            )
        )
        found = fact_rules.findings(facts)
        fatal = [finding.text for finding in found if finding.is_fatal]
        warnings = [finding.text for finding in found if not finding.is_fatal]
        if warnings:
            facts[fact_rules.WARNINGS] = "; ".join(warnings)
        return replace(record, facts=facts, failure="; ".join(fatal))

    def _solo(self, order: Order) -> Metrics:
        device, faults = self._begin(order)
        from .measure_device import DeviceProbe

        # What a GPU does takes next to no time of a CPU.
        share = self._post.cpu_share if device.type == "cpu" else 1.0
        quota = QuotaWatch(self._post.cpu_cgroups, share)
        probe = DeviceProbe(device, BUDGETS[order.level], quota, faults)
        try:
            self._enter("matrix product")
            compute = probe.compute_tflops()
            self._enter("memory")
            memory = probe.memory_gb_per_s()
            self._enter("copy to the device")
            copy = probe.copy_gb_per_s()
        finally:
            probe.close()
        bandwidth = None
        if order.world_size > 1:
            with self._group(order, device, faults) as group:
                self._enter(LARGE)
                bandwidth = group.bandwidth_gb_per_s()
        return Metrics(compute, memory, copy, bandwidth)

    def _together(self, order: Order) -> Metrics:
        device, faults = self._begin(order)
        with self._group(order, device, faults) as group:
            self._enter(SMALL)
            latency = group.latency_us()
            self._enter(LARGE)
            return Metrics(latency_us=latency, bandwidth_gb_per_s=group.bandwidth_gb_per_s())

    @contextmanager
    def _group(
        self, order: Order, device: "torch.device", faults: ActiveFaults
    ) -> "Iterator[GroupProbe]":
        from .measure_group import GroupProbe

        budget = BUDGETS[order.level]
        if order.phase is Phase.ALL:
            # That it works, and its values, are all that counts: how fast all together are is
            # nobody's own speed.
            budget = replace(budget, latency_s=0.0, bandwidth_s=0.0)
        self._enter(MEETING)
        try:
            with GroupProbe(self._meeting(order), device, budget, faults) as group:
                yield group
        except Exception:
            # A broken NCCL communicator cannot be trusted to come down in order.
            self._must_end = device.type == "cuda"
            raise

    def _begin(self, order: Order) -> "tuple[torch.device, ActiveFaults]":
        """Return the device and the faults of this order.

        Raises:
            Exception: there is no such device, or no torch; or a fault was injected.
        """
        self._import_torch()
        import torch
        import torch.distributed

        post = self._post
        self._enter("opening the device")
        injected = parse_faults(os.environ.get(VARIABLE, ""))
        faults = ActiveFaults(injected, post.node, post.local_rank, order.phase)
        faults.strike(lambda: os._exit(1))
        built_for = kind_of_gpus(torch.version.cuda, torch.version.hip)
        if not has_gpu(post, torch.cuda, built_for):
            return torch.device("cpu"), faults
        device = torch.device("cuda", post.device_index)
        torch.cuda.set_device(device)
        return device, faults

    def _meeting(self, order: Order) -> "Meeting":
        from .measure_group import Meeting

        if self._binds_gloo:
            bind_gloo(order.interface)
        return Meeting(
            number=order.number,
            rank=order.rank_offset + self._post.local_rank,
            world_size=order.world_size,
            master_addr=order.master_addr,
            master_port=order.master_port,
            timeout_s=order.deadline_s * _PATIENCE,
        )

    # --- the crew ----------------------------------------------------------------------------

    def _enter(self, stage: str) -> None:
        self._stage = stage
        self._say(f"{STAGE} {stage}")

    def _say(self, line: str) -> None:
        data = (line + "\n").encode()
        while data:
            data = data[os.write(self._answers_fd, data) :]

    def _in_words(self, error: Exception) -> str:
        text = next(iter(str(error).strip().splitlines()), "")
        if not type(error).__module__.startswith(__package__ or "ft_run"):
            text = f"{type(error).__name__}: {text}"
        return f"{self._stage}: {text}"[:_REASON_MAX]


def bind_gloo(interface: str) -> None:
    """Have gloo listen on an interface; where none is known (empty), choose for itself.

    The one of an order before, such as the loopback, may lead nowhere.
    """
    if interface:
        os.environ[_GLOO_INTERFACE] = interface
    else:
        os.environ.pop(_GLOO_INTERFACE, None)


def _environ_of_node(post: CheckWorkerConfig) -> Mapping[str, str]:
    """Return the environment in which the GPUs of all workers of the node can be seen."""
    if post.devices is None:
        return os.environ
    return os.environ | {"CUDA_VISIBLE_DEVICES": post.devices}


class Gpus(Protocol):
    """What is asked of ``torch.cuda``."""

    def is_available(self) -> bool:
        """Return whether there is a device that torch can use."""

    def device_count(self) -> int:
        """Return how many it can see."""


def has_gpu(post: CheckWorkerConfig, gpus: Gpus, built_for: str | None) -> bool:
    """Return whether a worker checks its GPU; else it checks a CPU.

    Args:
        post: says which GPU that would be, what was asked for and what the machine shows.
        gpus: what torch can use.
        built_for: the kind of GPUs that torch was built for; None for none.

    Raises:
        CheckError: a GPU was asked for, or torch was built for those that the machine shows, and it
            can use none; or there are others, and none for this worker.
    """
    if post.accelerator == "cpu":
        return False
    if not gpus.is_available():
        if post.gpus_asked_by:
            why = "finds none that works" if built_for else "was built without support for any"
            raise CheckError(
                f"{post.gpus_asked_by} asks for GPUs, and this torch {why}"
                " (--accelerator=cpu checks CPUs)"
            )
        if built_for is not None and built_for in post.gpus_shown:
            raise CheckError(
                f"there are GPUs ({post.gpus_shown[built_for]}), and this torch, built for them,"
                " finds none that works (--accelerator=cpu checks CPUs)"
            )
        return False
    count = gpus.device_count()
    if post.device_index >= count:
        raise CheckError(
            f"there is no GPU for local rank {post.local_rank}: {count} can be seen"
            " (--accelerator=cpu checks CPUs)"
        )
    return True


def plausible(metrics: Metrics) -> Metrics:
    """Return ``metrics`` if they are numbers that a measurement can give.

    Raises:
        CheckError: one is zero, infinite or no number.
    """
    for name, value in asdict(metrics).items():
        if value is not None and not (value > 0 and math.isfinite(value)):
            raise CheckError(f"{name} was measured as {value}")
    return metrics


def main() -> NoReturn:
    """Be a check worker until the crew has no more orders."""
    # The standard streams belong to libraries from here on.
    orders, answers = os.dup(0), os.dup(1)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    CheckWorker(CheckWorkerConfig.from_json(sys.argv[1]), orders, answers).run()
    # A communicator that has lost its peers could wait for them in a destructor.
    os._exit(0)
