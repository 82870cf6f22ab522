"""The folder of one user's agents on a host, which no other user can read or write."""

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

SOCKET_SUFFIX: Final = ".sock"
"""How the names of the agents' sockets in this folder end."""


def user_folder() -> Path:
    """Return the folder, which is created if there is none.

    Raises:
        OSError: there is none, and none can be created.
    """
    places = _places()
    for place in places:
        with contextlib.suppress(OSError):
            place.mkdir(mode=0o700)
        if _is_own(place):
            return place
    raise PermissionError(f"{places[0]} belongs to another user")


def user_folders() -> Iterator[Path]:
    """Yield each folder that agents of this user may have created."""
    yield from filter(_is_own, _places())


def _places() -> list[Path]:
    places = [_shared_folder()]
    given = os.environ.get("XDG_RUNTIME_DIR", "")
    if given.startswith("/"):
        places.append(Path(given) / "ft-run")  # the first may belong to another user
    return places


def _shared_folder() -> Path:
    # Independent of TMPDIR and the session: all agents of a user on a host must find it, and a job
    # may outlive its login session, with which XDG_RUNTIME_DIR is removed (pam_systemd(8)).
    return Path(f"/tmp/ft-run-{os.getuid()}")  # noqa: S108 - its owner and mode are looked at


def _is_own(folder: Path) -> bool:
    try:
        found = folder.lstat()
    except OSError:
        return False
    is_closed = not found.st_mode & (stat.S_IRWXG | stat.S_IRWXO)
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and is_closed
