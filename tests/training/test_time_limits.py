"""Ranks that wait longer than torch's limits, which are eight seconds here."""

from pathlib import Path

import pytest
from ft_run.tests.harness.forked import run_forked

PROGRAM = """
import sys, time
from datetime import timedelta
from os import environ
import torch.distributed as dist
from torch import nn
from torch.distributed import distributed_c10d as c10d
from ft_run.training import Checkpointer
from ft_run.training.checkpoints import storage
from ft_run.training.checkpoints.storage_backends import LocalStorage

store, folder, rank, way = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
LIMIT_S = 8.0
c10d.default_pg_timeout = c10d._DEFAULT_PG_TIMEOUT = timedelta(seconds=LIMIT_S)
environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
dist.init_process_group("gloo", f"file://{store}", world_size=2, rank=rank)
new_group = dist.new_group
dist.new_group = lambda **given: new_group(**{"timeout": timedelta(seconds=LIMIT_S), **given})
publish = LocalStorage.publish

def late_publish(self, step, draft, keep):
    if step == 4:
        time.sleep(1.5 * LIMIT_S)
    return publish(self, step, draft, keep)

if way == "storage":
    LocalStorage.publish = late_publish
checkpointer = Checkpointer(folder, {"model": nn.Linear(2, 2)}, checkpoint_every=2, position="step")
for step in checkpointer.steps(4):
    if way == "evaluation" and rank == 0 and step == 2:
        time.sleep(1.5 * LIMIT_S)
print("done")
dist.destroy_process_group()
"""


@pytest.mark.long
def test_ranks_wait_for_an_evaluation_and_a_slow_last_checkpoint(tmp_path: Path) -> None:
    calls = [
        (tmp_path / f"store-{way}", tmp_path / way, rank, way)
        for way in ("evaluation", "storage")
        for rank in (0, 1)
    ]
    ended = run_forked(PROGRAM, calls, ("torch._dynamo", "ft_run.training.checkpointer"))
    assert [one.output.strip() for one in ended] == ["done"] * 4
    for way in ("evaluation", "storage"):
        assert (tmp_path / way / "step-00000004").is_dir()
