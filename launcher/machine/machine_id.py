"""The id of this machine, which stays the same when its name or address changes."""

from contextlib import suppress

_PATHS = ("/etc/machine-id", "/var/lib/dbus/machine-id")
_MAX_CHARS = 64


def machine_id() -> str:
    """Return the content of ``/etc/machine-id`` (``man 5 machine-id``); empty: there is none.

    A container has that of its image, which may be the same on several machines.
    """
    for path in _PATHS:
        with suppress(OSError), open(path, encoding="ascii", errors="replace") as file:
            if found := file.read(_MAX_CHARS).strip():
                return found
    return ""
