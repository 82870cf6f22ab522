"""All-reduce among workers: latency and bandwidth, with every value verified. Imports torch.

Every worker of the group calls the same functions in the same order. Values that depend on time
(sizes, numbers of repetitions) are taken from the slowest worker, so that all make the same calls.
"""

import inspect
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]  # not declared

from ..training.gloo import gloo_towards
from .faults import ActiveFaults
from .gpu_timer import GpuTimer
from .measure import Budget
from .measure_device import WrongValueError
from .worker_config import Order

HOST: Final = torch.device("cpu")
_LATENCY_BYTES: Final = 8 * 4
_SMALL_CALLS: Final = 20
"""All-reduces of a few bytes between two events: a GPU's clock ticks every 0.5 µs, and the workers
do not start simultaneously."""
_FIRST_BYTES: Final = 512 << 10
_PIECE_S: Final = 0.004
"""Duration of a message that is large enough for bandwidth. On a busy machine, some messages of
this duration are not interrupted."""
_LEAST_REPETITIONS: Final = 5
_MOST_REPETITIONS: Final = 1000
_WARM_UP: Final = 3
_PATTERN: Final = 7
"""The period of the pattern that ranks add, so that a shifted or a lost piece is detected."""
_DISTINCT_RANKS: Final = 64
"""Sums of small whole numbers are exact in float32, up to 30,000 workers."""
_LEAVE_S: Final = 5.0


class GroupProbe:
    """One process group, from its formation to its shutdown. Use as a context manager."""

    def __init__(
        self,
        order: Order,
        rank: int,
        limit_s: float,
        device: torch.device,
        budget: Budget,
        faults: ActiveFaults,
        timer: GpuTimer | None = None,
    ) -> None:
        self._order = order
        self._rank = rank
        self._limit = timedelta(seconds=limit_s)
        self._device = device
        self._on_gpu = device.type == "cuda"
        self._timer = timer or GpuTimer()
        self._budget = budget
        self._faults = faults
        self._store: TCPStore | None = None

    def __enter__(self) -> "GroupProbe":
        order, limit = self._order, self._limit
        self._store = TCPStore(
            order.master_addr,
            order.master_port,
            order.world_size,
            is_master=self._rank == 0,
            timeout=limit,
            wait_for_workers=False,
        )
        try:
            # torch counts the groups of a process and puts the number into the keys of the store. A
            # group that failed to form stays counted: workers with different numbers would never
            # find each other.
            dist.distributed_c10d._world.group_count = 0
            with gloo_towards(order.master_addr):
                dist.init_process_group(
                    "nccl" if self._on_gpu else "gloo",
                    store=PrefixStore(f"order-{order.number}", self._store),
                    rank=self._rank,
                    world_size=order.world_size,
                    timeout=limit,
                    **self._bound_device(),
                )
        except BaseException:
            self._store = None
            raise
        return self

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        if self._on_gpu and error_type is not None:
            # NCCL would wait for kernels that never end, and a broken context would hide the
            # reason. The process exits instead.
            return
        # The store may have closed before a late peer finished: the measurements are still valid.
        with suppress(RuntimeError):
            if error_type is None:
                self._leave_together()
        with suppress(RuntimeError):
            dist.destroy_process_group()
        self._store = None
        if self._on_gpu:
            torch.cuda.empty_cache()

    def meet(self) -> None:
        """Wait for all other workers."""
        self._slowest(0.0)

    def latency_us(self) -> float:
        """Return the time of the all-reduce of 32 bytes, in microseconds: the best of many."""
        return self._best_time_s(_LATENCY_BYTES, self._budget.latency_s) * 1e6

    def bandwidth_gb_per_s(self) -> float:
        """Return the bus bandwidth of a large all-reduce: size / time × 2 (n - 1) / n / 10^9.

        Source: nccl-tests, PERFORMANCE.md. The size grows until one takes 4 ms, which also uses up
        the burst allowance of a traffic shaper.
        """
        size = _FIRST_BYTES
        while size < self._budget.message_max_bytes and self._piece_s(size) < _PIECE_S:
            size *= 2
        time_s = self._best_time_s(size, self._budget.bandwidth_s)
        workers = self._order.world_size
        return size / time_s * 2 * (workers - 1) / workers / 1e9

    def _piece_s(self, size: int) -> float:
        piece = self._all_reduce(size)
        # The first call creates the communicator, and each algorithm connects on its first use.
        # This takes seconds, regardless of the size.
        piece.timed()
        return self._slowest(piece.timed())

    def _best_time_s(self, size: int, budget_s: float) -> float:
        """Return the best time of an all-reduce, as measured by the slowest worker."""
        piece = self._all_reduce(size)
        start = time.perf_counter()
        for _ in range(_WARM_UP):
            piece.timed()
        # Filling and verifying take time too, so the whole repetition counts.
        whole_s = self._slowest((time.perf_counter() - start) / _WARM_UP)
        repetitions = int(budget_s / max(whole_s, 1e-9))
        repetitions = min(max(repetitions, _LEAST_REPETITIONS), _MOST_REPETITIONS)
        return self._slowest(min(piece.timed() for _ in range(repetitions)))

    def _slowest(self, value: float) -> float:
        agreed = torch.tensor([value], dtype=torch.float64, device=self._device)
        dist.all_reduce(agreed, op=dist.ReduceOp.MAX)
        if self._on_gpu:
            self._timer.finish("an all-reduce of 8 bytes")
        return float(agreed.item())

    def _all_reduce(self, size: int) -> "_AllReduce":
        timer = self._timer if self._on_gpu else None
        workers = self._order.world_size
        return _AllReduce(size, self._rank, workers, self._device, self._faults, timer)

    def _bound_device(self) -> dict[str, Any]:
        """Return the argument that makes NCCL connect immediately (since torch 2.3)."""
        knows = "device_id" in inspect.signature(dist.init_process_group).parameters
        return {"device_id": self._device} if self._on_gpu and knows else {}

    def _leave_together(self) -> None:
        """Let rank 0, which hosts the store, leave last: no rank loses the store too early."""
        if self._store is None:
            return
        if self._store.add("left", 1) == self._order.world_size:
            self._store.set("all-left", "1")
        if self._rank == 0:
            with suppress(RuntimeError):  # a rank failed after the last collective
                self._store.wait(["all-left"], timedelta(seconds=_LEAVE_S))


