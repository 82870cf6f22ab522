"""Keys and hashes of 64 bits, the same on every machine and in every version of Python and torch.

The mixing function is the finalizer of SplitMix64 (Steele, Lea, Flood: "Fast splittable
pseudorandom number generators", 2014). It is a bijection of 64-bit numbers.
"""

import torch

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def key_of(*numbers: int) -> int:
    """Return a 64-bit key that depends on the lower 64 bits of each number, and on their order."""
    key = 0
    for number in numbers:
        key = _mixed((key ^ (number & _MASK)) + _GOLDEN & _MASK)
    return key


def hashes(values: torch.Tensor, key: int) -> torch.Tensor:
    """Return a hash of each number (int64, any shape), all different if the numbers are.

    All 64 bits are used, so half of the hashes are negative.
    """
    found = values * _signed(_GOLDEN) + _signed(key)  # int64 wraps
    found = (found ^ _shifted(found, 30)) * _signed(_FIRST)
    found = (found ^ _shifted(found, 27)) * _signed(_SECOND)
    return found ^ _shifted(found, 31)


def _mixed(value: int) -> int:
    value = (value ^ value >> 30) * _FIRST & _MASK
    value = (value ^ value >> 27) * _SECOND & _MASK
    return value ^ value >> 31


def _shifted(values: torch.Tensor, bits: int) -> torch.Tensor:
    """Shift right, filling with zeros instead of the sign."""
    return (values >> bits) & ((1 << 64 - bits) - 1)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
