"""Copies of tensors that go on while training does, until an optimizer may change them."""

import os
import threading
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from queue import SimpleQueue
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

_CUDA: Any = torch.cuda
"""Without types: torch's builds differ in them."""
LARGE_BYTES = 1 << 18
"""What is smaller is copied at once: that takes less than to look whether it stays the same."""
_SAMPLE_EVERY_BYTES = 1 << 16


Copies = list[tuple[torch.Tensor, torch.Tensor]]
"""What is copied to, and the values, which may be sharded: then each rank copies its part."""


def local(value: Any) -> Any:
    """Return this rank's part of a value."""
    return value.to_local() if isinstance(value, DTensor) else value


def kept(value: torch.Tensor, *, is_left_alone: bool) -> torch.Tensor | None:
    """Return what a tensor may be copied from while training goes on; None: it is copied at once.

    Args:
        value: the tensor, which may be sharded.
        is_left_alone: whether only optimizers change it.
    """
    part = local(value)
    if is_left_alone and not value.is_inference() and (part.nbytes >= LARGE_BYTES or part.is_cuda):
        return value
    # A GPU would be waited for until it has done all that it was given.
    return part.detach().clone() if part.is_cuda and part.nbytes < LARGE_BYTES else None


@torch.no_grad()
def copy_now(copies: Copies) -> None:
    """Copy tensors, and return when that is done."""
    if copies:
        torch._foreach_copy_([to for to, _ in copies], [local(value) for _, value in copies])


class LateCopy:
    """Tensors that are being copied, and may be changed meanwhile.

    Then the copy is of no use, and this is noticed. Torch counts what is written to a tensor, but
    not what comes through ``.data``, from NumPy or by a collective. So some values of each large
    tensor are kept from the beginning, and the copy must have the same: one that is changed as a
    whole before it was copied has not.
    """

    def __init__(self, copies: Copies) -> None:
        """Look at the tensors as they are now; the copy is of this moment.

        Args:
            copies: to tensors of the same shapes and types, of none that was made in inference
                mode, where torch counts nothing.
        """
        self._targets = [to for to, _ in copies]
        self._values = [value for _, value in copies]
        """What torch counts with: that of a part has a count of its own."""
        self._sources = [local(value) for value in self._values]
        self._versions = [value._version for value in self._values]
        self._samples = _sampled(self._sources)
        self._streams = _streams_of(self._sources)

    @torch.no_grad()
    def run(self) -> bool:
        """Copy; return whether no tensor was changed meanwhile."""
        with ExitStack() as stack:
            for stream in self._streams:
                # A thread's device is 0 at first. Leaving a stream of another one sets it again,
                # which starts CUDA on a GPU that is another rank's.
                stack.enter_context(_CUDA.device(stream.device))
                stack.enter_context(_CUDA.stream(stream))
            torch._foreach_copy_(self._targets, self._sources, non_blocking=True)
            for stream in self._streams:
                stream.synchronize()
            samples = [sample.cpu() for sample in self._samples]
        versions = [value._version for value in self._values]
        return versions == self._versions and all(map(_is_same, samples, _sampled(self._targets)))


class Background:
    """One thread that does one thing at a time, and that optimizers wait for before they step.

    When something is done, the thread holds nothing of it, nor of this object.
    """

    def __init__(self) -> None:
        """Start the thread; it ends with this object, or with the process."""
        self._pid = os.getpid()
        self._actions: SimpleQueue[_Action | None] = SimpleQueue()
        self._last = _Action(None)
        thread = threading.Thread(
            target=_work, args=(self._actions,), name="ft-run-snapshots", daemon=True
        )
        thread.start()
        weakref.finalize(self, _end, self._actions, thread)
        weakref.finalize(self, register_optimizer_step_pre_hook(_waiter(self)).remove)

    @property
    def error(self) -> Exception | None:
        """What the action raised that was done last."""
        return self._last.error

    def begin(self, function: Callable[[], object]) -> None:
        """Have something done; what was begun before is done."""
        self._last = _Action(function)
        self._actions.put(self._last)

    def wait(self) -> None:
        """Return when all is done; in a process that was forked meanwhile, there is nothing."""
        if not self._last.is_done.is_set() and os.getpid() == self._pid:
            self._last.is_done.wait()


class _Action:
    """What the thread is to do, and what became of it."""

    def __init__(self, function: Callable[[], object] | None) -> None:
        """Begin with a function; None: there is nothing to do."""
        self._function = function
        self.error: Exception | None = None
        self.is_done = threading.Event()
        if function is None:
            self.is_done.set()

    def run(self) -> None:
        """Do it, and let go of it."""
        try:
            if self._function is not None:
                self._function()
        except Exception as error:  # of the caller, when it waits
            self.error = error
        finally:
            self._function = None
            self.is_done.set()


def _waiter(background: Background) -> Callable[..., None]:
    found = weakref.ref(background)

    def before_step(*_: object) -> None:
        awaited = found()
        if awaited is not None:
            awaited.wait()

    # A compiled step breaks its graph here (what torch.compiler.disable sets, without its import).
    before_step._torchdynamo_disable = True  # type: ignore[attr-defined]  # torch reads it
    before_step._torchdynamo_disable_msg = None  # type: ignore[attr-defined]  # likewise
    return before_step


def _work(actions: "SimpleQueue[_Action | None]") -> None:
    while (action := actions.get()) is not None:
        action.run()
        del action


def _end(actions: "SimpleQueue[_Action | None]", thread: threading.Thread) -> None:
    actions.put(None)
    if thread is not threading.current_thread():
        thread.join()


@torch.no_grad()
def _sampled(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return some values of each large tensor, where it is."""
    parts = [tensor[_places(tensor)] for tensor in tensors if tensor.nbytes >= LARGE_BYTES]
    samples = [part.new_empty(part.shape) for part in parts]
    if samples:
        torch._foreach_copy_(samples, parts)
    return samples


def _places(tensor: torch.Tensor) -> tuple[slice, ...]:
    """Return a place for every so many bytes, spread over the first dimensions."""
    left = max(1, tensor.nbytes // _SAMPLE_EVERY_BYTES)
    places = []
    for size in tensor.shape:
        count = min(size, left)
        step = -(-size // count)
        places.append(slice(step // 2, None, step))
        left = max(1, left // count)
    return tuple(places)


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether the bits are the same: what is not a number equals nothing."""
    return torch.equal(one.flatten().view(torch.uint8), other.flatten().view(torch.uint8))


def _streams_of(sources: list[torch.Tensor]) -> list[Any]:
    """Return a stream for each GPU, which begins after what the GPU has been given."""
    streams = []
    for device in {source.device: None for source in sources if source.is_cuda}:
        streams.append(_CUDA.Stream(device))
        streams[-1].wait_stream(_CUDA.current_stream(device))
    return streams
