"""Answers of commands on standard output, which may be a pipe without a reader, or a full disk.

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
    """Write an answer to standard output, to its end.

    A reader that leaves early (``| head -1``) has seen enough: this is no error, and the exit
    status stays the same.

    Raises:
        UsageError: it cannot be written.
    """
    try:
        yield
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        _drop(sys.stdout)
    except SystemExit as ending:
        if not isinstance(ending.__context__, BrokenPipeError):  # what rich makes of it
            raise
        _drop(sys.stdout)
    except OSError as error:
        _drop(sys.stdout)
        raise UsageError(
            f"cannot write to standard output: {error.strerror}; expected a file on a disk with "
            "free space, a pipe or a terminal."
        ) from error


def say_last(text: str) -> None:
    """Write a line to standard error; if that fails, the exit status says enough."""
    writer = LineWriter()
    writer.put(printable(text) + "\n")
    writer.finish()


def _drop(stream: TextIO) -> None:
    """Discard what is still buffered: Python would write it again when it ends."""
    with suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
