"""Maps files in memory, in huge pages where the kernel can, and registers them with the GPU.

Copies to and from registered memory take less time. Where CUDA refuses, the memory stays as it is,
and nothing of the refusal is left behind.
"""

import ctypes
import os
import weakref
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

_CUDA: Any = torch.cuda
"""Without types: torch's builds differ in them."""
_PIECE_BYTES = 1 << 36
"""Registered by one call: drivers from R580 on refuse 512 GiB and more."""

HUGE_BYTES = 1 << 21
"""A huge page; where they are of another size, there are none for this."""
_MADV_POPULATE_WRITE = 23
"""Of Linux 5.14."""
_MADV_COLLAPSE = 25
"""Of Linux 6.1."""
_PROT_NONE, _PROT_READ_WRITE = 0, 3
_MAP_SHARED, _MAP_PRIVATE, _MAP_FIXED, _MAP_ANONYMOUS = 0x01, 0x02, 0x10, 0x20
_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.mmap.restype = ctypes.c_void_p
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def mapped(fd: int, length: int, *, is_there: bool = False) -> memoryview:
    """Map a file in memory; it stays mapped as long as the answer or a view of it is used.

    Where the kernel can, its pages are huge, whatever the setting of the machine: with 300 MB a
    worker's death takes half the time, and new memory a seventh.

    Args:
        fd: the file, which is that long.
        length: in bytes, at least one.
        is_there: it has been written. Then the first look at a page maps those around it too, as
            no write does: that takes a third of the time.

    Raises:
        OSError: there is no memory for it.
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
    """Give all of a file its memory: a write would end the worker where there is none."""
    huge = length // HUGE_BYTES * HUGE_BYTES
    for offset in range(0, huge, HUGE_BYTES):
        os.posix_fallocate(fd, offset, 1)  # where nothing is, there is nothing to make huge
    if huge:
        _libc.madvise(address, huge, _MADV_COLLAPSE)  # if it can: it is only faster
    os.posix_fallocate(fd, 0, length)
    # An older kernel cannot: each page's first write is slow.
    _libc.madvise(address, length, _MADV_POPULATE_WRITE)


def register(memory: torch.Tensor, owner: object) -> Callable[[], object] | None:
    """Register memory with the current device, if this process uses a GPU.

    All of it or nothing: CUDA refuses to copy what is registered in part.

    Args:
        memory: whole pages, but for the end of the last one.
        owner: when it is gone, the memory is not registered any more.

    Returns:
        What ends the registration, once; None: there is none.
    """
    if not _CUDA.is_initialized() or (read_error := _error_reader()) is None:
        return None
    pieces: list[int] = []
    device, address, left = _CUDA.current_device(), memory.data_ptr(), memory.nbytes
    while left:
        size = min(left, _PIECE_BYTES)
        if int(_CUDA.cudart().cudaHostRegister(address, size, 0)):
            read_error()
            _unregister(device, pieces)
            return None
        pieces.append(address)
        address, left = address + size, left - size
    end = weakref.finalize(owner, _unregister, device, pieces)
    end.atexit = False  # the driver does it when the process ends
    return end


def _unregister(device: int, pieces: list[int]) -> None:
    read_error = _error_reader()
    if not _CUDA.is_initialized() or read_error is None:  # a fork: they are its parent's
        return
    with _CUDA.device(device):  # of any thread, whose device may be one that is not used here
        for address in pieces:
            if int(_CUDA.cudart().cudaHostUnregister(address)):
                read_error()


@cache
def _error_reader() -> Callable[[], int] | None:
    """Return ``cudaGetLastError`` of the library that torch calls; None: it is not found.

    An error that is not read is reported by torch's next launch, as if that had failed. Each copy
    of the library has errors of its own, so it is looked up among what torch itself depends on.
    """
    name = "hip" if torch.version.hip else "cuda"
    path = os.path.join(os.path.dirname(torch.__file__), "lib", f"libc10_{name}.so")
    try:
        return getattr(ctypes.CDLL(path), f"{name}GetLastError")  # type: ignore[no-any-return]  # of ctypes
    except (OSError, AttributeError):
        return None
