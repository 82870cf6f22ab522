"""Measures a single device: matrix product, memory, copy from the host. Imports torch."""

import itertools
from collections.abc import Callable
from typing import Any, Final

import torch

from ..launcher.machine.locality import near
from .faults import ActiveFaults
from .gpu_timer import GpuTimer
from .measure import Budget, best_time_s, largest_within, settled_time_s

_CPU_SIZES: Final = (128, 192, 256, 320, 384, 512, 768, 1024)
_GPU_SIZES: Final = (1024, 2048, 4096, 8192, 12288, 16384)
_CPU_PIECE_S: Final = 0.0007
"""Time of a product on a CPU: less than a scheduler's time slice (``measure``)."""
_GPU_PIECE_S: Final = 0.005
"""Time of a product on a GPU: many times the cost of a launch."""

_SLICE_BYTES: Final = 4 << 20
_GPU_MEMORY_BYTES: Final = 256 << 20
_GPU_COPIES: Final = 8
_PINNED_BYTES: Final = 64 << 20
_PRODUCT: Final = "a matrix product"

_TOLERANCES: Final = {torch.bfloat16: 0.02, torch.float32: 1e-4}
"""Maximum error of the sum of a row, as a fraction of n, by precision. bfloat16: 2⁻⁹, the rounding
of one entry, times the five standard deviations that ten thousand rows of normally distributed
errors reach, doubled."""


class WrongValueError(Exception):
    """Raised when a device or a collective returns a wrong result."""


class DeviceProbe:
    """Measures one device. ``close`` returns its memory to the device."""

    def __init__(
        self,
        device: torch.device,
        budget: Budget,
        share: float,
        faults: ActiveFaults,
        timer: GpuTimer | None = None,
    ) -> None:
        """``share`` is the fraction of a CPU that this process gets."""
        self._device = device
        self._timer = timer or GpuTimer()
        self._budget = budget
        self._share = share
        self._faults = faults
        self._on_gpu = device.type == "cuda"
        if not self._on_gpu:
            # Threads that wait for each other after each piece are fast only while all of them run:
            # one busy neighbor would slow down every piece, including the best.
            torch.set_num_threads(1)

    def compute_tflops(self) -> float:
        """Return the speed of the product of two n × n matrices: 2 n³ / time / 10^12.

        In the training precision: bfloat16 on a GPU, float32 on one core of a CPU. n is the
        smallest of a few sizes whose product takes about a millisecond (5 ms on a GPU). Raises
        ``WrongValueError`` if the product is wrong, or differs between two runs.
        """
        sizes = _GPU_SIZES if self._on_gpu else _CPU_SIZES
        target_s = _GPU_PIECE_S if self._on_gpu else _CPU_PIECE_S
        size = largest_within(sizes, self._product_time_s, target_s)
        product = self._product(size)
        self._run(product.run)
        product.verify()
        time_s = self._time_s(product.run, self._budget.compute_s, after=product.compare)
        product.verify()
        return 2.0 * size**3 / time_s / 1e12

    def memory_gb_per_s(self) -> float:
        """Return the speed of a memory copy: (bytes read + bytes written) / time / 10^9.

        The buffers are larger than caches; on a CPU the copy processes them in slices.
        """
        if self._on_gpu:
            return self._gpu_memory_gb_per_s()
        count = self._budget.memory_bytes // 4
        step = _SLICE_BYTES // 4
        source, target = torch.zeros(count), torch.zeros(count)
        starts = itertools.cycle(range(0, count - step + 1, step))

        def copy_slice() -> None:
            start = next(starts)
            target[start : start + step].copy_(source[start : start + step])

        time_s = self._time_s(copy_slice, self._budget.memory_s)
        return 2.0 * _SLICE_BYTES / time_s / 1e9

    def copy_gb_per_s(self) -> float:
        """Return the speed from pinned host memory to a GPU, bytes / time / 10^9."""
        with near(_pci_address(self._device)):
            return self._near_copy_gb_per_s()

    def _near_copy_gb_per_s(self) -> float:
        source = torch.zeros(_PINNED_BYTES, dtype=torch.uint8, pin_memory=True)
        target = torch.zeros(_PINNED_BYTES, dtype=torch.uint8, device=self._device)

        def copy() -> None:
            target.copy_(source, non_blocking=True)

        self._run(copy, "a copy")
        return _PINNED_BYTES / self._time_s(copy, self._budget.copy_s, "a copy") / 1e9

    def close(self) -> None:
        """Release the memory that the allocator caches."""
        if self._on_gpu:
            torch.cuda.empty_cache()

    def _product(self, size: int) -> "Product":
        return Product(
            size,
            self._device,
            dtype=torch.bfloat16 if self._on_gpu else torch.float32,
            # hipBLASLt may split a sum among threads that add in any order.
            repeats_exactly=self._on_gpu and torch.version.hip is None,
            is_wrong=self._faults.wrong_value,
        )

    def _product_time_s(self, size: int) -> float:
        run = self._product(size).run
        self._run(run)  # the first call loads kernels and starts threads
        time_s = self._time_s(run, 0.0)
        return time_s if self._on_gpu else time_s * self._share  # the size of a piece has no quota

    def _gpu_memory_gb_per_s(self) -> float:
        source = torch.zeros(_GPU_MEMORY_BYTES, dtype=torch.uint8, device=self._device)
        target = torch.zeros_like(source)

        def copies() -> None:
            for _ in range(_GPU_COPIES):
                target.copy_(source)

        what = "copies within the memory"
        self._run(copies, what)
        time_s = self._time_s(copies, self._budget.memory_s, what)
        return 2.0 * _GPU_COPIES * _GPU_MEMORY_BYTES / time_s / 1e9

    def _run(self, work: Callable[[], object], what: str = _PRODUCT) -> None:
        work()
        if self._on_gpu:
            self._timer.finish(what)

    def _time_s(
        self,
        work: Callable[[], object],
        budget_s: float,
        what: str = _PRODUCT,
        *,
        after: Callable[[], object] = lambda: None,
    ) -> float:
        """Return the time of a piece of work.

        On a GPU, ``work`` only launches it: the GPU's clock counts, so a delay of the host does not
        matter. ``after`` is called after each piece on a GPU, and not timed.
        """
        if self._on_gpu:
            time_s = settled_time_s(lambda: self._timer.time_s(work, what), budget_s, after=after)
        else:
            time_s = best_time_s(work, budget_s) / self._share
        return time_s * self._faults.compute_factor