class _AllReduce:
    """An all-reduce of known values: every rank adds its number times a pattern."""

    def __init__(
        self,
        size: int,
        rank: int,
        workers: int,
        device: torch.device,
        faults: ActiveFaults,
        timer: GpuTimer | None,
    ) -> None:
        count = size // 4
        period = torch.arange(1, _PATTERN + 1, dtype=torch.float32, device=device)
        pattern = period.repeat(count // _PATTERN + 1)[:count]
        weights = [number % _DISTINCT_RANKS + 1 for number in range(workers)]
        self._mine = pattern * weights[rank]
        self._expected = pattern * sum(weights)
        if faults.wrong_value:
            self._mine[count // 2] += 1
        self._calls = 1 if timer is None or size > _LATENCY_BYTES else _SMALL_CALLS
        self._buffer = self._mine.new_empty(self._calls, count)
        self._size = size
        self._workers = workers
        self._timer = timer
        run = self._all_reduce
        self._run: Callable[[], None] = faults.slow_communication(run)
        self._is_slowed = self._run is not run

    def timed(self) -> float:
        """Run once and return the time in seconds.

        Raises:
            WrongValueError: If the sum is wrong.
            TimedOutError: If a GPU does not finish in time.
        """
        self._buffer.copy_(self._mine)
        if self._timer is None:
            start = time.perf_counter()
            self._run()
            elapsed = time.perf_counter() - start
        else:
            self._timer.finish("the memory")
            launch = self._run if self._is_slowed else self._launch
            elapsed = self._timer.time_s(launch, self._name) / self._calls
        if not torch.equal(self._buffer, self._expected.expand_as(self._buffer)):
            wrong = int((self._buffer != self._expected).sum())
            raise WrongValueError(f"{self._name} returned {wrong} wrong value(s)")
        return elapsed

    @property
    def _name(self) -> str:
        return f"an all-reduce of {self._size} bytes among {self._workers} workers"

    def _launch(self) -> None:
        for buffer in self._buffer:
            dist.all_reduce(buffer)

    def _all_reduce(self) -> None:
        self._launch()
        if self._timer is not None:
            self._timer.finish(self._name)
