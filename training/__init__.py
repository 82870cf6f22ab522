"""What a training script may import of ft-run.

It works everywhere: started by anything but ft-run with ``--watch-workers`` (torchrun, plain
Python), the functions do nothing. It imports torch never, and nothing else of ft-run.
"""

import operator
import sys
from typing import SupportsIndex

__all__ = ["progress"]


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
                f"progress() was given step {number}; right would be how many steps are done, 0 to "
                "2**63 - 1."
            )
    hook = sys.modules.get("_ft_run_hook")
    if hook is not None:
        hook.progress(number)
