"""Reports that an accelerator ran out of memory in a part."""

from contextlib import AbstractContextManager, nullcontext
from types import TracebackType

import torch

from ..worker.device_memory import has_survived, out_of_memory

_ERROR: type[BaseException] = getattr(torch, "OutOfMemoryError", torch.cuda.OutOfMemoryError)
"""Since torch 2.5 of all accelerators."""
_NOTHING = nullcontext()


class PartMemory(AbstractContextManager[None]):
    """The context of a part: ft-run learns its size if memory runs out inside."""

    __slots__ = ("_inner", "_samples")

    def __init__(self, samples: int, inner: AbstractContextManager[None] = _NOTHING) -> None:
        """Watch nothing yet.

        Args:
            samples: of the part, in its step the most of any rank; 0: nothing is reported.
            inner: the context inside this one.
        """
        self._samples, self._inner = samples, inner

    def __enter__(self) -> None:
        has_survived()
        self._inner.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        if kind is None:
            has_survived()  # also an exception in an earlier part
        elif issubclass(kind, _ERROR) and self._samples:
            out_of_memory(self._samples)
        return self._inner.__exit__(kind, error, trace)
