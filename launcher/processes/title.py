"""Sets the command line and environment of this process that /proc and ``ps`` show."""

import ctypes
import os

_PR_SET_MM = 35
_PR_SET_MM_MAP = 14
_KEEP_EXE = 0xFFFFFFFF

_libc = ctypes.CDLL(None, use_errno=True)
_libc.sbrk.restype = ctypes.c_void_p
_libc.malloc.restype = ctypes.c_void_p
_libc.free.argtypes = [ctypes.c_void_p]


class _Map(ctypes.Structure):
    """``struct prctl_mm_map`` of Linux's include/uapi/linux/prctl.h."""

    _fields_ = (
        *((name, ctypes.c_uint64) for name in ("start_code", "end_code", "start_data", "end_data")),
        *((name, ctypes.c_uint64) for name in ("start_brk", "brk", "start_stack")),
        *((name, ctypes.c_uint64) for name in ("arg_start", "arg_end", "env_start", "env_end")),
        ("auxv", ctypes.c_void_p),
        ("auxv_size", ctypes.c_uint32),
        ("exe_fd", ctypes.c_uint32),
    )


_kept: list[object] = []
"""The buffers that the kernel currently uses, kept alive."""


def set_process_title(argv: list[str]) -> None:
    """Show ``argv`` as the command line of this process, and ``os.environ`` as its environment.

    Without effect on the few kernels that lack CONFIG_CHECKPOINT_RESTORE.
    """
    arguments = b"".join(os.fsencode(word) + b"\0" for word in argv)
    variables = b"".join(name + b"=" + value + b"\0" for name, value in os.environb.items())
    block = ctypes.create_string_buffer(arguments + variables)
    start = ctypes.addressof(block)
    middle = start + len(arguments)
    # proc_pid_stat(5): fields 26 to 28 and 45 to 47; the third is the first after the name.
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    code, end_code, stack = map(int, fields[23:26])
    data, end_data, brk = map(int, fields[42:45])
    layout = _Map(
        start_code=code,
        end_code=end_code,
        start_data=data,
        end_data=end_data,
        start_brk=brk,
        start_stack=stack,
        arg_start=start,
        arg_end=middle,
        env_start=middle,
        env_end=middle + len(variables),
        auxv=None,
        auxv_size=0,
        exe_fd=_KEEP_EXE,
    )
    words = [ctypes.c_ulong(w) for w in (_PR_SET_MM_MAP, ctypes.addressof(layout))]
    words += [ctypes.c_ulong(ctypes.sizeof(layout)), ctypes.c_ulong(0)]
    # The heap's end is part of the map and must not move until the call, so the memory that these
    # lines need is allocated and released first.
    _libc.free(_libc.malloc(64 * 1024))
    layout.brk = _libc.sbrk(0)
    if _libc.prctl(_PR_SET_MM, *words) == 0:
        _kept.append(block)
