"""Registers memory with the GPU of this process, so that copies to and from it take less time.

Where CUDA refuses, the memory stays as it is, and nothing of the refusal is left behind.
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
        return getattr(ctypes.CDLL(path), f"{name}GetLastError")  # type: ignore[no-any-return]
    except (OSError, AttributeError):
        return None
