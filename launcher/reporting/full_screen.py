"""The terminal of ``ft-run status --watch``: the alternate screen.

However the watch ends, the modes of stty, the cursor and the screen are restored.
"""

import os
import sys
import termios
import tty
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console, Group
from rich.text import Text

from .standard_output import discard


class FullScreen:
    """Standard output as a full screen, and single keys of standard input."""

    def __init__(self) -> None:
        self._console = Console(file=sys.stdout, force_terminal=True, highlight=False, markup=False)
        self._modes: list[Any] | None = None
        """Original modes of standard input; None if it is not a terminal."""
        self.is_shown = False

    @property
    def has_keys(self) -> bool:
        """Whether standard input is the terminal."""
        return os.isatty(0)

    def enter(self) -> None:
        """Show the screen; keys arrive one by one and are not echoed."""
        self.is_shown = True
        with _if_open():
            if self.has_keys:
                self._modes = termios.tcgetattr(0)
                tty.setcbreak(0, termios.TCSADRAIN)
            self._console.set_alt_screen(True)
            self._console.show_cursor(False)

    def leave(self) -> None:
        """Restore the original screen."""
        if not self.is_shown:
            return
        self.is_shown = False
        with _if_open():
            self._console.show_cursor(True)
            self._console.set_alt_screen(False)
            if self._modes is not None:
                termios.tcsetattr(0, termios.TCSADRAIN, self._modes)

    def draw(self, lines: Sequence[Text]) -> None:
        """Draw as many lines as there are rows."""
        if self.is_shown:
            options = self._console.options.update_dimensions(*self.size)
            self._console.update_screen(Group(*lines), options=options)

    @property
    def size(self) -> tuple[int, int]:
        """Columns and rows."""
        size = os.get_terminal_size(sys.stdout.fileno())
        return max(20, size.columns or 80), max(6, size.lines or 24)


@contextmanager
def _if_open() -> Iterator[None]:
    """Ignore the error of a closed terminal, and discard output that it did not receive."""
    try:
        yield
    except termios.error:
        pass
    except OSError:
        discard(sys.stdout)
