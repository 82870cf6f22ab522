"""Whether training can resume after a body of the loop: no gradients are lost.

Gradients are not part of the state. A body that changes them without a step of an optimizer, to
accumulate them over several bodies, is no point to resume from.
"""

from collections.abc import Mapping
from typing import Any

from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from ..worker.log import log
from .late_copy import run_before_steps
from .optimizer_state import parameters_of

_SEEN = "_ft_run_seen"
"""The attribute of a gradient with its versions at the end of the last body."""


class Bodies:
    """Judges each body as a whole: another network of a GAN keeps its gradients for ever."""

    def __init__(self, objects: Mapping[str, Any], *, is_logging: bool) -> None:
        """Begin with the first body.

        Args:
            objects: of the state; without optimizers every body is a point to resume from.
            is_logging: whether this rank prints the warnings.
        """
        self._optimizers = [one for one in objects.values() if isinstance(one, Optimizer)]
        self._scalers = [one for one in objects.values() if isinstance(one, GradScaler)]
        self._is_logging = is_logging
        self._warned: set[str] = set()
        self._has_stepped = False
        self._scales = self._versions_of_scales()
        self.is_clean = True
        """Whether training can resume after the body that has ended last."""
        if self._optimizers:
            run_before_steps(self._note_step)

    def _note_step(self) -> None:
        self._has_stepped = True

    def end(self) -> bool:
        """End a body and begin the next one; return ``is_clean``."""
        has_stepped, self._has_stepped = self._has_stepped, False
        scales, self._scales = self._scales, self._versions_of_scales()
        has_stepped |= scales != self._scales  # also if the scaler left out the step
        is_clean = True
        for optimizer in self._optimizers:
            for parameter in parameters_of(optimizer):
                gradient = parameter.grad
                if gradient is None:
                    continue
                versions = gradient._version, getattr(gradient, "_local_tensor", gradient)._version
                if getattr(gradient, _SEEN, None) != versions:
                    is_clean = has_stepped
                    setattr(gradient, _SEEN, versions)
        self.is_clean = is_clean
        return is_clean

    def _versions_of_scales(self) -> list[int]:
        """Return numbers that change with each update of a scaler; its values are on the GPU."""
        tensors = (getattr(one, "_scale", None) for one in self._scalers)
        return [-1 if tensor is None else tensor._version for tensor in tensors]

    def warn_of_delay(self, number: int) -> None:
        """Log once that a snapshot or checkpoint is not taken after this body.

        Args:
            number: completed steps.
        """
        self._warn_once(
            f"no snapshot or checkpoint of step {number}: its body has changed gradients, which are"
            " not saved, without a step of an optimizer; it is made up for after the next step of "
            "an optimizer"
        )

    def warn_of_save(self, number: int) -> None:
        """Log once that a checkpoint lacks gradients, if it does.

        Args:
            number: completed steps.
        """
        if not self.is_clean:
            self._warn_once(
                f"the checkpoint of step {number} does not have the gradients that its body has "
                "changed without a step of an optimizer"
            )

    def _warn_once(self, text: str) -> None:
        words = text.partition(" of step ")[0]
        if self._is_logging and words not in self._warned:
            log(f"{text}; to accumulate gradients within one body, use parts: docs/guide/data.md")
        self._warned.add(words)
