"""Trains with what torch itself has: env://, @record, DDP, FSDP2, DistributedSampler, checkpoint.

The same training is done by DDP, whole, and then by FSDP2, in which the fish bites.
"""

import sys
from pathlib import Path

import plain
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.elastic.multiprocessing.errors import record
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


def sampler(rank: int, world: int) -> DistributedSampler:
    return DistributedSampler(plain.dataset(), num_replicas=world, rank=rank, seed=2)


def loader(rank: int, world: int, epoch: int) -> DataLoader:
    mine = sampler(rank, world)
    mine.set_epoch(epoch)
    return DataLoader(plain.dataset(), batch_size=plain.BATCH, sampler=mine)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def train(model: nn.Module, folder: Path, die: bool) -> list[int]:
    """Train all epochs that no checkpoint has; return the epochs that were trained here."""
    optimizer = sgd(model)
    done = [int(path.parent.name) for path in folder.glob("*/.metadata")]
    state, optim = get_state_dict(model, optimizer)
    if done:
        dcp.load(  # type: ignore[attr-defined]  # not declared
            {"model": state, "optim": optim}, checkpoint_id=folder / str(max(done))
        )
        set_state_dict(model, optimizer, model_state_dict=state, optim_state_dict=optim)
    epochs = list(range(max(done, default=-1) + 1, plain.EPOCHS))
    for epoch in epochs:
        plain.train(model, optimizer, loader(dist.get_rank(), dist.get_world_size(), epoch))
        if die and epoch == 1:
            raise RuntimeError("the fish has bitten")
        state, optim = get_state_dict(model, optimizer)
        dcp.save(  # type: ignore[attr-defined]  # not declared
            {"model": state, "optim": optim}, checkpoint_id=folder / str(epoch)
        )
    return epochs


def plain_loop(world: int) -> nn.Module:
    """Train without ranks: each step sees the batches of all of them."""
    model = plain.network()
    optimizer = sgd(model)
    for epoch in range(plain.EPOCHS):
        of_ranks = [loader(rank, world, epoch) for rank in range(world)]
        for step in zip(*of_ranks, strict=True):
            inputs, wanted = (torch.cat(parts) for parts in zip(*step, strict=True))
            plain.train(model, optimizer, [(inputs, wanted)])
    return model


@record
def main() -> None:
    folder, victim = Path(sys.argv[1]), int(sys.argv[2])
    assert dist.is_torchelastic_launched()
    dist.init_process_group("gloo", init_method="env://")
    ddp = DistributedDataParallel(plain.network())
    train(ddp, folder / "ddp", die=False)
    fsdp = plain.network()
    fully_shard(fsdp, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    epochs = train(fsdp, folder / "fsdp", plain.dies_now(victim))
    whole = [p.full_tensor() if isinstance(p, DTensor) else p for p in fsdp.parameters()]
    assert all(map(torch.equal, whole, ddp.parameters())), "DDP and FSDP2 differ"
    plain.report(
        whole,
        plain_loop(dist.get_world_size()).parameters(),
        launched_by="env://",
        resumed=epochs == [1, 2],
    )
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
