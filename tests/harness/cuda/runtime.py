"""Stands in for CUDA where ft-run's training code meets it, with the rules that code can break.

``CudaRuntime`` is the runtime of one process; ``contexts`` counts those of all processes of a node.
Sources: the CUDA runtime API (docs.nvidia.com/cuda/cuda-runtime-api), sections as named below; the
sources of torch 2.13 (``torch/cuda/__init__.py``, ``c10/cuda/CUDAFunctions.cpp``,
``c10/cuda/CUDAException.cpp``, ``torch/csrc/cuda/shared/cudart.cpp``).

- A thread's device is 0 until it sets another (Device Management, ``cudaSetDevice``: "for the
  calling host thread").
- ``cudaSetDevice`` makes the device's context (likewise, since CUDA 12), and so does whatever needs
  one: registering memory, streams, launches ("Initialization" in the Programming Guide). Asking
  which device it is makes none.
- Leaving ``torch.cuda.device`` sets the device of before only where it has a context; leaving
  ``torch.cuda.stream`` sets that of the stream of before whether it has one or not.
- An error stays until the same thread reads it from the same library (Error Handling,
  ``cudaGetLastError``). ``torch.cuda.cudart()`` returns errors and has nothing to read them with; a
  launch by torch reads and raises it (``C10_CUDA_KERNEL_LAUNCH_CHECK``).
- Registering what overlaps a registered range is error 712, ending the registration of what has
  none, or not by its first address, is 713 (Memory Management, ``cudaHostRegister``,
  ``cudaHostUnregister``). From driver R580 on, a call with 512 GiB or more is error 2 (reported to
  vLLM and maru, July and August 2026, with the driver's message). Unmapping does not end it.
- A copy of a range that is registered in part is error 1 (driver API, ``cuMemcpy``: "must be either
  entirely registered with CUDA, or … not registered at all"), and so is one of a range that two
  calls have registered (seen on an H100 with driver 580.159.04 and CUDA 13.0).
- A copy to registered memory that may go on is done when its stream is synchronised, if not before;
  one to other memory returns when it is done (API synchronization behavior, "Asynchronous"). One
  stream waits for what another has been given by an event (Stream Management,
  ``cudaStreamWaitEvent``).
- Where a GPU has no memory left, torch raises ``OutOfMemoryError``.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._C import DisableTorchFunctionSubclass

SUCCESS, INVALID_VALUE, NO_MEMORY, REGISTERED, NOT_REGISTERED = 0, 1, 2, 712, 713
_NAMES = {1: "invalid argument", 2: "out of memory", 712: "already registered", 713: "unknown"}
_LAUNCHES = {"clone", "copy_", "mul_", "zero_", "_foreach_copy_", "new_empty", "cpu"}


class CudaRuntime:
    """What ``torch.cuda`` and ``torch.cuda.cudart()`` are to one process, as far as it is used."""

    def __init__(self, contexts: "Counter[int] | None" = None) -> None:
        self.contexts: Counter[int] = Counter() if contexts is None else contexts
        """By device: how many processes of the node have one."""
        self.mine: set[int] = set()
        self.registered: dict[int, int] = {}
        """Bytes by address."""
        self.call_limit = 1 << 39
        self.pinnable: float = float("inf")
        """What the machine lets this process register."""
        self.free: float = float("inf")
        """Bytes of memory that torch may take of a GPU."""
        self.calls: list[int] = []
        """The bytes of each call that registered some."""
        self.registers = threading.Event()
        """Until it is set, no call that registers memory returns."""
        self.registers.set()
        self.registered_by: set[str] = set()
        """The names of threads that registered some."""
        self.waited_by: set[str] = set()
        """The names of threads that had a stream do its copies."""
        self.broken = ""
        """What each copy of a stream ends with."""
        self._thread = threading.local()
        self._defaults: dict[int, GpuStream] = {}

    # --- the runtime -------------------------------------------------------------------------

    def _open(self, device: int) -> None:
        if device not in self.mine:
            self.mine.add(device)
            self.contexts[device] += 1

    def _fails(self, code: int) -> int:
        self._thread.error = code or self.pending
        return code

    @property
    def pending(self) -> int:
        """The error that this thread has not read."""
        return getattr(self._thread, "error", SUCCESS)

    @property
    def _device(self) -> int:
        return getattr(self._thread, "device", 0)

    def read_error(self) -> int:
        """``cudaGetLastError``."""
        code, self._thread.error = self.pending, SUCCESS
        return code

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:  # noqa: N802 - its name
        self._open(self._device)
        self.calls.append(size)
        self.registered_by.add(threading.current_thread().name)
        self.registers.wait()
        found = self.registered.items()
        if any(start < address + size and address < start + n for start, n in found):
            return self._fails(REGISTERED)
        if size >= self.call_limit or size + sum(self.registered.values()) > self.pinnable:
            return self._fails(NO_MEMORY)
        self.registered[address] = size
        return SUCCESS

    def cudaHostUnregister(self, address: int) -> int:  # noqa: N802 - its name
        self._open(self._device)
        return self._fails(NOT_REGISTERED * (self.registered.pop(address, None) is None))

    def _is_registered(self, memory: torch.Tensor) -> bool:
        start, end = memory.data_ptr(), memory.data_ptr() + memory.nbytes
        found = {
            max(0, min(end, at + size) - max(start, at)) for at, size in self.registered.items()
        } - {0}
        if found not in (set(), {memory.nbytes}):
            self._check(INVALID_VALUE)
        return bool(found)

    def _check(self, code: int) -> None:
        if code:
            self.read_error()
            raise RuntimeError(f"CUDA error: {_NAMES[code]}\nCompile with `TORCH_USE_CUDA_DSA`.")

    # --- torch.cuda --------------------------------------------------------------------------

    def is_initialized(self) -> bool:
        return True

    def cudart(self) -> "CudaRuntime":
        return self

    def current_device(self) -> int:
        wanted = getattr(self._thread, "wanted", None)
        return self._device if wanted is None else wanted

    def set_device(self, device: Any) -> None:
        self._thread.wanted = None
        self._thread.device = device if isinstance(device, int) else device.index
        self._open(self._device)

    @contextmanager
    def device(self, device: Any) -> Iterator[None]:
        before = self.current_device()
        self.set_device(device)
        yield
        if before in self.mine:
            self.set_device(before)
        else:
            self._thread.wanted = before

    def Stream(self, device: Any = None) -> "GpuStream":  # noqa: N802 - its name
        stream = GpuStream(self, self.current_device() if device is None else device.index)
        self._open(stream.device.index)
        return stream

    @property
    def _streams(self) -> "dict[int, GpuStream]":
        if not hasattr(self._thread, "streams"):
            self._thread.streams = {}
        found: dict[int, GpuStream] = self._thread.streams
        return found

    def current_stream(self, device: Any = None) -> "GpuStream":
        index = self.current_device() if device is None else device.index
        default = self._defaults.setdefault(index, GpuStream(self, index))
        return self._streams.get(index, default)

    def _set_stream(self, stream: "GpuStream") -> None:
        if self.current_device() != stream.device.index:
            self.set_device(stream.device)
        self._streams[stream.device.index] = stream

    @contextmanager
    def stream(self, stream: "GpuStream | None") -> Iterator[None]:
        if stream is None:
            yield
            return
        before, there = self.current_stream(), self.current_stream(stream.device)
        self._set_stream(stream)
        yield
        if before.device != stream.device:
            self._set_stream(there)
        self._set_stream(before)

    # --- tensors -----------------------------------------------------------------------------

    def launch(self, device: int = 0) -> None:
        """Have torch do something on a device, whatever it is."""
        self._open(device)
        self._check(self.pending)

    def take(self, size: int) -> None:
        """Take memory of a GPU."""
        if size > self.free:
            raise torch.cuda.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {size} bytes")

    def copy(self, to: torch.Tensor, source: "GpuTensor", *, may_go_on: bool) -> None:
        """Copy to the memory of the host on the current stream of the source's device."""
        stream = self.current_stream(source.device)
        is_registered = self._is_registered(to)

        def copy() -> None:
            self.waited_by.add(threading.current_thread().name)
            if self.broken:
                raise RuntimeError(f"CUDA error: {self.broken}")
            with torch.no_grad(), DisableTorchFunctionSubclass():
                to.copy_(source)

        stream.work.append(copy)
        if not (may_go_on and is_registered):
            stream.synchronize()

    def on(self, tensor: torch.Tensor, device: int) -> "GpuTensor":
        """Return a tensor that is on a device, and shares the memory of one that is not."""
        made = torch.Tensor._make_subclass(GpuTensor, tensor, tensor.requires_grad)
        made.runtime, made.at = self, device
        return made


