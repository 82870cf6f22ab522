"""What the page of a worker says for Kubeflow's TrainJob."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from ft_run.launcher.processes.worker_watch import WorkerWatch, starter_env
from ft_run.training import progress
from ft_run.training.worker import hook
from ft_run.training.worker import page_layout as layout
from ft_run.training.worker.start import Page


@pytest.fixture
def watch() -> Iterator[WorkerWatch]:
    one = WorkerWatch()
    yield one
    one.close()


def run(watch: WorkerWatch, folder: Path, text: str) -> tuple[int, bool]:
    """Run a watched worker; return what its page says."""
    (folder / "work.py").write_text(text)
    subprocess.run(
        [sys.executable, "work.py"],
        env={**os.environ, **starter_env(os.environ, watch.fds)},
        cwd=folder,
        pass_fds=watch.fds,
        timeout=60,
        check=True,
    )
    assert watch.progress() is not None  # it was watched
    return watch.trainjob()


@pytest.mark.parametrize(
    ("module", "name", "is_sent"),
    [
        ("transformers.integrations.integration_utils", "KubeflowCallback", True),  # version 5
        ("transformers.integrations.integration_utils", "MLflowCallback", False),  # version 4
        ("kubeflow.trainer.backends.kubernetes.utils", "update_trainjob_status", True),
        ("kubeflow.trainer", "update_trainjob_status", False),
    ],
)
def test_a_worker_that_sends_its_progress_by_itself(
    monkeypatch: pytest.MonkeyPatch, module: str, name: str, *, is_sent: bool
) -> None:
    page = memoryview(bytearray(layout.PAGE_BYTES)).cast("Q")
    watched = hook.Hook(Page(page))
    found = []
    with monkeypatch.context() as changed:
        changed.setattr(hook, "_CPU_EVERY_NS", 0)
        for modules in ({}, {module: SimpleNamespace(**{name: None})}):
            changed.setattr(sys, "modules", modules)
            watched.progress(-1)
            found.append(bool(page[layout.REPORTS_ITSELF]))
    assert found == [False, is_sent]


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
