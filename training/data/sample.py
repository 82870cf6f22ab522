"""A sample: an index into the data, with the epoch of its source in the bits above it."""

from typing import TypeVar

import torch

EPOCH_SHIFT = 40
"""An index has 40 bits: 10**12 samples; an epoch has 23, so that a sample fits in an int64."""
MAX_SIZE = 1 << EPOCH_SHIFT

Samples = TypeVar("Samples", int, torch.Tensor)


def index_of(sample: Samples) -> Samples:
    """Return the index of a sample, or of each sample of a tensor (int64)."""
    return sample & (MAX_SIZE - 1)


def epoch_of(sample: Samples) -> Samples:
    """Return the epoch of a sample, or of each sample of a tensor (int64)."""
    return sample >> EPOCH_SHIFT
