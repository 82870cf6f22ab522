"""One of two ranks that train a sharded model on GPUs that ``CudaRuntime`` stands in for.

Arguments: a file for the process group, the rank, the number of steps, the step to resume from, and
descriptors of the memory that an agent would hold: of this rank's snapshots, and of replicas.
Prints a line of JSON.
"""

import hashlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from ft_run.tests.harness.cuda.runtime import CudaRuntime
from ft_run.training import Checkpointer
from ft_run.training.checkpoints import copying, memory_files, snapshot_manager, state
from ft_run.training.checkpoints.copying import local
from ft_run.training.worker.snapshot_memory import Memory
from ft_run.training.worker.snapshot_page import BUFFERS
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor


def main() -> None:
    """Train, and print what is left."""
    folder, rank, total, resume, *fds = sys.argv[1], *map(int, sys.argv[2:])
    dist.init_process_group("gloo", f"file://{folder}", world_size=2, rank=rank)
    cuda = CudaRuntime()
    use(cuda, rank)
    setattr(snapshot_manager, "request_memory", given(fds, resume))  # noqa: B010 - not exported

    model = torch.nn.Linear(400, 800, bias=False)
    torch.manual_seed(0)
    whole = torch.randn(800, 400)
    model.weight = torch.nn.Parameter(
        distribute_tensor(whole, init_device_mesh("cpu", (2,)), [Shard(0)])
    )
    shard = local(model.weight).detach()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    objects = {"model": model, "optimizer": optimizer}
    # Snapshots belong to a directory, which is that of all runs of a test.
    directory = Path(folder).parent.with_name("checkpoints")
    checkpointer = Checkpointer(directory, objects, checkpoint_every=None)
    begun, calls = -1, -1
    for number in checkpointer.steps(total):
        if begun < 0:
            begun, calls = number, len(cuda.calls)
        optimizer.step()
        shard.mul_(1 + 1 / (number + 2 + rank))
        checkpointer._snapshots.wait_for_replicas()  # each step has one
    checkpointer.wait()
    bits = hashlib.sha256(shard.numpy().tobytes()).hexdigest()
    found = {"begun": begun, "calls": calls, "bits": bits, "devices": sorted(cuda.mine)}
    replicas: Any = checkpointer._snapshots._replicas
    found |= {"replicas": replicas.state}
    found |= {"threads": sorted(cuda.registered_by | cuda.waited_by), "pending": cuda.pending}
    print(json.dumps(found), flush=True)
    dist.destroy_process_group()


def use(cuda: CudaRuntime, device: int) -> None:
    """Let the parts of DTensors be on a device: their own operations would lose that."""

    def part_of(value: Any) -> Any:
        part = local(value)
        return cuda.on(part.detach(), device) if isinstance(value, DTensor) else part

    modules: Any = (copying, state, memory_files)
    for module in modules:
        module.local, module._CUDA = part_of, cuda
    memory_files._error_reader = lambda: cuda.read_error  # type: ignore[assignment]  # a substitute
    cuda.set_device(device)


def given(fds: Sequence[int], resume: int) -> Any:
    """Return what stands in for the request of memory from an agent."""

    def request_memory(_: int, replica: int = 0) -> Memory | None:
        mine = fds[replica * (1 + BUFFERS) :][: 1 + BUFFERS]
        return Memory(mine[0], tuple(mine[1:]), resume) if mine else None

    return request_memory


if __name__ == "__main__":
    main()
