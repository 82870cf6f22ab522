"""Values that the parallel processes of one test run compute once."""

import fcntl
import json
import os
from collections.abc import Callable
from typing import Any

import pytest


def compute_once(
    factory: pytest.TempPathFactory, name: str, compute: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """Return a value of JSON; the first process of the run that asks for it computes it."""
    folder = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    path = folder / f"{name}.json"
    with open(folder / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            path.write_text(json.dumps(compute()))
        found: dict[str, Any] = json.loads(path.read_text())
        return found
