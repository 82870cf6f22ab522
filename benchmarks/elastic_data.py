"""Overhead of ``ElasticBatches`` and ``Checkpointer(seed=)`` on training steps.

    python benchmarks/elastic_data.py [--steps N] [--workers N] [--json FILE] [--quick]

Steps with and without them alternate in one process, so that other load affects both. See
README.md.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from figures import Target, facts_line, machine_facts, number, ratio, summarize, table
from ft_run.training import Checkpointer, ElasticBatches
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

SAMPLES, BATCH, PARTS = 1_000_000, 512, 4
STEP_S = 0.01
TARGET = Target(1.01, is_ratio=True)
_WARM_UP = 10


class Numbers(Dataset[int]):
    """Items that cost nothing, so that the order is seen."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitems__(self, indices: list[int]) -> list[int]:
        """Return the items of a batch."""
        return indices


class Steps:
    """A model, its optimizer and its checkpointer; each step computes for the same time."""

    def __init__(self, folder: Path, state: dict[str, Any], **options: Any) -> None:
        self.model = DistributedDataParallel(nn.Linear(8, 8))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        state |= {"model": self.model, "optimizer": self.optimizer}
        self.checkpointer = Checkpointer(
            folder, state, snapshot_every=None, checkpoint_every=None, **options
        )
        self.checkpointer.restore()

    def compute(self, weight: float) -> None:
        """Compute a part of the step, for a time instead of a number of operations."""
        until = time.perf_counter() + STEP_S / PARTS
        (self.model(torch.ones(1, 8)).sum() * weight).backward()
        while time.perf_counter() < until:
            pass

    def end(self, step: int) -> None:
        """End a step."""
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.checkpointer.step(step + 1)


def plain(folder: Path, workers: int) -> Callable[[int], None]:
    """Return a step as scripts write it: torch's samplers, parts of equal size."""
    steps, dataset = Steps(folder, {}, position="step", seed=None), Numbers()
    sampler = BatchSampler(RandomSampler(dataset), BATCH // PARTS, drop_last=False)
    batches = _forever(DataLoader(dataset, batch_sampler=sampler, **_options(workers)))

    def step(number: int) -> None:
        for part in range(PARTS):
            with steps.model.no_sync() if part < PARTS - 1 else nullcontext():
                next(batches)
                steps.compute(1 / PARTS)
        steps.end(number)

    return step


def elastic(folder: Path, workers: int, sources: int) -> Callable[[int], None]:
    """Return the same step with ``ElasticBatches``.

    Args:
        folder: of the checkpoints.
        workers: of the loader.
        sources: number of sources; > 1: a mixture.
    """
    dataset: Any = Numbers()
    sizes: Any = dataset if sources == 1 else [SAMPLES // sources] * sources
    weights = None if sources == 1 else [1 + number % 7 for number in range(sources)]
    data = ElasticBatches(sizes, BATCH, micro_batch=BATCH // PARTS, weights=weights)
    loader = DataLoader(dataset, batch_sampler=data, **_options(workers))
    steps = Steps(folder, {"data": data}, seed=1)

    def step(number: int) -> None:
        for part in data.parts(loader, number):
            with part.sync(steps.model):
                steps.compute(part.weight)
        steps.end(number)

    return step


def _forever(loader: "DataLoader[Any]") -> Iterator[Any]:
    while True:
        yield from loader


def _options(workers: int) -> dict[str, Any]:
    return {"num_workers": workers, "collate_fn": torch.tensor, "persistent_workers": workers > 0}


def measure(kinds: Sequence[Callable[[int], None]], steps: int) -> list[list[float]]:
    """Return the times of the steps of each kind in microseconds; their order alternates."""
    times: list[list[float]] = [[] for _ in kinds]
    for number_of_step in range(steps + _WARM_UP):
        order = list(zip(kinds, times, strict=True))
        for step, found in order if number_of_step % 2 else reversed(order):
            begin = time.perf_counter()
            step(number_of_step)
            found.append((time.perf_counter() - begin) * 1e6)
    return [found[_WARM_UP:] for found in times]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=500, help="of each kind (default 500)")
    parser.add_argument("--workers", type=int, default=0, help="of the loaders (default 0)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all samples")
    parser.add_argument("--quick", action="store_true", help="smoke test: a few steps")
    args = parser.parse_args(argv)
    facts = machine_facts()
    print(facts_line(facts), flush=True)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        dist.init_process_group("gloo", f"file://{folder}/store", rank=0, world_size=1)
        kinds = {
            "torch's samplers": plain(folder / "plain", args.workers),
            "ElasticBatches, seed=": elastic(folder / "one", args.workers, 1),
            "the same, 100 sources": elastic(folder / "mixture", args.workers, 100),
        }
        found = measure([*kinds.values()], 20 if args.quick else args.steps)
        dist.destroy_process_group()
    samples = dict(zip(kinds, found, strict=True))
    print(f"\n{_report(samples)}\n")
    if args.json is not None:
        args.json.write_text(json.dumps({"machine": facts, "samples": samples}, indent=1) + "\n")
    return 0


def _report(samples: dict[str, list[float]]) -> str:
    reference = next(iter(samples.values()))
    title = f"step of {STEP_S * 1e3:g} ms"
    lines = [(title, "median us", "ratio", "target", "mean us", "minimum us")]
    for name, found in samples.items():
        mine, plain = summarize(found), summarize(reference)
        if mine is not None:
            lines.append(
                (
                    name,
                    number(mine.median, 5),
                    "" if found is reference else number(ratio(mine, plain), 5),
                    "" if found is reference else TARGET.text(),
                    number(statistics.fmean(found), 5),
                    number(mine.minimum, 5),
                )
            )
    return table(lines)


if __name__ == "__main__":
    sys.exit(main())
