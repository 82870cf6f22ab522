"""What ranks do at the same time, and of which all hear how it went."""

from collections.abc import Callable

from torch.distributed.checkpoint.api import CheckpointException

from ..ranks import Ranks
from .storage import words_of


def together(ranks: Ranks, action: Callable[[], object]) -> str | None:
    """Do something on each rank; return why it failed on the first one on which it did."""
    words: str | None = None
    try:
        action()
    except (Exception, CheckpointException) as error:
        words = _words(error)
    return ranks.first_text(words)


def on_first(ranks: Ranks, action: Callable[[], object]) -> str | None:
    """Do something on the first rank; return, on all, why it failed."""
    return together(ranks, action if ranks.rank == 0 else lambda: None)


def _words(error: BaseException) -> str:
    """Return an error of a rank in one line."""
    if isinstance(error, CheckpointException) and error.failures:
        error = next(iter(error.failures.values()))[0]
    return words_of(error)
