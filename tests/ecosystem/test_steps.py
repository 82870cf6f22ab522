"""The steps that ft-run counts of a watched worker are those that the loop, or the library, counts.

Of two optimizers that take turns, or one in another, a step is one of that which steps most.
"""

import json
import re
from pathlib import Path

import pytest
from ft_run.tests.e2e.conftest import Launcher

HERE = Path(__file__).parent

pytestmark = [pytest.mark.ecosystem, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """These libraries may take minutes to be imported on a busy machine."""
    monkeypatch.setattr("ft_run.tests.e2e.conftest.TIMEOUT_S", 500.0)


@pytest.mark.parametrize("way", [(), ("--preload", "torch")], ids=["cold", "warm"])
@pytest.mark.parametrize("library", ["torch", "lightning", "transformers", "accelerate"])
def test_steps_are_counted_right(ft: Launcher, library: str, way: tuple[str, ...]) -> None:
    pytest.importorskip(library)
    command = ft.start(
        "--standalone", "--nproc-per-node", 2, "-t", 2, "--watch-workers", *way,
        HERE / "counted_steps.py", library, ft.folder / "trained",
    )  # fmt: skip
    assert command.wait() == 0, command.stderr
    ranks = [json.loads(line) for line in re.findall(r"^result (.*)$", command.stdout, re.M)]
    assert sorted(rank["rank"] for rank in ranks) == ["0", "1"]
    for rank in ranks:
        assert rank["steps"]
        for case, (counted, own) in rank["steps"].items():
            assert counted == own > 0, case
