"""The random number generators of this process: Python, NumPy, torch and its devices."""

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_CUDA: Any = torch.cuda
"""Untyped: the stubs differ between builds of torch."""


def seed_generators(seed: int, *, with_devices: bool = True) -> None:
    """Seed Python's ``random``, NumPy (if it is imported) and torch with 0 to 2**64 - 1.

    ``with_devices`` includes the generators of the GPUs that this process uses.
    """
    random.seed(seed)
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed & 0xFFFFFFFF)
    torch.default_generator.manual_seed(seed)
    if with_devices and _CUDA.is_initialized():
        _CUDA.manual_seed_all(seed)


@contextmanager
def generators_kept() -> Iterator[None]:
    """Restore the state of Python's, NumPy's and torch's CPU generators at the end."""
    numpy: Any = sys.modules.get("numpy")
    states = random.getstate(), torch.get_rng_state()
    of_numpy = numpy.random.get_state() if numpy is not None else None
    try:
        yield
    finally:
        random.setstate(states[0])
        torch.set_rng_state(states[1])
        if of_numpy is not None:
            numpy.random.set_state(of_numpy)
