"""Time from the death of a rank to the first new step: ``--preload auto`` and lists by hand.

    python benchmarks/preload.py [--runs N] [--stack ddp|lightning|transformers]

A rank of two is killed (SIGKILL) once the fork server is ready, or, for ``none``, after the same
number of steps. Kinds are measured in alternation. The best list names what ``auto`` can learn.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

WORKER = Path(__file__).with_name("preload_worker.py")
BEST = {
    "ddp": "numpy,torch,torch._dynamo,torch.distributed.fsdp,ft_run.training.checkpointer",
    "lightning": "torch,torch._dynamo,torchmetrics,lightning.pytorch",
    "transformers": "torch,torch._dynamo,accelerate,transformers.trainer,"
    "transformers.models.gpt2.modeling_gpt2",
}
KINDS = ("none", "best", "auto")


def run(stack: str, kind: str) -> tuple[float, float]:
    """Run a job; return what it took from the death of a rank to the first new step of all ranks.

    Returns:
        Seconds, and the CPU seconds of the slowest new rank.
    """
    preload = {"none": (), "best": ("--preload", BEST[stack]), "auto": ("--preload", "auto")}[kind]
    with tempfile.TemporaryDirectory() as folder:
        command = [Path(sys.executable).parent / "ft-run", "--standalone", "--nproc-per-node", 2]
        command += ["--max-restarts", 1, *preload, WORKER, stack, folder]
        with subprocess.Popen(
            list(map(str, command)),
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stderr is not None
            lines: list[str] = []
            is_ready = threading.Event()

            def read() -> None:
                for line in process.stderr or ():
                    lines.append(line)
                    if "preload: " in line:
                        print(f"    {line.rstrip()}", file=sys.stderr)
                        is_ready.set()

            thread = threading.Thread(target=read)
            thread.start()
            steps = Path(folder) / "steps-0-1"
            while not (steps.exists() and steps.read_text().count("\n") >= 10):
                if process.poll() is not None:
                    sys.exit("".join(lines)[-3000:])
                time.sleep(0.05)
            if kind != "none" and not is_ready.wait(300):
                process.kill()
                sys.exit("the fork server does not become ready")
            time.sleep(1.0)
            death = time.time()
            os.kill(int((Path(folder) / "pid-0-1").read_text()), 9)
            process.wait()
            thread.join()
        if process.returncode:
            sys.exit("".join(lines)[-3000:])
        texts = [(Path(folder) / f"steps-1-{rank}").read_text() for rank in range(2)]
        firsts = [list(map(float, text.split()[:2])) for text in texts]
        return max(at for at, _ in firsts) - death, max(cpu for _, cpu in firsts)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--stack", choices=BEST, action="append")
    options = parser.parse_args()
    for stack in options.stack or BEST:
        took: dict[str, list[float]] = {kind: [] for kind in KINDS}
        cpu: dict[str, list[float]] = {kind: [] for kind in KINDS}
        for _ in range(options.runs):
            for kind in KINDS:
                for found, to in zip(run(stack, kind), (took, cpu), strict=True):
                    to[kind].append(found)
        none, best, auto = (statistics.median(took[kind]) for kind in KINDS)
        spread = ", ".join(f"{kind} {min(took[kind]):.2f}-{max(took[kind]):.2f}" for kind in KINDS)
        print(
            f"{stack}: none {none:.2f} s, best list {best:.2f} s, auto {auto:.2f} s: "
            f"{auto / best:.2f} x of the best list (<= 1.1 x), {auto / none:.2f} x of none; "
            f"{spread}; CPU {', '.join(f'{statistics.median(cpu[kind]):.2f}' for kind in KINDS)}"
            " s; "
            f"load {os.getloadavg()[0]:.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
