"""The two launchers, for tests that compare them."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from ft_run.tests.conformance.launchers import FtRun, Launcher, Torchrun
from ft_run.tests.e2e.conftest import default_signals

__all__ = ["default_signals"]

# The claims are asserted there.
pytest.register_assert_rewrite("ft_run.tests.conformance.points")


@pytest.fixture
def torchrun(tmp_path: Path) -> Iterator[Torchrun]:
    launcher = Torchrun(tmp_path / "torchrun")
    yield launcher
    launcher.clean_up()


@pytest.fixture
def ft_run(tmp_path: Path) -> Iterator[Launcher]:
    """Afterwards no process and, after success, no temporary file may be left."""
    launcher = FtRun(tmp_path / "ft-run")
    try:
        yield launcher
        ended = all(command.process.poll() is not None for command in launcher.commands)
        if ended:
            launcher.wait_until(lambda: not launcher.processes(), "all processes have ended")
        if all(command.process.poll() == 0 for command in launcher.commands):
            assert not [*launcher.temporary.iterdir()]
    finally:
        launcher.clean_up()
