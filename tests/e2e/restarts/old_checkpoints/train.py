"""A small training; ``plain`` and ``ddp`` next to it contain its state of step 4.

Commit 5b9d18d7 saved them with ``ft-run --standalone --nproc-per-node 1 train.py plain 4``, and
with two processes and ``ddp``.
"""

import json
import random
import sys
from os import environ

import torch
import torch.distributed as dist
from ft_run.training import Checkpointer, ElasticBatches
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

folder, total = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(1)
rank, model = int(environ.get("RANK", "0")), nn.Linear(2, 1)
with torch.no_grad():
    model.weight.fill_(0.5)
    model.bias.zero_()
random.seed(rank)
trained: nn.Module = model
if int(environ.get("WORLD_SIZE", "1")) > 1:
    dist.init_process_group("gloo")
    trained = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.Adam(model.parameters(), lr=0.125)
data = ElasticBatches(20, 4, micro_batch=1, seed=3)
inputs = torch.arange(40.0).view(20, 2) / 64
loader = DataLoader(TensorDataset(torch.arange(20), inputs), batch_sampler=data)
seen: list[int] = []
"""The numbers of the samples of this rank."""
state = {"model": model, "optimizer": optimizer, "data": data, "seen": seen}
checkpointer = Checkpointer(folder, state, checkpoint_every=4)
begin = checkpointer.restore()
for step in checkpointer.steps(total):
    optimizer.zero_grad()
    for part in data.parts(loader, step):
        numbers, values = part.batch
        seen.extend(numbers.tolist())
        (trained(values).square().mean() * part.weight).backward()
    optimizer.step()
    drawn = random.random()
adam = [value.tolist() for one in optimizer.state.values() for value in one.values()]
values = [model.weight.tolist(), model.bias.tolist(), *adam]
if dist.is_initialized():
    dist.destroy_process_group()
line = json.dumps([rank, begin, values, seen, drawn])
print(f"{line}\n", end="", flush=True)  # in one write: those of two ranks do not mix