class GpuStream:
    """A stream, whose work is done when it must be."""

    def __init__(self, runtime: CudaRuntime, device: int) -> None:
        self.runtime, self.device = runtime, torch.device("cuda", device)
        self.work: list[Callable[[], None]] = []

    def wait_stream(self, other: "GpuStream") -> None:
        """Wait for an event that is recorded now: what the other is given later is not awaited."""
        given = list(other.work)
        self.work.append(lambda: other.synchronize(given))

    def synchronize(self, only: "list[Callable[[], None]] | None" = None) -> None:
        while self.work and (only is None or self.work[0] in only):
            self.work.pop(0)()


class GpuTensor(torch.Tensor):
    """A tensor that says that it is on a GPU."""

    runtime: CudaRuntime
    at: int
    is_cuda = property(lambda _: True)
    device = property(lambda self: torch.device("cuda", self.at))

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        flat = [one for arg in args for one in (arg if isinstance(arg, list) else [arg])]
        mine = next(one for one in flat if isinstance(one, GpuTensor))
        runtime, name = mine.runtime, function.__name__
        if name in _LAUNCHES:
            runtime.launch(mine.at)
        if name == "copy_" and type(args[1]) is torch.Tensor:
            runtime._is_registered(args[1])  # refused in part
        if name == "to" and (kwargs or {}).get("device") == mine.device:
            kwargs = {key: value for key, value in kwargs.items() if key != "device"}
        if name in ("clone", "new_empty"):
            runtime.take(mine.nbytes)
        if name == "cpu" or (name == "_foreach_copy_" and type(args[0][0]) is torch.Tensor):
            with DisableTorchFunctionSubclass():
                to = [torch.empty(mine.shape, dtype=mine.dtype)] if name == "cpu" else args[0]
            for target, source in zip(to, args if name == "cpu" else args[1], strict=True):
                runtime.copy(target, source, may_go_on=bool((kwargs or {}).get("non_blocking")))
            return to[0] if name == "cpu" else None
        with DisableTorchFunctionSubclass():
            found = function(*args, **(kwargs or {}))
        if isinstance(found, torch.Tensor) and not isinstance(found, GpuTensor):
            return runtime.on(found, mine.at)
        return found
