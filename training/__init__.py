"""The API of ft-run for training scripts.

It also works without ft-run (torchrun, plain Python): ``progress`` and ``activity`` do nothing,
``preempted`` returns False, ``Checkpointer`` writes checkpoints only, ``shared_work`` splits work
by rank, and ``tuned`` returns the default. It imports nothing else of ft-run, and torch only with
the names that need it.
"""

import operator
import os
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeVar

if TYPE_CHECKING:
    from .activities import activity
    from .checkpointer import Checkpointer
    from .checkpoints.equality import CorruptStateError, UnequalStateError
    from .checkpoints.kinds import WorldSizeError
    from .data.batches import ElasticBatches
    from .data.seeded import seeded

_T = TypeVar("_T", bool, int, float, str)

__all__ = [
    "Checkpointer",
    "CorruptStateError",
    "ElasticBatches",
    "UnequalStateError",
    "WorldSizeError",
    "activity",
    "preempted",
    "progress",
    "seeded",
    "shared_work",
    "tuned",
]

_MODULES = {
    "Checkpointer": ".checkpointer",
    "CorruptStateError": ".checkpoints.equality",
    "ElasticBatches": ".data.batches",
    "UnequalStateError": ".checkpoints.equality",
    "WorldSizeError": ".checkpoints.kinds",
    "activity": ".activities",
    "seeded": ".data.seeded",
}
"""Imported on first use, because most of them need torch."""


def progress(step: SupportsIndex | None = None, total: SupportsIndex | None = None) -> None:
    """Report progress to ft-run: for loops without a ``torch.optim`` optimizer, and evaluation.

    Steps of ``torch.optim`` are counted automatically. Call it in the worker's own process whenever
    there is progress; it takes a few microseconds. Without ``--watch-workers`` or
    ``--hang-timeout`` it does nothing.

    Args:
        step: completed steps, >= 0. Once given, it is shown instead of the counted steps.
        total: steps of the whole training, >= 0, for the percentage in a Kubeflow TrainJob.

    Raises:
        TypeError: If ``step`` or ``total`` is not a whole number.
        ValueError: If one of them is below 0, or 2**63 or above.
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
    from .worker.preemption import preempted as is_preempted  # few scripts use it

    return is_preempted()


def shared_work(name: str, size: SupportsIndex, grain: SupportsIndex = 1) -> Iterator[range]:
    """Yield pieces of work for ranks that do not wait for each other: inference, preprocessing.

    Each piece is a range of items. Ranks get pieces as fast as they process them, on any node, and
    in any later round of the job::

        for piece in shared_work("embed", size, grain=1000):
            write(piece, embed(piece))

    A piece is confirmed when the loop body has ended. After a failure, an unconfirmed piece is
    repeated, possibly by another rank: **at least once, confirmed once**, so write results under a
    temporary name and rename them. A loop that was left by ``break`` or an exception can be entered
    again. All ranks must use the same size and grain. The call returns immediately; the loop waits
    for pieces of other ranks, which it gets if they fail.

    Without ft-run (torchrun, plain Python) pieces are split by rank.

    Args:
        name: name of this work in the job, 1 to 128 printable characters; different for each loop.
        size: number of items, >= 0.
        grain: items per piece, >= 1: at least some tenths of a second of work.

    Raises:
        TypeError: If size or grain is not a whole number.
        ValueError: If an argument is invalid; in the loop, if another loop has the name, or another
            rank uses a different size or grain.
        ConnectionError: In the loop, if the agent of this node has ended.
    """
    from .work_loop import shared_work as loop  # as above

    return loop(name, size, grain)


def tuned(name: str, default: _T, values: Sequence[_T]) -> _T:
    """Return ``default`` and print one line, on rank 0. Deprecated: ft-run tries no other values.

    Args:
        name: name of the value in the script.
        default: value to use.
        values: ignored.
    """
    del values
    from .worker.log import log  # as above

    if os.environ.get("RANK", "0") == "0":
        log(f"tuned({name!r}) returns its default {default!r}: ft-run does not try other values")
    return default


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(_MODULES[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
