"""Maps files in memory, in huge pages where the kernel can."""

import ctypes
import os
import weakref

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
