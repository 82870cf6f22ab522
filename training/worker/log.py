"""Log lines of a worker, in the form of ft-run's own console lines."""

import sys
import time


def log(message: str) -> None:
    """Write one line with the time to standard error.

    Args:
        message: without a final full stop.
    """
    print(f"{time.strftime('%H:%M:%S')} ft-run {message}", file=sys.stderr, flush=True)
