"""Lines that a worker writes to standard error."""

import sys


def say(sentence: str) -> None:
    """Print a sentence of a worker, in the form of all lines of ft-run."""
    print(f"ft-run: {sentence}", file=sys.stderr, flush=True)
