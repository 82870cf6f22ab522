"""Time that the comparison of ranks takes beside the steps of training.

    python benchmarks/equality.py [--quick]

Two ranks with 1 GB of weights and state of Adam each, on the CPU, train in steps of 100 ms: without
a comparison, with one after each step, and with the default.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_STEP_S = 0.1
_BIN = Path(sys.executable).parent


def train(folder: str, parameters: int, steps: int) -> None:
    """Train as one rank; rank 0 prints the durations of its steps, in seconds, by mode."""
    import torch
    import torch.distributed as dist
    from ft_run.training import Checkpointer
    from torch import nn

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    layers = range(max(1, parameters // 1_000_000))
    model = nn.ModuleList([nn.Linear(1000, 1000, bias=False) for _ in layers])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
            parameter.grad = torch.ones_like(parameter)
    optimizer = torch.optim.Adam(model.parameters())
    optimizer.step()
    optimizer.zero_grad()
    state = {"model": model, "optimizer": optimizer}
    for mode, every in (("never", 1_000_000), ("each step", 1), ("default", None)):
        checkpointer = Checkpointer(
            f"{folder}/{mode}",
            state,
            snapshot_every=None,
            checkpoint_every=None,
            seed=1,
            position="step",
            verify_every=every,
        )
        count = 20 * steps if every is None else steps
        began = time.perf_counter()
        for step in checkpointer.steps(count):
            if step == 1:  # the first step has the comparison of each start
                began = time.perf_counter()
            time.sleep(_STEP_S)
        took = (time.perf_counter() - began) / (count - 1)
        if dist.get_rank() == 0:
            print(json.dumps([mode, took]), flush=True)
    dist.destroy_process_group()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="smoke test: less state, fewer steps")
    parser.add_argument("--rank", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        folder, parameters, steps = options.rank
        train(folder, int(parameters), int(steps))
        return
    parameters, steps = (1_000_000, 3) if options.quick else (84_000_000, 50)
    job = [_BIN / "ft-run", "--standalone", "--nproc-per-node", 2, __file__, "--rank"]
    print(f"load {os.getloadavg()[0]:.1f}, {parameters * 12 / 1e9:.2f} GB of state per rank")
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [*map(str, job), folder, str(parameters), str(steps)],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        sys.exit(f"the job failed with exit code {done.returncode}:\n{done.stderr[-3000:]}")
    took = dict(json.loads(line) for line in done.stdout.splitlines())
    for mode, step_s in took.items():
        more = step_s - took["never"]
        print(f"{mode}: {step_s * 1e3:.1f} ms per step, {more / took['never']:.2%} more")
    one_s = took["each step"] - took["never"]
    share = one_s / took["never"] / 100
    print(f"a comparison takes {one_s * 1e3:.0f} ms, every 100 steps {share:.2%} of the time")
    print("\n".join(line for line in done.stderr.splitlines() if "comparing" in line))


if __name__ == "__main__":
    main()
