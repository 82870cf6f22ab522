"""Reports that an accelerator ran out of memory in a part."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

from ..worker.device_memory import has_survived, out_of_memory

_ERROR: type[BaseException] = getattr(torch, "OutOfMemoryError", torch.cuda.OutOfMemoryError)
"""Since torch 2.5 of all accelerators."""


@contextmanager
def part_memory(samples: int, inner: AbstractContextManager[None] | None = None) -> Iterator[None]:
    """Let ft-run learn the size of a part if memory runs out inside.

    Args:
        samples: of the part, in its step the most of any rank; 0: nothing is reported.
        inner: a context inside this one.
    """
    has_survived()
    try:
        with inner or nullcontext():
            yield
    except _ERROR:
        if samples:
            out_of_memory(samples)
        raise
    has_survived()  # also an exception in an earlier part