def _pci_address(device: torch.device) -> str | None:
    """Return the address of a GPU in ``/sys/bus/pci/devices``; None if torch is too old."""
    about: Any = torch.cuda.get_device_properties(device)
    try:
        return f"{about.pci_domain_id:04x}:{about.pci_bus_id:02x}:{about.pci_device_id:02x}.0"
    except AttributeError:
        return None


class Product:
    """A product of two square matrices whose result can be verified at a low cost."""

    def __init__(
        self,
        size: int,
        device: torch.device,
        *,
        dtype: torch.dtype = torch.float32,
        repeats_exactly: bool = False,
        is_wrong: bool = False,
    ) -> None:
        """Create the matrices.

        Args:
            repeats_exactly: whether the device guarantees the same result, bit for bit, each time.
            is_wrong: whether to put a wrong value into each result, as an injected fault.
        """
        generator = torch.Generator(device).manual_seed(size)
        self._left, self._right = (
            torch.randn(size, size, generator=generator, device=device).to(dtype) for _ in range(2)
        )
        self.result = torch.empty_like(self._left)
        self._tolerance = size * _TOLERANCES[dtype]
        self._repeats_exactly = repeats_exactly
        self._is_wrong = is_wrong
        self._first: torch.Tensor | None = None

    def run(self) -> None:
        """Multiply."""
        torch.mm(self._left, self._right, out=self.result)
        if self._is_wrong:
            self.result[0, 0] += self.result.shape[0]

    def verify(self) -> None:
        """Raise ``WrongValueError`` if the sum of the columns of A·B is not A·(B·1) (Freivalds).

        The sum of n entries of the order of √n, each rounded separately, has an error of the order
        of n. If the device repeats exactly, the product must also be identical, bit for bit, to the
        first one: cuBLAS guarantees that on one stream.
        """
        size = self.result.shape[0]
        ones = torch.ones(size, 1, device=self.result.device)
        expected = self._left.float() @ (self._right.float() @ ones)
        worst = float((self.result.float().sum(dim=1, keepdim=True) - expected).abs().max())
        if not worst <= self._tolerance:
            raise WrongValueError(
                f"the product of two {size} × {size} matrices is off by {worst:g}"
            )
        if self._first is None:
            self._first = self.result.clone()
        else:
            self._compare_with(self._first)

    def compare(self) -> None:
        """Verify one more result at the lowest cost: against the first one, or like ``verify``."""
        if self._first is None or not self._repeats_exactly:
            self.verify()
        else:
            self._compare_with(self._first)

    def _compare_with(self, first: torch.Tensor) -> None:
        size = self.result.shape[0]
        if self._repeats_exactly and not torch.equal(first, self.result):
            raise WrongValueError(
                f"the product of two {size} × {size} matrices differs between two runs"
            )
