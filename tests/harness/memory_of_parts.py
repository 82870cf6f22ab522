"""The most memory of tensors at once in a step of FSDP2, by the number of parts.

python -m ft_run.tests.harness.memory_of_parts
"""

import json
from typing import Any

import torch
import torch.distributed as dist
from ft_run.training import ElasticBatches
from torch import nn
from torch._C._profiler import _EventType
from torch.distributed.fsdp import fully_shard
from torch.profiler import ProfilerActivity, profile
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.data import DataLoader, TensorDataset

WORLD = 4
WIDTH, LAYERS, SAMPLES_OF_RANK = 64, 16, 4


def peaks(*, every: bool) -> list[int]:
    """Return the peaks of steps of 1, 2 and 4 parts in bytes; all ranks call it together.

    Args:
        every: whether gradients are reduced in each part.
    """
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(LAYERS)]
    model: Any = nn.Sequential(*layers)
    for layer in layers:
        fully_shard(layer)
    fully_shard(model)
    samples = SAMPLES_OF_RANK * WORLD
    dataset = TensorDataset(torch.ones(samples, WIDTH))
    found = []
    for parts in (1, 2, 4):
        data = ElasticBatches(dataset, samples, micro_batch=SAMPLES_OF_RANK // parts)
        loader = DataLoader(dataset, batch_sampler=data)
        _step(model, data, loader, 0, every)  # makes what is kept: sharded gradients, iterators
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            _step(model, data, loader, 1, every)
        found.append(_peak(profiler))
    return found


def _step(
    model: Any, data: ElasticBatches, loader: "DataLoader[Any]", step: int, every: bool
) -> None:
    for part in data.parts(loader, step):
        with part.sync(model, every=every):
            (model(part.batch[0]).square().mean() * part.weight).backward()
    model.zero_grad(set_to_none=False)


def _peak(profiler: profile) -> int:
    """Return the highest sum of all that torch's allocator has given and got back since."""
    whole: Any = profiler.profiler
    left = list(whole.kineto_results.experimental_event_tree())
    changes = []
    while left:
        event: Any = left.pop()
        left += event.children
        if event.tag == _EventType.Allocation:
            changes.append((event.start_time_ns, event.extra_fields.alloc_size))
    now = highest = 0
    for _, size in sorted(changes):
        now += size
        highest = max(highest, now)
    return highest


def main() -> None:
    """Be one of several ranks whose collectives move nothing, so that each run is the same."""
    torch.set_num_threads(1)
    dist.init_process_group("fake", rank=0, world_size=WORLD, store=FakeStore())
    print("peaks", json.dumps({"each part": peaks(every=True), "once": peaks(every=False)}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
