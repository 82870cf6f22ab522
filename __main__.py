"""``python -m ft_run`` is ``ft-run``."""

import os
import sys


def _leave_the_present_folder() -> None:
    """Take it off the path: a file there must not stand in for a library of the launcher."""
    if getattr(sys.flags, "safe_path", False):
        return  # Python has not put it there: an entry of that name is the user's own
    try:
        if sys.path[0] == os.getcwd():
            del sys.path[0]
    except FileNotFoundError:
        return  # it has been removed, and Python has not put it on the path


if __name__ == "__main__":
    _leave_the_present_folder()

from .launcher.main import main  # noqa: E402 - not before the path is clean

if __name__ == "__main__":
    raise SystemExit(main())
