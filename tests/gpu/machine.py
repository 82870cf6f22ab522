"""Commands that the tests on a GPU run, and what nvidia-smi and ft-run print."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable

Tell = Callable[[str, object], None]
"""``record_property``: with ``gpu`` as the name, the value is printed at the end."""
FT_RUN = (sys.executable, "-m", "ft_run")


def run(*command: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, whatever its status."""
    env = {**os.environ, "PYTHONUNBUFFERED": "1", **environ}
    return subprocess.run(command, capture_output=True, text=True, env=env, check=False)


def smi(what: str) -> list[list[str]]:
    """Return the output of nvidia-smi: a row per GPU, or per process."""
    done = run("nvidia-smi", f"--query-{what}", "--format=csv,noheader,nounits")
    assert done.returncode == 0, done.stderr
    return [[part.strip() for part in line.split(",")] for line in done.stdout.splitlines()]


def check(*options: str, **environ: str) -> tuple[int, dict[str, object]]:
    """Check this machine; return the status and the result of the node."""
    done = run(*FT_RUN, "check", "--nproc-per-node", "1", "--json", *options, **environ)
    assert done.stdout, done.stderr
    (node,) = json.loads(done.stdout)["nodes"]
    return done.returncode, node


def in_torch(program: str, **environ: str) -> str:
    """Return what a program of torch prints."""
    done = run(sys.executable, "-c", program, **environ)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def five_checks_agree(level: str, tell: Tell) -> None:
    """Check five times: the results differ by less than 3 %.

    Products by less than 8 %: the clock rate changed them by 3.7 % on an H200, 5.4 % on an H100.
    """
    found = []
    for _ in range(5):
        status, node = check("--check-level", level)
        assert status == 0, node
        found.append(node["metrics"])
    for name in ("compute_tflops", "memory_gb_per_s", "copy_gb_per_s"):
        values = [float(metrics[name]) for metrics in found]  # type: ignore[index]  # of JSON
        spread = max(values) / min(values) - 1
        words = f"{level} {name}: {min(values):.1f} to {max(values):.1f}, {spread:.1%} apart"
        tell("gpu", words)
        assert spread < (0.08 if name == "compute_tflops" else 0.03), words


def numbers(text: str) -> dict[str, float]:
    """Return the ``name=number`` of a text; of several with one name the last."""
    return {name: float(value) for name, value in re.findall(r"(\w+)=([0-9.e+-]+)\b", text)}


def free_gb() -> float:
    """Return the memory of this machine that is available, in GB."""
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9
