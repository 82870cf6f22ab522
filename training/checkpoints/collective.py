"""Actions that ranks carry out together; all ranks learn the first error."""

from collections.abc import Callable

from torch.distributed.checkpoint.api import CheckpointException

from ..ranks import Ranks
from .storage import one_line


def on_all_ranks(ranks: Ranks, action: Callable[[], object]) -> str | None:
    """Run an action on each rank; return the error of the lowest rank that failed, in one line."""
    error: str | None = None
    try:
        action()
    except (Exception, CheckpointException) as raised:
        failures = raised.failures if isinstance(raised, CheckpointException) else {}
        error = one_line(next(iter(failures.values()))[0] if failures else raised)
    return ranks.first_text(error)


def on_rank_0(ranks: Ranks, action: Callable[[], object]) -> str | None:
    """Run an action on rank 0; return its error on all ranks."""
    return on_all_ranks(ranks, action if ranks.rank == 0 else lambda: None)
