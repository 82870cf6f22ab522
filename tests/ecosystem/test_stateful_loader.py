"""torchdata's ``StatefulDataLoader`` in the state: after kills, and in a new job."""

import shutil
from typing import TYPE_CHECKING

import pytest
from ft_run.tests.e2e.restarts.test_rank_state import check_same_world

if TYPE_CHECKING:
    from ft_run.tests.e2e.conftest import Launcher

pytestmark = [pytest.mark.ecosystem, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize("workers", [0, 2])
def test_goes_on(ft: "Launcher", monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    """Within an epoch of five batches, and over its end.

    The name is short: workers of a loader have sockets below the folder of the test.
    """
    pytest.importorskip("torchdata")
    monkeypatch.setenv("LOADER_WORKERS", str(workers))
    undisturbed, _ = check_same_world(ft, "torchdata")
    for left in ft.temporary.glob("pymp-*"):  # by processes of loaders that were killed
        shutil.rmtree(left)
    lines = undisturbed.lines(1)
    drawn = [number for step in range(5) for number in lines[step][0]]
    assert sorted(drawn) == list(range(1000, 1010))
