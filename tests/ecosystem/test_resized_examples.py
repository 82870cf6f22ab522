"""Every example with ``ElasticBatches`` in jobs that lose and gain a node: each step's samples."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from ft_run.tests.harness.resized_job import run_resized

if TYPE_CHECKING:
    from ft_run.tests.e2e.conftest import Command, Launcher

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

# Notes the indices that the loader fetches in each step; reads "step:world,…" of the steps that
# wait for a number of ranks.
SCRIPT = """
import json, os, runpy, sys, threading
import torch
from ft_run.training import ElasticBatches
from torch.utils.data._utils.fetch import _MapDatasetFetcher

torch.set_num_threads(1)
script, folder, plan = sys.argv[1:4]
sys.argv = [script, *sys.argv[4:]]
worlds = dict(map(int, one.split(":")) for one in plan.split(","))
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
log = open(f"{folder}/log-{os.getpid()}", "a", buffering=1)
fetch, parts, fetched = _MapDatasetFetcher.fetch, ElasticBatches.parts, []


def noted_fetch(self, indices):
    fetched[:] = indices
    return fetch(self, indices)


def noted_parts(self, loader, step, **arguments):
    if worlds.get(step, world) != world:
        os.write(1, f"rank {rank} of {world} waits at {step}\\n".encode())
        threading.Event().wait(200)
        os._exit(9)
    seen = []
    for part in parts(self, loader, step, **arguments):
        seen += fetched if part.samples else []
        if part.is_last:
            log.write(json.dumps([step, world, rank, seen, self.samples(step).tolist()]) + "\\n")
        yield part


_MapDatasetFetcher.fetch, ElasticBatches.parts = noted_fetch, noted_parts
sys.path.insert(0, os.path.dirname(script))
runpy.run_path(script, run_name="__main__")
"""

pytestmark = [pytest.mark.slow, pytest.mark.ecosystem, pytest.mark.timeout(1200)]


@pytest.mark.parametrize(
    ("name", "preload", "worlds", "samples"),
    [
        ("train_digits_snapshots", "torch,torch._dynamo,sklearn", [(0, 2), (8, 1), (20, 2)], 1437),
        ("lightning_snapshots", "torch,lightning", [(0, 2), (20, 1), (50, 2)], 520),
        ("transformers_snapshots", "torch,transformers", [(0, 2), (5, 1), (12, 2)], 68),
    ],
)
def test_each_step_has_its_samples(
    ft: "Launcher",
    free_port: int,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    preload: str,
    worlds: list[tuple[int, int]],
    samples: int,
) -> None:
    pytest.importorskip(preload.rpartition(",")[2])
    monkeypatch.setattr("ft_run.tests.e2e.conftest.TIMEOUT_S", 500.0)
    folder, kept = ft.folder / "logs", ft.folder / "kept"
    folder.mkdir()
    mine = (kept,) if "digits" not in name else ("--epochs", 3, "--checkpoint-dir", kept)
    plan = ",".join(f"{step}:{world}" for step, world in worlds)

    def start() -> "Command":
        return ft.start(
            *("--nnodes", "1:2", "--rdzv-endpoint", f"127.0.0.1:{free_port}"),
            *("--rdzv-id", f"{ft.mark}job", "--max-restarts", 9, "--rescale-delay", "0s"),
            *("--rdzv-conf", "last_call_timeout=1,drain_timeout=1", "--preload", preload),
            *(ft.script(SCRIPT), EXAMPLES / f"{name}.py", folder, plan, *mine),
        )

    run_resized(worlds, start)
    check(folder, samples)


def check(folder: Path, samples: int) -> None:
    """Check the samples of all steps of three epochs."""
    lines = [line for path in folder.glob("log-*") for line in path.read_text().splitlines()]
    expected: dict[int, list[int]] = {}
    made: dict[tuple[int, int], dict[int, list[int]]] = {}
    for step, world, rank, seen, whole in map(json.loads, lines):
        assert expected.setdefault(step, whole) == whole
        assert made.setdefault((step, world), {}).setdefault(rank, seen) == seen
    complete = {key: ranks for key, ranks in made.items() if len(ranks) == key[1]}
    assert {step for step, _ in complete} == set(expected) == set(range(len(expected)))
    assert {world for _, world in complete} == {1, 2}
    for (step, world), ranks in complete.items():
        assert [one for rank in range(world) for one in ranks[rank]] == expected[step]
    in_order = [one for step in range(len(expected)) for one in expected[step]]
    assert len(in_order) == 3 * samples
    for epoch in range(3):
        assert sorted(in_order[epoch * samples : (epoch + 1) * samples]) == list(range(samples))
