"""The generators of random numbers of a rank, as one tensor of fixed size in the state."""

import ctypes
import random
import struct
import sys
from collections.abc import Mapping
from typing import Any

import torch

from .rank_values import bytes_of

GENERATORS = "ft_run_generators"
"""The name of this object in the state."""
_CUDA: Any = torch.cuda
"""Untyped: the stubs differ between builds of torch."""
_KEY = "state"
_FORMAT = 1
_HEAD = struct.Struct("<qqq")
"""Format, and the lengths of torch's and the device's state; 0: this rank has no such generator."""
_PYTHON = struct.Struct("<qqd625I")
"""Version, whether there is a second Gaussian number, that number, and the words."""
_NUMPY = struct.Struct("<qqqd")
"""Whether NumPy is imported, position, whether there is a second Gaussian number, that number."""
_NUMPY_WORDS = 624
_DEVICE_BYTES = 64
"""Room for the state of the device: CUDA has 16 bytes."""


class Generators:
    """The generators of Python, NumPy, torch and this rank's device.

    The tensor has the same size in all processes with the same version of torch, whether NumPy and
    a device are used or not: else the layout of snapshots would change during training.
    """

    def __init__(self) -> None:
        self._torch_start = _HEAD.size + _PYTHON.size + _NUMPY.size + 4 * _NUMPY_WORDS
        self._device_start = self._torch_start + torch.get_rng_state().numel()
        self._memory = memoryview(bytearray(self._device_start + _DEVICE_BYTES))
        self._state = torch.frombuffer(self._memory, dtype=torch.uint8)
        self._numpy_generator: Any = None
        self._numpy_address, self._numpy_words, self._numpy_has_gauss = 0, b"", False

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return the tensor, which the next call overwrites."""
        memory, device = self._memory, None
        version, words, gauss = random.getstate()
        start = _HEAD.size
        _PYTHON.pack_into(memory, start, version, gauss is not None, gauss or 0.0, *words)
        start += _PYTHON.size
        numpy: Any = sys.modules.get("numpy")
        if numpy is not None and not self._is_unchanged(numpy):
            kind, numbers, position, has_gauss, cached = numpy.random.get_state()
            is_known = kind == "MT19937" and len(numbers) == _NUMPY_WORDS
            _NUMPY.pack_into(memory, start, is_known, position, has_gauss, cached)
            if is_known:
                start += _NUMPY.size
                memory[start : start + 4 * _NUMPY_WORDS] = memoryview(numbers).cast("B")
            self._numpy_has_gauss = bool(has_gauss)
        self._state[self._torch_start : self._device_start] = torch.get_rng_state()
        if _CUDA.is_initialized():
            device = _CUDA.get_rng_state(_CUDA.current_device())
        length = device.numel() if device is not None else 0
        if device is not None and length <= _DEVICE_BYTES:
            self._state[self._device_start : self._device_start + length] = device
        of_torch = self._device_start - self._torch_start
        _HEAD.pack_into(memory, 0, _FORMAT, of_torch, length if length <= _DEVICE_BYTES else 0)
        return {_KEY: self._state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set the generators; nothing happens if the state is empty or of another version."""
        saved = state.get(_KEY)
        if not isinstance(saved, torch.Tensor) or saved.numel() != self._state.numel():
            return
        memory = memoryview(bytes_of(saved))
        form, of_torch, of_device = _HEAD.unpack_from(memory, 0)
        if form != _FORMAT or of_torch != self._device_start - self._torch_start:
            return
        self._numpy_words = b""
        start = _HEAD.size
        version, has_gauss, gauss, *words = _PYTHON.unpack_from(memory, start)
        random.setstate((version, tuple(words), gauss if has_gauss else None))
        start += _PYTHON.size
        is_known, position, has_gauss, gauss = _NUMPY.unpack_from(memory, start)
        start += _NUMPY.size
        if is_known:
            numbers = bytes(memory[start : start + 4 * _NUMPY_WORDS])
            self._set_numpy(numbers, position, has_gauss, gauss)
        torch.set_rng_state(saved[self._torch_start : self._device_start].clone())
        if of_device and _CUDA.is_available():
            device = saved[self._device_start : self._device_start + of_device].clone()
            _CUDA.set_rng_state(device, _CUDA.current_device())

    def _is_unchanged(self, numpy: Any) -> bool:
        """Return whether NumPy's generator is as it was: its ``get_state`` takes 30 us.

        Its words and position are read from memory. A second Gaussian number is not there, but it
        appears only when words are used.
        """
        find = getattr(numpy.random, "get_bit_generator", None)  # since NumPy 1.24
        generator: Any = find() if find is not None else None
        if type(generator).__name__ != "MT19937":
            return False
        if generator is not self._numpy_generator:
            self._numpy_generator, self._numpy_words = generator, b""
            self._numpy_address = generator.ctypes.state_address
        before = self._numpy_words
        self._numpy_words = ctypes.string_at(self._numpy_address, 4 * (_NUMPY_WORDS + 1))
        return self._numpy_words == before and not self._numpy_has_gauss

    @staticmethod
    def _set_numpy(words: bytes, position: int, has_gauss: int, gauss: float) -> None:
        try:
            import numpy
        except ImportError:
            return
        numbers = numpy.frombuffer(words, dtype=numpy.uint32)
        numpy.random.set_state(("MT19937", numbers, position, has_gauss, gauss))
