"""What a training script may import of ft-run.

It works everywhere: started by anything but ft-run (torchrun, plain Python), ``progress`` does
nothing, as without ``--watch-workers``, ``preempted`` is false, and ``Checkpointer`` writes
checkpoints only. It imports torch where ``Checkpointer`` is used and not before, and nothing else
of ft-run.
"""

import operator
import sys
from typing import TYPE_CHECKING, Any, SupportsIndex

if TYPE_CHECKING:
    from .checkpointer import Checkpointer

__all__ = ["Checkpointer", "preempted", "progress"]


def progress(step: SupportsIndex | None = None) -> None:
    """Say that this worker gets on. For loops without an optimizer of torch's, and for evaluation.

    The steps of ``torch.optim`` are seen without it. It takes some microseconds; call it as often
    as there is progress, in the worker's own process.

    Args:
        step: how many steps are done, 0 or more, to be shown; once given, the script's numbers are
            shown instead of the counted steps.

    Raises:
        TypeError: ``step`` is no whole number.
        ValueError: ``step`` is below 0, or 2**63 or more.
    """
    number = -1
    if step is not None:
        number = operator.index(step)
        if not 0 <= number < 1 << 63:
            raise ValueError(
                f"invalid value {number} for step: expected the number of completed steps, 0 to "
                "2**63 - 1"
            )
    hook = sys.modules.get("_ft_run_hook")
    if hook is not None:
        hook.progress(number)


def preempted() -> bool:
    """Return whether nodes of this job will be gone soon: save what must not be lost.

    It is true on all ranks, though not at the same moment: where ranks act together, have them
    agree (an all-reduce of the answers). A script with a ``Checkpointer`` need not ask. Workers
    that ask, and exit with 0 once nodes will be gone, do not end the job: they have made themselves
    ready. It takes a microsecond; the first call asks the agent of this node.
    """
    from .worker.preemption import preempted as is_preempted

    return is_preempted()


def __getattr__(name: str) -> Any:
    if name == "Checkpointer":
        from .checkpointer import Checkpointer

        return Checkpointer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
