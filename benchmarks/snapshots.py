"""Time to recover from a crash with snapshots, and the overhead of snapshots.

    python benchmarks/snapshots.py [--runs N] [--quick]

Recovery is the time from the SIGKILL of a rank to the end of the first new step: under ft-run with
``Checkpointer``, under torchrun with ``torch.save`` or ``async_save`` every 20 steps, and under a
minimal launcher (``snapshot_bare.py``), in alternation. The rank dies in the middle of a step, half
way between two saves. It is also measured with a tenth of the state. torchrun runs with
``TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1``: else it sometimes needs further restarts with gloo.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

WORKER = Path(__file__).with_name("snapshot_worker.py")
BARE = Path(__file__).with_name("snapshot_bare.py")
PRELOAD = ["--preload", "torch,torch._dynamo,ft_run.training.checkpointer"]
BIN = Path(sys.executable).parent


def lines_of(folder: Path) -> list[dict[str, float]]:
    """Return the measurements of the ranks."""
    texts = [path.read_text() for path in sorted(folder.glob("lines-*"))]
    return [json.loads(line) for text in texts for line in text.splitlines()]


def run(launcher: str, workers: int, mode: str, *args: object) -> list[dict[str, float]]:
    """Run a job; return the measurements of its ranks."""
    with tempfile.TemporaryDirectory() as folder:
        command = [BIN / launcher, "--standalone", "--nproc-per-node", workers]
        command += ["--max-restarts", 3, *(PRELOAD if launcher == "ft-run" else []), WORKER, mode]
        if mode == "bare":
            command = [sys.executable, BARE]
        command += [folder, *args]
        env = os.environ | {"OMP_NUM_THREADS": "1"}
        if launcher == "torchrun":
            env["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        done = subprocess.run(
            list(map(str, command)), env=env, capture_output=True, text=True, check=False
        )
        if done.returncode:
            sys.exit(f"{launcher} failed with exit code {done.returncode}:\n{done.stderr[-3000:]}")
        return lines_of(Path(folder))


def recovery_s(lines: list[dict[str, float]]) -> float:
    """Return the time from the death to the end of the first new step on the slowest rank."""
    (death,) = (line["death"] for line in lines if "death" in line)
    done_before = {line["step"] for line in lines if line.get("time", death) < death}
    first = max(done_before) + 1
    return max(line["time"] for line in lines if line.get("step") == first) - death


def _mb(parameters: int) -> float:
    return parameters * 12 / 1e6


def print_recovery(runs: int, parameters: int, step_s: float) -> None:
    """Measure and print the recovery from a crash."""
    kinds = {
        "torch-save": "torchrun",
        "async-save": "torchrun",
        "checkpointer": "ft-run",
        "bare": "minimal launcher",
    }
    took: dict[str, list[float]] = {mode: [] for mode in kinds}
    for _ in range(runs):
        for mode, launcher in kinds.items():
            took[mode].append(recovery_s(run(launcher, 2, mode, 34, parameters, step_s)))
    save, async_save, mine, bare = (statistics.median(took[mode]) for mode in kinds)
    print(
        f"recovery with {_mb(parameters):.0f} MB of state: torchrun {save:.2f} s, with "
        f"async_save {async_save:.2f} s, ft-run {mine:.2f} s, {mine / save:.2f} x (<= 0.1 x) and "
        f"{mine / async_save:.2f} x; minimal launcher {bare:.2f} s, {bare / save:.2f} x"
    )


def print_stall(parameters: int, step_s: float) -> None:
    """Measure and print the overhead of a snapshot per step."""
    lines = run("ft-run", 1, "stall", 20, parameters, step_s)
    bare, snapshot, pause, compute = (
        statistics.median(line[key] for line in lines if key in line)
        for key in ("bare", "snapshot", "pause", "compute")
    )
    print(
        f"stall: plain copy {bare * 1e3:.1f} ms, snapshot {snapshot * 1e3:.1f} ms, "
        f"{snapshot / bare:.2f} x (<= 1.3 x)"
    )
    print(f"slowdown of a step of {step_s:g} s: {pause:.1%} if it mostly waits (<= 5 %),")
    print(f"    {compute:.1%} if it computes with one thread")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="smoke test: one short run")
    parser.add_argument("--part", choices=("recovery", "stall"), help="measure only this part")
    options = parser.parse_args()
    parameters, step_s, runs = 25_000_000, 0.2, options.runs
    if options.quick:
        parameters, step_s, runs = 10_000_000, 0.01, 1
    print(f"load {os.getloadavg()[0]:.1f}, {_mb(parameters):.0f} MB of state per rank")
    if options.part != "stall":
        for part in (10, 1):
            print_recovery(runs, parameters // part, step_s)
    if options.part != "recovery":
        print_stall(parameters, step_s)


if __name__ == "__main__":
    main()
