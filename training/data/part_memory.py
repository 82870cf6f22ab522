"""Reports that an accelerator ran out of memory in a part."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

from ..worker.device_memory import out_of_memory


@contextmanager
def part_memory(samples: int, inner: AbstractContextManager[None] | None = None) -> Iterator[None]:
    """Let ft-run learn the size of a part if memory runs out inside.

    Args:
        samples: of the part, in its step the most of any rank; 0: nothing is reported.
        inner: a context inside this one.
    """
    try:
        with inner or nullcontext():
            yield
    except torch.OutOfMemoryError:
        if samples:
            out_of_memory(samples)
        raise
