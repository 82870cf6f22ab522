"""Where torchrun is wrong, ft-run is right: each claim is checked of both (``points.py``).

That torchrun is wrong is recorded for each version of torch (``recordings.py``).
"""

import os

import pytest
from ft_run.tests.conformance import recordings
from ft_run.tests.conformance.job import Job
from ft_run.tests.conformance.launchers import Launcher
from ft_run.tests.conformance.points import POINTS, Point, the_end_of_one_node_is_the_end_of_all

EACH = pytest.mark.parametrize("point", POINTS, ids=lambda point: point.name)


@EACH
def test_ft_run_is_right(point: Point, ft_run: Launcher) -> None:
    _run(point, ft_run)


@EACH
def test_torchrun_is_wrong(point: Point, request: pytest.FixtureRequest) -> None:
    name, of = f"point {point.name}", recordings.of_point(point)
    mode = recordings.mode(request)
    if mode in ("recorded", "live"):
        assert recordings.load(name, of)["torchrun"]
        if mode == "recorded":
            return
    torchrun = request.getfixturevalue("torchrun")
    with pytest.raises(AssertionError) as wrong:
        _run(point, torchrun)
    if mode == "record":
        recordings.save(name, of, {"torchrun": str(wrong.value).partition("\n")[0]})


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_torchrun_succeeds_after_300_s_where_another_node_has_failed(torchrun: Launcher) -> None:
    torchrun.gives_up_s = 400.0
    with pytest.raises(AssertionError, match=r"\[1, 0\] == \[1, 1\]"):
        the_end_of_one_node_is_the_end_of_all(Job(torchrun))


def test_all_fourteen_points_are_here() -> None:
    assert sorted({point.number for point in POINTS}) == list(range(1, 15))


def _run(point: Point, launcher: Launcher) -> None:
    if point.needs_root and os.geteuid() != 0:
        pytest.skip("needs root")
    point.claim(Job(launcher))
