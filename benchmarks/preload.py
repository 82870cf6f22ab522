"""Time from the death of a rank to the first new step: ``--preload auto`` and lists by hand.

    python benchmarks/preload.py [--runs N] [--stack ddp|lightning|transformers]

A rank of two is killed (SIGKILL) once the fork server is ready, or, for ``none``, after as many
steps; and once more in the next round. Kinds are measured in alternation. At the first restart of
``auto`` the workers that are stopped were not forked: they take longer to free their memory.
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
from typing import NoReturn

WORKER = Path(__file__).with_name("preload_worker.py")
BEST = {
    "ddp": "numpy,torch,torch._dynamo,torch.distributed.fsdp,ft_run.training.checkpointer",
    "lightning": "torch,torch._dynamo,torchmetrics,lightning.pytorch",
    "transformers": "torch,torch._dynamo,accelerate,transformers.trainer,"
    "transformers.models.gpt2.modeling_gpt2",
}
KINDS = ("none", "best", "auto")


class Job:
    """A job with two restarts: a rank is killed once the fork server is ready, and once more."""

    def __init__(self, stack: str, kind: str, folder: Path) -> None:
        preload = {"none": (), "best": ("--preload", BEST[stack]), "auto": ("--preload", "auto")}
        command = [Path(sys.executable).parent / "ft-run", "--standalone", "--nproc-per-node", 2]
        command += ["--max-restarts", 2, *preload[kind], WORKER, stack, folder]
        self._kind, self._folder = kind, folder
        self._lines: list[str] = []
        self._is_ready = threading.Event()
        self._process = subprocess.Popen(
            list(map(str, command)),
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self._process.stderr or ():
            self._lines.append(line)
            if "preload: " in line:
                self._is_ready.set()
                print(f"    {self._kind}: {line.rstrip()}", file=sys.stderr)

    def restarts(self) -> list[tuple[float, float]]:
        """Return what each took from the death of a rank to the first new step of all ranks.

        Returns:
            Seconds, and the CPU seconds of the slower new rank.
        """
        deaths = []
        for attempt in range(2):
            self._wait_for_steps(attempt)
            if self._kind != "none" and not self._is_ready.wait(300):
                self._fail("the fork server is not ready after 300 s")
            time.sleep(1.0)
            deaths.append(time.time())
            os.kill(int((self._folder / f"pid-{attempt}-1").read_text()), 9)
        if self._process.wait():
            self._fail("the job failed")
        return [(at - deaths[n], cpu) for n, (at, cpu) in enumerate(map(self._first, (1, 2)))]

    def _first(self, attempt: int) -> tuple[float, float]:
        texts = [(self._folder / f"steps-{attempt}-{rank}").read_text() for rank in range(2)]
        firsts = [list(map(float, text.split()[:2])) for text in texts]
        return max(at for at, _ in firsts), max(cpu for _, cpu in firsts)

    def _wait_for_steps(self, attempt: int) -> None:
        steps = [self._folder / f"steps-{attempt}-{rank}" for rank in range(2)]
        while not all(file.exists() and file.read_text().count("\n") >= 10 for file in steps):
            if self._process.poll() is not None:
                self._fail("the job ended")
            time.sleep(0.05)

    def _fail(self, why: str) -> NoReturn:
        self._process.kill()
        sys.exit(f"{why}\n{''.join(self._lines)[-3000:]}")


def measure(stack: str, runs: int) -> None:
    """Measure and print the restarts of a stack."""
    took: dict[str, list[list[tuple[float, float]]]] = {kind: [] for kind in KINDS}
    for _ in range(runs):
        for kind in KINDS:
            with tempfile.TemporaryDirectory() as folder:
                took[kind].append(Job(stack, kind, Path(folder)).restarts())
    for number in range(2):
        print(f"{stack}, restart {number + 1} (load {os.getloadavg()[0]:.1f}):", flush=True)
        middle = {}
        for kind in KINDS:
            found = [restarts[number] for restarts in took[kind]]
            seconds = sorted(s for s, _ in found)
            middle[kind] = statistics.median(seconds)
            cpu = statistics.median(cpu for _, cpu in found)
            spread = f"{seconds[0]:.2f} to {seconds[-1]:.2f}"
            print(f"    {kind:4} {middle[kind]:.2f} s ({spread}), CPU {cpu:.2f} s", flush=True)
        auto = middle["auto"]
        print(
            f"    auto: {auto / middle['best']:.2f} x of the best list (<= 1.1 x), "
            f"{auto / middle['none']:.2f} x of none",
            flush=True,
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--stack", choices=BEST, action="append")
    options = parser.parse_args()
    for stack in options.stack or BEST:
        measure(stack, options.runs)


if __name__ == "__main__":
    main()
