"""What people train with, under ft-run: a rank dies, all resume, and the result is the right one.

Each script trains a tiny model on random tensors with one library, saves as it goes, and says
whether its weights are those of a plain loop that knows nothing of ranks. For the night: what the
libraries read, the environment, the conformance tests compare for each change.
"""

import importlib.util
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from ft_run.tests.e2e.conftest import Command, Launcher

HERE = Path(__file__).parent
TORCHRUN = str(Path(sys.executable).with_name("torchrun"))

STACKS = {
    "torch": "env://",
    "lightning": "TorchElasticEnvironment",
    "accelerate": "MULTI_CPU",
    "transformers": "distributed",
}
"""Each with what it says of the way it was launched."""

pytestmark = [pytest.mark.ecosystem, pytest.mark.slow, pytest.mark.timeout(600)]


def results(command: Command) -> list[dict[str, Any]]:
    """Return what the ranks say, in order; fail unless the command succeeded."""
    assert command.wait() == 0, command.stderr
    lines = re.findall(r"^result (.*)$", command.stdout, re.MULTILINE)
    return sorted(map(json.loads, lines), key=lambda result: int(result["rank"]))


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two interpreters that import these libraries, twice, may take minutes on a busy machine."""
    monkeypatch.setattr("ft_run.tests.e2e.conftest.TIMEOUT_S", 500.0)


@pytest.mark.parametrize("stack", STACKS)
def test_a_rank_dies_and_the_weights_are_those_of_a_plain_loop(ft: Launcher, stack: str) -> None:
    """And those of torchrun, bit by bit."""
    pytest.importorskip(stack)
    command = ft.start(
        "--standalone", "--nproc-per-node", 2, "--max-restarts", 1, "-t", 2,
        HERE / f"{stack}_stack.py", ft.folder / "with-a-fault", 1,
    )  # fmt: skip
    found = results(command)
    restarts = re.findall(r" restart \d.*", command.stderr)
    assert len(restarts) == 1
    # The threads of a process group that is not destroyed may abort the process as it exits.
    ends = r"RuntimeError: the fish has bitten\b|was killed by SIGABRT"
    assert re.search(rf"1/1: rank 1 on node 0 \(.*({ends})", restarts[0])
    assert "RuntimeError: the fish has bitten" in command.stderr
    assert [result["rank"] for result in found] == [0, 1]
    for result in found:
        assert result["as expected"]
        assert result["resumed"], "it began anew"
        assert result["launched by"] == STACKS[stack]
    assert found[0]["weights"] == found[1]["weights"]
    script, folder = HERE / f"{stack}_stack.py", ft.folder / "undisturbed"
    torchrun = ft.start(
        *("--standalone", "--nproc-per-node", 2, "--log-dir", ft.folder / "torchrun"),
        *(script, folder, -1),
        program=(TORCHRUN,),
    )
    theirs = results(torchrun)
    assert not theirs[0]["resumed"]
    assert [result["weights"] for result in found] == [result["weights"] for result in theirs]


def test_transformers_has_the_callback_that_reports_to_a_trainjob() -> None:
    spec = importlib.util.find_spec("transformers")
    assert spec is not None
    assert spec.origin is not None
    path = Path(spec.origin).parent / "integrations" / "integration_utils.py"
    assert "class KubeflowCallback" in path.read_text()
