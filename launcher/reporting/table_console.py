"""Where commands write tables: to standard output."""

import os
import sys
from typing import Final

from rich.console import Console

_UNFOLDED: Final = 10_000
"""Width in columns, larger than any line."""


def table_console() -> Console:
    """Return a console for tables. Output to a pipe is not wrapped, for searches by line."""
    folded = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(file=sys.stdout, highlight=False, width=None if folded else _UNFOLDED)
