"""The exchange of shards between ranks."""

from pathlib import Path

from ft_run.tests.harness.forked import run_forked

PROGRAM = """
import os, sys
import torch
import torch.distributed as dist
from ft_run.training.checkpoints import replication
from ft_run.training.checkpoints.kinds import Kinds
from ft_run.training.checkpoints.snapshot_store import Snapshots
from ft_run.training.ranks import Ranks
from ft_run.training.worker import snapshot_page as page
from ft_run.training.worker.snapshot_memory import Memory

store, rank, fails = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "1"
dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=2)
replication._CHUNK_BYTES = 1000


def memory():
    fds = [os.memfd_create("test") for _ in range(1 + page.BUFFERS)]
    os.ftruncate(fds[0], page.PAGE_BYTES)
    return Snapshots(Memory(fds[0], tuple(fds[1:]), -1), rank, 2, 5, Kinds(rank, 2, has_local=True))


def no_memory(*_, **__):
    raise OSError("no memory")


mine, of_other = memory(), memory()
if fails:
    of_other.receive = no_memory
state = {"a": torch.full((9000 - 8000 * rank,), rank)}
mine.write(1, lambda: state, state)
replicas = replication.Replicas(Ranks(), mine, [of_other])
print(replicas.exchange_now(1), replicas.state == replication.FAILED, of_other.ranks_of(1))
dist.destroy_process_group()
"""


def test_a_rank_without_memory_for_a_shard_leaves_no_other_waiting(tmp_path: Path) -> None:
    """Whether its own shard is the longer or the shorter one."""
    calls = [
        (tmp_path / f"world-{bad}", rank, int(rank == bad)) for bad in (0, 1, 2) for rank in (0, 1)
    ]
    ended = run_forked(PROGRAM, calls, ["torch.distributed", "ft_run.training.checkpoints.state"])
    assert [one.output.strip() for one in ended] == [
        "False True []",
        "False False [0]",
        "False False [1]",
        "False True []",
        "True False [1]",
        "True False [0]",
    ]
