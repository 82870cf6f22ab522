"""Skips the tests of this folder without a GPU; with one, prints what each has measured."""

import pytest
from ft_run.launcher.machine.nvml import has_library


@pytest.fixture(autouse=True, scope="session")
def gpu() -> None:
    """Skip without a driver."""
    if not has_library():
        pytest.skip("no NVIDIA driver (libnvidia-ml.so.1) on this machine")
