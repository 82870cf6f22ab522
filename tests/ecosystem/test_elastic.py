"""Lightning and transformers with ``ft_run.training``: killed and resized, samples and weights.

Without dropout the weights are those of a plain loop in one process, up to rounding. With it, those
of a run that nothing happens to, bit for bit: ``test_snapshots.py``.
"""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from ft_run.tests.harness.resized_job import run_resized

if TYPE_CHECKING:
    from ft_run.tests.e2e.conftest import Command, Launcher

SCRIPT = Path(__file__).with_name("elastic.py")
LIBRARIES = ["lightning", "transformers-samples,transformers-tokens", "accelerate"]
SLOW = [
    f"{library}-{kind}"
    for library in ("lightning", "transformers")
    for kind in ("max", "drop", "carry")
]

pytestmark = [pytest.mark.ecosystem, pytest.mark.long]


def import_library(libraries: str) -> str:
    first, *others = [library.partition("-")[0] for library in libraries.split(",")]
    for library in (first, *others):
        if importlib.util.find_spec(library) is None:
            pytest.skip(f"{library} is not installed")
    return first


# In the middle of an epoch, after the end of one, in the last step, after it; an epoch has 4 steps.
PLAN = "2@3 1@8 2@11 2 1"


@pytest.mark.parametrize(
    ("libraries", "plan"),
    [
        ("lightning", PLAN),
        ("accelerate,transformers-samples", "2@3 1"),
        *((pytest.param(libraries, PLAN, marks=pytest.mark.slow)) for libraries in LIBRARIES[1:]),
        *(
            pytest.param(libraries, plan, marks=pytest.mark.slow)
            for libraries in (*LIBRARIES, *SLOW)
            for plan in ("3@3 2@6 1@7 3@8 1 2", "1@1 3@2 1@3 3@4 2@5 1@6 2")
        ),
    ],
)
def test_samples_and_weights(tmp_path: Path, libraries: str, plan: str) -> None:
    import_library(libraries)
    command = [sys.executable, str(SCRIPT), libraries, str(tmp_path), "0", *plan.split()]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    found = re.findall(r"^(\S+) differs by (\S+)$", result.stdout, re.MULTILINE)
    assert [name for name, _ in found] == libraries.split(",")
    assert all(float(number) < 1e-6 for _, number in found), found


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("library", ["lightning", "transformers-tokens"])
def test_jobs_that_change_their_size(
    ft: "Launcher", free_port: int, monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    name = import_library(library)
    monkeypatch.setattr("ft_run.tests.e2e.conftest.TIMEOUT_S", 500.0)
    folder = ft.folder / "job"
    folder.mkdir()

    def start() -> "Command":
        return ft.start(
            *("--nnodes", "1:2", "--rdzv-endpoint", f"127.0.0.1:{free_port}"),
            *("--rdzv-id", f"{ft.mark}job", "--max-restarts", 9, "--rescale-delay", "0s"),
            *("--preload", f"torch,{name},ft_run.training.{name}"),
            *(SCRIPT, library, folder, "0", "2@0", "1@3", "2@8"),
        )

    run_resized([(0, 2), (3, 1), (8, 2)], start)
    check(library, folder)


@pytest.mark.slow
@pytest.mark.parametrize("library", ["lightning", "transformers-samples"])
def test_a_device_without_memory_for_a_batch(ft: "Launcher", library: str) -> None:
    import_library(library)
    folder = ft.folder / "job"
    folder.mkdir()
    job = ft.run(
        *("--standalone", "--on-failure", "device-oom=shrink", "--max-restarts", 0),
        *(SCRIPT, library, folder, "0", "1@0"),
        env={"FITS": "1"},
    )
    assert job.process.returncode == 0, job.stderr
    assert re.findall(r"micro_batch (\S+ -> \S+) on all ranks", job.stderr) == ["2 -> 1"]
    assert "resuming from the snapshot of step 2" in job.stderr
    check(library, folder)


def check(library: str, folder: Path) -> None:
    """Check the samples of all steps, and the weights at the end."""
    code = (
        "import sys; from pathlib import Path; import elastic; folder = Path(sys.argv[2]); "
        "elastic.check_samples(sys.argv[1], folder); print(elastic.difference(sys.argv[1], folder))"
    )
    command = [sys.executable, "-c", code, library, str(folder)]
    result = subprocess.run(command, capture_output=True, text=True, cwd=SCRIPT.parent)
    assert result.returncode == 0, result.stderr
    assert float(result.stdout) < 1e-6
