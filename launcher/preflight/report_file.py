"""``--check-report``: validates the path of the report, and writes it.

A file is replaced atomically: a process that waits for it never reads a partial report.
"""

import contextlib
import os
from pathlib import Path

from ...errors import UsageError


def check_report_path(path: str | None) -> None:
    """Raise ``UsageError`` if the report cannot be written, before the checks start."""
    if path is None:
        return
    # The target of a redirection is a regular file, but this process is writing to it.
    is_stream = os.path.abspath(path).startswith(("/dev/", "/proc/"))
    is_other = is_stream or (os.path.exists(path) and not os.path.isfile(path))
    if is_other or not os.access(Path(path).resolve().parent, os.W_OK | os.X_OK):
        raise UsageError(
            f"cannot write --check-report {path!r}; expected a regular file in a directory that"
            " exists and is writable."
        )


def write_report(path: str, report: str) -> None:
    """Write the report; raises ``UsageError`` if that fails."""
    target = Path(path).resolve()
    part = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        part.write_text(report + "\n", encoding="utf-8")
        part.replace(target)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink()
        raise UsageError(f"cannot write --check-report {path!r}: {error.strerror}.") from error
