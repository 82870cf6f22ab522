"""The termination message of a container: the reason of a failure in ``kubectl describe pod``."""

import os
import stat
from typing import Final

from ...printable import printable

VARIABLE: Final = "FT_RUN_TERMINATION_LOG"
_DEFAULT: Final = "/dev/termination-log"
_MAX_BYTES: Final = 4096
"""Kubernetes truncates longer messages."""


def write_termination_message(sentence: str, exit_code: int) -> None:
    """Write why this process fails to the file that Kubernetes has created, if any."""
    path = os.environ.get(VARIABLE) or _DEFAULT
    ending = f" (exit code {exit_code})".encode()
    text = printable(sentence).encode(errors="backslashreplace")
    if len(text) + len(ending) > _MAX_BYTES:
        text = text[: _MAX_BYTES - len(ending) - 3].decode(errors="ignore").encode() + b"..."
    try:
        file = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # not in a container, or a runtime without the file
        return
    try:
        if stat.S_ISREG(os.fstat(file).st_mode):
            os.ftruncate(file, 0)
            os.write(file, text + ending)
    except OSError:  # the console has the message too
        pass
    finally:
        os.close(file)
