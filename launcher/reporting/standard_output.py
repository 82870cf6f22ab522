"""Writes replies of commands to standard output, e.g. a pipe without a reader, or a full disk.

The agent's own lines go to standard error, by ``display``.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

from ...errors import UsageError
from ...printable import printable
from .line_writer import LineWriter


@contextmanager
def standard_output() -> Iterator[None]:
    """Write a complete reply to standard output; raises ``UsageError`` if that fails.

    A reader that closes the pipe early (``| head -1``) is not an error.
    """
    try:
        yield
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        discard(sys.stdout)
    except SystemExit as ending:
        if not isinstance(ending.__context__, BrokenPipeError):  # rich raises SystemExit for it
            raise
        discard(sys.stdout)
    except OSError as error:
        discard(sys.stdout)
        raise UsageError(
            f"cannot write to standard output: {error.strerror}; expected a file on a disk with "
            "free space, a pipe or a terminal."
        ) from error


def say_last(text: str) -> None:
    """Write a line to standard error; if that fails, only the exit code reports the error."""
    writer = LineWriter()
    writer.put(printable(text) + "\n")
    writer.finish()


def discard(stream: TextIO) -> None:
    """Discard buffered output, because Python would try to write it again at exit."""
    with suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
