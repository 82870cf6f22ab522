"""A check worker: ``python -u run_module.py preflight.worker_main CONFIG``."""

import sys
from collections.abc import Sequence


def main(words: Sequence[str]) -> int:
    """Be a check worker, and end with it; ``words`` is its configuration as JSON, the only word."""
    from ...checks.worker import main as be_check_worker

    sys.argv[1:] = words
    be_check_worker()
