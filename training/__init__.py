"""The API of ft-run for training scripts.

It also works without ft-run (torchrun, plain Python): then ``progress`` does nothing, ``preempted``
returns False, and ``Checkpointer`` writes checkpoints only. It imports nothing else of ft-run, and
torch only with the names that need it.
"""

import operator
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, SupportsIndex

if TYPE_CHECKING:
    from .checkpointer import Checkpointer
    from .data.batches import ElasticBatches
    from .data.seeded import seeded

__all__ = ["Checkpointer", "ElasticBatches", "preempted", "progress", "seeded"]

_MODULES = {
    "Checkpointer": ".checkpointer",
    "ElasticBatches": ".data.batches",
    "seeded": ".data.seeded",
}
"""Of what needs torch: imported when asked for."""


def progress(step: SupportsIndex | None = None, total: SupportsIndex | None = None) -> None:
    """Report progress to ft-run: for loops without a ``torch.optim`` optimizer, and evaluation.

    Steps of ``torch.optim`` are counted automatically. Call it in the worker's own process, as
    often as there is progress; it takes a few microseconds. Without ``--watch-workers`` or
    ``--hang-timeout`` it does nothing.

    Args:
        step: completed steps, >= 0. Once given, it is shown instead of the counted steps.
        total: steps of the whole training, >= 0, for the percentage in a Kubeflow TrainJob.

    Raises:
        TypeError: ``step`` or ``total`` is not a whole number.
        ValueError: one of them is below 0, or 2**63 or above.
    """
    number = -1 if step is None else _steps("step", step)
    in_all = None if total is None else _steps("total", total)
    hook = sys.modules.get("_ft_run_hook")
    if hook is not None:
        if in_all is not None:
            hook.expect(in_all)
        hook.progress(number)


def _steps(name: str, value: SupportsIndex) -> int:
    number = operator.index(value)
    if not 0 <= number < 1 << 63:
        what = "completed steps" if name == "step" else "steps of the whole training"
        raise ValueError(
            f"invalid value {number} for {name}: expected the number of {what}, 0 to 2**63 - 1"
        )
    return number


def preempted() -> bool:
    """Return whether nodes of this job are being preempted: save what must not be lost.

    It becomes true on all ranks, but not at the same moment: to act together, all-reduce the
    results. A script with a ``Checkpointer`` does not need it. Workers that have called it and exit
    with 0 during a preemption do not end the job. It takes a microsecond; the first call connects
    to the agent of this node.
    """
    from .worker.preemption import preempted as is_preempted

    return is_preempted()


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(_MODULES[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
