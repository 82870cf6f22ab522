"""What a worker has to tell the user, in the form of all lines of ft-run."""

import sys


def say(sentence: str) -> None:
    """Print a sentence to standard error."""
    print(f"ft-run: {sentence}", file=sys.stderr, flush=True)
