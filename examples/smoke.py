"""The smallest job that proves a launcher works: every worker adds up all ranks and checks the sum.

    ft-run --standalone --nproc-per-node 2 examples/smoke.py

Needs no GPU and no data. Exit status 0 only if all workers met and the sum is right.
"""

from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record


@record
def main() -> None:
    """Meet the other workers, all-reduce, check, leave."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank, world = dist.get_rank(), dist.get_world_size()
    total = torch.tensor([rank])
    dist.all_reduce(total)
    expected = world * (world - 1) // 2
    if int(total) != expected:
        raise RuntimeError(
            f"all-reduce over {world} ranks returned {int(total)}: expected {expected}"
        )
    # One write: with print alone, lines of several workers can run into each other.
    print(f"rank {rank} of {world}: all-reduce ok\n", end="", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
