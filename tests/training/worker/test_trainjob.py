"""What the page of a worker says for Kubeflow's TrainJob."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ft_run.launcher.processes.worker_watch import WorkerWatch, starter_env
from ft_run.training import progress

IN_TRAINJOB = {"KUBEFLOW_TRAINER_SERVER_URL": "https://localhost"}

# As in transformers 5 and in Kubeflow's SDK 0.5.
CALLBACK = """
class KubeflowCallback:
    def __init__(self, *arguments):
        self.arguments = arguments
"""
SDK = """
def update_trainjob_status(progress_percent, *, metrics=None):
    return progress_percent, metrics
"""


@pytest.fixture
def watch() -> Iterator[WorkerWatch]:
    one = WorkerWatch()
    yield one
    one.close()


def run(watch: WorkerWatch, folder: Path, text: str, **environ: str) -> tuple[int, bool]:
    """Run a watched worker; return what its page says."""
    for name, module in (
        ("transformers/integrations/integration_utils", CALLBACK),
        ("kubeflow/trainer/backends/kubernetes/utils", SDK),
    ):
        path = folder / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(module)
        for package in list(path.relative_to(folder).parents)[:-1]:
            (folder / package / "__init__.py").touch()
    (folder / "work.py").write_text(text)
    env = {name: value for name, value in os.environ.items() if name not in IN_TRAINJOB} | environ
    subprocess.run(
        [sys.executable, "work.py"],
        env=env | starter_env(env, watch.fd),
        cwd=folder,
        pass_fds=[watch.fd],
        timeout=60,
        check=True,
    )
    assert watch.progress() is not None  # it was watched
    return watch.trainjob()


@pytest.mark.parametrize(
    ("text", "is_sent"),
    [
        (
            "from transformers.integrations.integration_utils import KubeflowCallback as made\n"
            "assert made(1).arguments == (1,)",
            True,
        ),
        (
            "from kubeflow.trainer.backends.kubernetes.utils import update_trainjob_status\n"
            "assert update_trainjob_status(5, metrics={}) == (5, {})",
            True,
        ),
        ("import transformers.integrations.integration_utils", False),
        ("import kubeflow.trainer.backends.kubernetes.utils", False),
    ],
)
def test_a_worker_that_sends_its_progress_by_itself(
    watch: WorkerWatch, tmp_path: Path, text: str, *, is_sent: bool
) -> None:
    assert run(watch, tmp_path, text, **IN_TRAINJOB) == (0, is_sent)


def test_outside_of_a_trainjob_nothing_is_noticed(watch: WorkerWatch, tmp_path: Path) -> None:
    text = "import transformers.integrations.integration_utils as made; made.KubeflowCallback()"
    assert run(watch, tmp_path, text) == (0, False)


def test_the_steps_of_the_whole_training(watch: WorkerWatch, tmp_path: Path) -> None:
    text = "from ft_run.training import progress; progress(1, 500); progress(2)"
    assert run(watch, tmp_path, text) == (500, False)
    found = watch.progress()
    assert found is not None
    assert (found.steps, found.ticks) == (2, 2)


@pytest.mark.parametrize("total", [-1, 2**63])
def test_a_total_that_is_none_is_refused(total: int) -> None:
    with pytest.raises(ValueError, match=f"invalid value {total} for total: expected the number"):
        progress(1, total)


def test_transformers_has_that_callback() -> None:
    spec = importlib.util.find_spec("transformers")
    if spec is None or spec.origin is None:
        pytest.skip("transformers is not installed")
    path = Path(spec.origin).parent / "integrations" / "integration_utils.py"
    assert "class KubeflowCallback" in path.read_text()
