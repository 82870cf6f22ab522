"""A worker of ``compare.py``: prints the median time of a step in microseconds.

    steps.py ROUNDS STEPS

A step is ROUNDS iterations of an empty loop and one SGD step on a small tensor.
"""

import statistics
import sys
import time

import torch

_WARM_UP = 20


def main() -> None:
    """Run and time the steps."""
    rounds, steps = int(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    parameter = torch.nn.Parameter(torch.zeros(8))
    parameter.grad = torch.ones(8)
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    times = []
    for _ in range(steps + _WARM_UP):
        started = time.perf_counter_ns()
        for _ in range(rounds):
            pass
        optimizer.step()
        times.append(time.perf_counter_ns() - started)
    print("median", statistics.median(times[_WARM_UP:]) / 1e3)


main()
