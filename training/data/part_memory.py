"""Reports that an accelerator ran out of memory in a part."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

from ..worker.device_memory import has_survived, out_of_memory

_ERROR: type[BaseException] = getattr(torch, "OutOfMemoryError", torch.cuda.OutOfMemoryError)
"""For all accelerators since torch 2.5."""


@contextmanager
def part_memory(samples: int, inner: AbstractContextManager[None] | None = None) -> Iterator[None]:
    """Report the size of a part to ft-run if memory runs out inside.

    ``samples``: size of the part, the maximum of all ranks in the step; 0 to report nothing.
    """
    has_survived()
    try:
        with inner or nullcontext():
            yield
    except _ERROR:
        if samples:
            out_of_memory(samples)
        raise
    has_survived()  # also handles an exception in an earlier part
