"""Gradients of uneven pieces, in parts, are those of one process."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


def test_gradients_of_four_ranks_are_those_of_one_process(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ft_run.tests.harness.gradient_ranks", str(tmp_path / "store")],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found["differences"]) == 12
    assert {name for name, one in found["differences"].items() if not one < 1e-12} == set()
    assert found["without a mesh"].startswith("invalid value None for mesh: the model is sharded")
    assert found["over two"] == [0, 4, 10.0, [0.0, 1.0, 2.0, 3.0]]
    assert found["over replicas"] == [False, True]  # reduced over replicas once, in the last part


@pytest.mark.slow
def test_more_parts_of_fsdp2_never_need_more_memory() -> None:
    """Whole gradients are kept only where they are reduced once; activations are small here."""
    done = subprocess.run(
        [sys.executable, "-m", "ft_run.tests.harness.memory_of_parts"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("peaks ")]
    found = json.loads(line.removeprefix("peaks "))
    one, two, four = found["each part"]
    assert four < two < one
    gradients = 16 * (64 * 64 + 64) * 4
    assert min(found["once"][1:]) > one + 0.8 * gradients
