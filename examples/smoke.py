"""A smoke test for launchers: all workers all-reduce their ranks and check the sum.

    ft-run --standalone --nproc-per-node 2 examples/smoke.py

It needs no GPU and no data. The exit code is 0 only if the sum is right on all workers.
"""

from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record


@record
def main() -> None:
    """Join the process group, all-reduce, check the result."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank, world = dist.get_rank(), dist.get_world_size()
    total = torch.tensor([rank])
    dist.all_reduce(total)
    expected = world * (world - 1) // 2
    if int(total) != expected:
        raise RuntimeError(
            f"all-reduce over {world} ranks returned {int(total)}: expected {expected}"
        )
    # One write: else lines of several workers can be interleaved.
    print(f"rank {rank} of {world}: all-reduce ok\n", end="", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
