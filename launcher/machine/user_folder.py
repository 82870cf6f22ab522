"""The directory of one user's agents on a host, which no other user can read or write."""

import contextlib
import os
import stat
from pathlib import Path
from typing import Final

SOCKET_SUFFIX: Final = ".sock"
"""Suffix of the names of the agents' sockets in this directory."""


def user_folder() -> Path:
    """Return the directory, created if necessary.

    Raises:
        OSError: If it cannot be created, or it belongs to another user.
    """
    folder = _shared_folder()
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    if not _is_own(folder):
        raise PermissionError(f"{folder} belongs to another user")
    return folder


def _shared_folder() -> Path:
    # Independent of TMPDIR and the session: all agents of a user on a host must find it, and a job
    # may outlive its login session, with which XDG_RUNTIME_DIR is removed (pam_systemd(8)).
    return Path(f"/tmp/ft-run-{os.getuid()}")  # noqa: S108 - its owner and mode are checked


def _is_own(folder: Path) -> bool:
    try:
        found = folder.lstat()
    except OSError:
        return False
    is_closed = not found.st_mode & (stat.S_IRWXG | stat.S_IRWXO)
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and is_closed
