"""Copies tensors in the background, until the next step of an optimizer."""

import os
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ..activities import activity

_CUDA: Any = torch.cuda
"""Untyped: the stubs differ between builds of torch."""
LARGE_BYTES = 1 << 18
"""Smaller tensors are copied immediately, which is cheaper than detecting changes."""
_SAMPLE_EVERY_BYTES = 1 << 16


Copies = list[tuple[torch.Tensor, torch.Tensor]]
"""Targets and sources; each rank copies its own part of a sharded source."""


def local(value: Any) -> Any:
    """Return this rank's part of a value that may be sharded."""
    return value.to_local() if isinstance(value, DTensor) else value


def copy_source(value: torch.Tensor, *, is_left_alone: bool) -> torch.Tensor | None:
    """Return the source of a background copy; None if the tensor must be copied immediately.

    ``is_left_alone``: whether only optimizers change the tensor, which can be sharded.
    """
    part = local(value)
    if is_left_alone and not value.is_inference() and (part.nbytes >= LARGE_BYTES or part.is_cuda):
        return value
    # An immediate copy to the host would synchronize with the GPU.
    return part.detach().clone() if part.is_cuda and part.nbytes < LARGE_BYTES else None


@torch.no_grad()
def copy_now(copies: Copies) -> None:
    """Copy tensors synchronously."""
    if copies:
        torch._foreach_copy_([to for to, _ in copies], [local(value) for _, value in copies])


class LateCopy:
    """A copy of tensors that detects changes during the copy.

    Torch counts writes to a tensor, but not those through ``.data``, NumPy or a collective.
    Therefore samples of each large tensor are taken at the start and compared with the copy, which
    detects changes of a whole tensor.
    """

    def __init__(self, copies: Copies) -> None:
        """Targets have the shapes and types of their sources.

        No source may be an inference tensor, which has no version.
        """
        self._targets = [to for to, _ in copies]
        self._values = [value for _, value in copies]
        """For version checks: the local part of a DTensor has a different version counter."""
        self._sources = [local(value) for value in self._values]
        self._versions = [value._version for value in self._values]
        self._samples = _sampled(self._sources)
        self._streams = _streams_of(self._sources)

    @torch.no_grad()
    def run(self) -> bool:
        """Copy; return whether no change was detected."""
        with ExitStack() as stack:
            for stream in self._streams:
                # A new thread is on device 0. Leaving the stream of another device would restore
                # device 0 and so initialize CUDA on another rank's GPU.
                stack.enter_context(_CUDA.device(stream.device))
                stack.enter_context(_CUDA.stream(stream))
            torch._foreach_copy_(self._targets, self._sources, non_blocking=True)
            for stream in self._streams:
                stream.synchronize()
            samples = [sample.cpu() for sample in self._samples]
        versions = [value._version for value in self._values]
        return versions == self._versions and all(map(_is_same, samples, _sampled(self._targets)))


class Background:
    """A thread that runs one function at a time; optimizers wait for it before they step.

    It keeps no reference to a function that has returned, nor to this object. At exit, the process
    waits for it.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._thread = ThreadPoolExecutor(1, "ft-run-snapshots")
        self._last: Future[None] = Future()
        self._last.set_result(None)
        weakref.finalize(self, self._thread.shutdown, wait=False)
        run_before_steps(self.wait)

    @property
    def error(self) -> BaseException | None:
        """The exception of the last function."""
        return self._last.exception() if self._last.done() else None

    def begin(self, function: Callable[[], object]) -> None:
        """Run a function in the thread; the previous one must have ended."""
        functions = [function]

        def run() -> None:
            functions.pop()()

        self._last = self._thread.submit(run)

    def wait(self) -> None:
        """Wait until the function has ended; in a forked child, return immediately."""
        if not self._last.done() and os.getpid() == self._pid:
            with activity("saving"):
                wait((self._last,))


def run_before_steps(method: Callable[[], object]) -> None:
    """Call a method before each optimizer step, as long as its object is alive."""
    found = weakref.WeakMethod(method)

    def before_step(*_: object) -> None:
        living = found()
        if living is not None:
            living()

    # Causes a graph break in compiled steps, like torch.compiler.disable but without its import.
    before_step._torchdynamo_disable = True  # type: ignore[attr-defined]  # torch reads it
    before_step._torchdynamo_disable_msg = None  # type: ignore[attr-defined]  # likewise
    handle = register_optimizer_step_pre_hook(before_step)
    weakref.finalize(method.__self__, handle.remove)  # type: ignore[attr-defined]  # of a method


@torch.no_grad()
def _sampled(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    parts = [tensor[_sample_index(tensor)] for tensor in tensors if tensor.nbytes >= LARGE_BYTES]
    samples = [part.new_empty(part.shape) for part in parts]
    if samples:
        torch._foreach_copy_(samples, parts)
    return samples


def _sample_index(tensor: torch.Tensor) -> tuple[slice, ...]:
    """Return the index of one sample per 64 KiB, spread over the first dimensions."""
    left = max(1, tensor.nbytes // _SAMPLE_EVERY_BYTES)
    places = []
    for size in tensor.shape:
        count = min(size, left)
        step = -(-size // count)
        places.append(slice(step // 2, None, step))
        left = max(1, left // count)
    return tuple(places)


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Compare bits, because NaN does not equal itself."""
    return torch.equal(one.flatten().view(torch.uint8), other.flatten().view(torch.uint8))


def _streams_of(sources: list[torch.Tensor]) -> list[Any]:
    """Return a stream per GPU that waits for the work queued so far."""
    streams = []
    for device in {source.device: None for source in sources if source.is_cuda}:
        streams.append(_CUDA.Stream(device))
        streams[-1].wait_stream(_CUDA.current_stream(device))
    return streams
