"""A check worker: ``python -u run_module.py preflight.worker_main CONFIG``."""

import sys
from collections.abc import Sequence

from ...checks.worker import main as be_check_worker


def main(words: Sequence[str]) -> int:
    """Run a check worker to its end; ``words`` is its configuration as JSON, a single word."""
    sys.argv[1:] = words
    be_check_worker()
