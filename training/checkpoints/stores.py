"""Opens the storage of a job's checkpoints."""

import re

from .local_storage import LocalStorage
from .storage import Storage
from .url_storage import UrlStorage

_URL = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+://")


def is_url(folder: str) -> bool:
    """Return whether a folder is a URL for fsspec."""
    return _URL.match(folder) is not None


def open_storage(folder: str, tag: str = "") -> Storage:
    """Return the checkpoints in a folder, or under a URL.

    Args:
        folder: path or URL.
        tag: of this job, in temporary names.

    Raises:
        ValueError: If fsspec is not installed, or does not support the URL.
    """
    return UrlStorage(folder, tag) if is_url(folder) else LocalStorage(folder, tag)
