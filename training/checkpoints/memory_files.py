"""Maps memory files, with huge pages if possible, and registers them with the GPU.

Copies to and from registered memory are faster. If CUDA refuses, the memory is used unregistered.
"""

import ctypes
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch

_CUDA: Any = torch.cuda
"""Untyped: the stubs differ between builds of torch."""

HUGE_BYTES = 1 << 21
"""Size of a huge page; other sizes are not used."""
_MADV_POPULATE_WRITE = 23
"""Since Linux 5.14."""
_MADV_COLLAPSE = 25
"""Since Linux 6.1."""
_PROT_NONE, _PROT_READ_WRITE = 0, 3
_MAP_SHARED, _MAP_PRIVATE, _MAP_FIXED, _MAP_ANONYMOUS = 0x01, 0x02, 0x10, 0x20
_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.mmap.restype = ctypes.c_void_p
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def mapped(fd: int, length: int, *, is_there: bool = False) -> memoryview:
    """Map a memory file; it stays mapped while the result or a view of it is referenced.

    Uses huge pages if the kernel can, regardless of the system setting: with 300 MB, freeing the
    memory of a dead worker takes half the time, and allocating it a seventh.

    Args:
        fd: the file, at least as long as ``length``.
        length: in bytes, >= 1.
        is_there: whether the file was written before. Its pages are then mapped on first access,
            which takes a third of the time.

    Raises:
        OSError: If there is not enough memory.
    """
    room = length + HUGE_BYTES
    start = _map(None, room, _PROT_NONE, _MAP_PRIVATE | _MAP_ANONYMOUS, -1)
    address = -(-start // HUGE_BYTES) * HUGE_BYTES
    try:
        _map(address, length, _PROT_READ_WRITE, _MAP_SHARED | _MAP_FIXED, fd)
        if not is_there:
            _fill(fd, address, length)
    except OSError:
        _libc.munmap(start, room)
        raise
    memory = (ctypes.c_char * length).from_address(address)
    weakref.finalize(memory, _libc.munmap, start, room).atexit = False
    return memoryview(memory).cast("B")


def _map(address: int | None, length: int, protection: int, flags: int, fd: int) -> int:
    found = _libc.mmap(address, length, protection, flags, fd, 0)
    if found == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return int(found)


def _fill(fd: int, address: int, length: int) -> None:
    """Allocate all pages of a file; otherwise a write without free memory would kill the worker."""
    huge = length // HUGE_BYTES * HUGE_BYTES
    for offset in range(0, huge, HUGE_BYTES):
        os.posix_fallocate(fd, offset, 1)  # MADV_COLLAPSE needs a page in each huge page
    if huge:
        _libc.madvise(address, huge, _MADV_COLLAPSE)  # best effort
    os.posix_fallocate(fd, 0, length)
    # Best effort: on older kernels, the first write to each page is slow.
    _libc.madvise(address, length, _MADV_POPULATE_WRITE)


class Registration:
    """Memory that a thread registers with the current device, in one call.

    CUDA refuses a copy that crosses from one registered range to the next, or from registered to
    other memory. Drivers >= R580 refuse a call for 512 GiB or more.
    """

    def __init__(self, memory: torch.Tensor, owner: object) -> None:
        """Start; until ``wait`` has returned, do not copy between the memory and the GPU.

        ``memory`` starts at a page boundary; it is unregistered when ``owner`` is collected.

        Raises:
            RuntimeError: If no thread can be started, e.g. while the interpreter exits.
        """
        self._device = _CUDA.current_device()  # a new thread starts with device 0
        self._address = 0
        """Address of the registered memory; 0 if it is not registered."""
        # Not a daemon: a daemon thread that returns from CUDA while the interpreter exits aborts
        # the process.
        self._thread = threading.Thread(
            target=self._register, args=(memory,), name="ft-run-pinning"
        )
        self._thread.start()
        self.end = weakref.finalize(owner, self._end)
        """Unregisters the memory."""
        self.end.atexit = False  # the driver does it at exit

    def wait(self) -> None:
        """Wait until the memory is registered, or CUDA has refused."""
        self._thread.join()

    def _register(self, memory: torch.Tensor) -> None:
        address = memory.data_ptr()
        with _CUDA.device(self._device):
            if int(_CUDA.cudart().cudaHostRegister(address, memory.nbytes, 0)):
                _read_error()
            else:
                self._address = address

    def _end(self) -> None:
        if self._thread is not threading.current_thread():  # the garbage collector may run in it
            self._thread.join()
        if not self._address or not _CUDA.is_initialized():  # not initialized in a forked child
            return
        with _CUDA.device(self._device):  # the finalizer may run in any thread
            if int(_CUDA.cudart().cudaHostUnregister(self._address)):
                _read_error()


def register(memory: torch.Tensor, owner: object) -> Registration | None:
    """Start to register memory; None if this process uses no GPU, or cannot start a thread."""
    if not _CUDA.is_initialized() or _error_reader() is None:
        return None
    try:
        return Registration(memory, owner)
    except RuntimeError:  # as if CUDA had refused
        return None


def _read_error() -> None:
    read = _error_reader()
    if read is not None:
        read()


@cache
def _error_reader() -> Callable[[], int] | None:
    """Return ``cudaGetLastError`` of torch's CUDA runtime; None if it is not found.

    Torch's next kernel launch raises an error that was not read. Each copy of the runtime has its
    own error state, so the function is looked up in torch's library.
    """
    name = "hip" if torch.version.hip else "cuda"
    path = os.path.join(os.path.dirname(torch.__file__), "lib", f"libc10_{name}.so")
    try:
        return getattr(ctypes.CDLL(path), f"{name}GetLastError")  # type: ignore[no-any-return]  # of ctypes
    except (OSError, AttributeError):
        return None


# --- available memory ----------------------------------------------------------------------------


def available(root: Path = Path("/")) -> int:
    """Return the bytes available on the machine and within the limits of its cgroups."""
    found = [_number_after("MemAvailable:", root / "proc/meminfo", unit=1024)]
    for folder in _cgroups(root):
        for limit, usage, cached in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            with suppress(OSError, ValueError):  # no limit, or "max"
                most = int((folder / limit).read_text())
                used = int((folder / usage).read_text())
                kept = _number_after(cached, folder / "memory.stat", unit=1) or 0
                found.append(most - used + kept)
    return max(0, min((number for number in found if number is not None), default=1 << 62))


def _cgroups(root: Path) -> Iterator[Path]:
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        top = root / "sys/fs/cgroup" / controllers
        parts = [part for part in path.split("/") if part]
        for count in range(len(parts), -1, -1):
            yield top.joinpath(*parts[:count])


def _number_after(word: str, path: Path, unit: int) -> int | None:
    with suppress(OSError, ValueError):
        for line in path.read_text().splitlines():
            first, *rest = line.split()
            if first == word:
                return int(rest[0]) * unit
    return None
