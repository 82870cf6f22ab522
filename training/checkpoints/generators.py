"""The generators of random numbers of a rank, as tensors of fixed size in the state."""

import random
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch

GENERATORS = "ft_run_generators"
"""The name of this object in the state."""
_CUDA: Any = torch.cuda
"""Untyped: the stubs differ between builds of torch."""
_NUMPY = "MT19937"
"""The kind of NumPy's global generator, unless the script has set another one."""
_NUMPY_WORDS = 624
_DEVICE_BYTES = 64
"""Room for the state of the device: CUDA has 16 bytes."""


class Generators:
    """The generators of Python, NumPy, torch and this rank's device.

    The tensors have the same sizes in all processes with the same version of torch, whether NumPy
    and a device are used or not: else the layout of snapshots would change during training.
    """

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return the tensors."""
        version, words, gauss = random.getstate()
        second, of_numpy = 0.0, [0] * (3 + _NUMPY_WORDS)
        numpy: Any = sys.modules.get("numpy")
        if numpy is not None:
            of = numpy.random.get_state(legacy=False)
            if of["bit_generator"] == _NUMPY:
                of_numpy = [1, of["state"]["pos"], of["has_gauss"], *of["state"]["key"].tolist()]
                second = of["gauss"]
        device = torch.zeros(1 + _DEVICE_BYTES, dtype=torch.uint8, device="cpu")
        if _CUDA.is_initialized():
            found = _CUDA.get_rng_state(_CUDA.current_device())
            if found.numel() <= _DEVICE_BYTES:
                device[0] = found.numel()
                device[1 : 1 + found.numel()] = found
        return {
            "python": torch.tensor([version, gauss is not None, *words], device="cpu"),
            "numpy": torch.tensor(of_numpy, device="cpu"),
            "gauss": torch.tensor([gauss or 0.0, second], dtype=torch.float64, device="cpu"),
            "torch": torch.get_rng_state(),
            "device": device,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set the generators; nothing happens if the state is empty or of another version."""
        sizes = {name: value.shape for name, value in self.state_dict().items()}
        if {name: getattr(value, "shape", None) for name, value in state.items()} != sizes:
            return
        gauss, second = state["gauss"].tolist()
        version, has_gauss, *words = state["python"].tolist()
        random.setstate((version, tuple(words), gauss if has_gauss else None))
        is_known, position, has_second, *numbers = state["numpy"].tolist()
        if is_known:
            with suppress(ImportError):
                import numpy

                key = numpy.array(numbers, dtype=numpy.uint32)
                numpy.random.set_state((_NUMPY, key, position, has_second, second))
        torch.set_rng_state(state["torch"].clone())
        length, of_device = int(state["device"][0]), state["device"][1:]
        if length and _CUDA.is_available():
            _CUDA.set_rng_state(of_device[:length].clone(), _CUDA.current_device())
