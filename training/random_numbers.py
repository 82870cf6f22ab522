"""The generators of random numbers of this process: Python, NumPy, torch and its devices."""

import random
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

_CUDA: Any = torch.cuda
"""Untyped: the stubs differ between builds of torch."""


def seed_generators(seed: int, *, with_devices: bool = True) -> None:
    """Seed Python's ``random``, NumPy (if it is imported) and torch.

    Args:
        seed: 0 to 2**64 - 1.
        with_devices: also the generators of the GPUs that this process uses.
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
    """Give Python's, NumPy's and torch's CPU generators their present state back at the end."""
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


@contextmanager
def torch_generator_kept() -> Iterator[None]:
    """Give torch's CPU generator its present state back at the end."""
    state = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(state)


def generator_states() -> dict[str, Any]:
    """Return the state of all generators, for ``set_generator_states``."""
    version, numbers, gauss = random.getstate()
    found: dict[str, Any] = {
        "python": torch.tensor(numbers, dtype=torch.int64),
        "python_rest": (version, gauss),
        "torch": torch.get_rng_state(),
    }
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        kind, numbers, position, has_gauss, cached = numpy.random.get_state()
        found["numpy"] = torch.from_numpy(numbers.astype("int64"))
        found["numpy_rest"] = (kind, int(position), int(has_gauss), float(cached))
    if _CUDA.is_initialized():
        found["cuda"] = _CUDA.get_rng_state(_CUDA.current_device())
    return found


def set_generator_states(states: Mapping[str, Any]) -> None:
    """Set the state of all generators.

    Args:
        states: from ``generator_states``; of a device that this process does not use, or of NumPy
            where it is missing, they are skipped.
    """
    version, gauss = states["python_rest"]
    random.setstate((version, tuple(states["python"].tolist()), gauss))
    torch.set_rng_state(states["torch"])
    if "numpy" in states:
        try:
            import numpy
        except ImportError:
            pass
        else:
            kind, position, has_gauss, cached = states["numpy_rest"]
            numbers = states["numpy"].numpy().astype("uint32")
            numpy.random.set_state((kind, numbers, position, has_gauss, cached))
    if "cuda" in states and _CUDA.is_available():
        _CUDA.set_rng_state(states["cuda"], _CUDA.current_device())
