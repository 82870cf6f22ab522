"""Log lines of a worker, in the format of ft-run's console lines."""

import sys
import time


def log(message: str) -> None:
    """Write a line, which has no final full stop, with the time to standard error."""
    print(f"{time.strftime('%H:%M:%S')} ft-run {message}", file=sys.stderr, flush=True)
