"""The check workers of a node, from the options."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ft_run.launcher.cli.parse import parse
from ft_run.launcher.options import LaunchOptions
from ft_run.launcher.workers.check_workers import crew_plan
from ft_run.launcher.workers.worker_command import WorkerCommands


def starter(options: LaunchOptions, workers: int) -> Any:
    return SimpleNamespace(commands=WorkerCommands(options, workers, {}), cpus=None)


@pytest.mark.parametrize(
    ("folder", "reaches"), [("logs", True), (os.devnull, False)], ids=["folder", "none"]
)
def test_the_folder_of_the_logs_reaches_the_check_workers_and_nothing_is_created_there(
    folder: str, reaches: bool, tmp_path: Path
) -> None:
    logs = str(tmp_path / folder)
    options = parse(
        ["check", "--nnodes", "2", "--rdzv-endpoint", "h:1", "--rdzv-id", "x", "--log-dir", logs],
        {},
    )
    assert isinstance(options, LaunchOptions)
    assert options.logs.log_dir == os.devnull
    plan = crew_plan("a/0", options, starter(options, 1), {})
    assert plan.worker.log_dir == (logs if reaches else None)
    assert plan.worker.script is None


@pytest.mark.parametrize("command", [("check",), ("--standalone", "--network-check")])
def test_what_asks_for_gpus_reaches_the_check_workers(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "train.py").touch()
    script = () if command == ("check",) else (str(tmp_path / "train.py"),)
    options = parse([*command, "--nproc-per-node", "gpu", *script], {})
    assert isinstance(options, LaunchOptions)
    shown = {"nvidia.com/gpu": "device files"}
    plan = crew_plan("a/0", options, starter(options, 2), shown)
    assert plan.worker.gpus_asked_by == "--nproc-per-node=gpu"
    assert (plan.worker.gpus_shown, plan.worker.local_world_size) == (shown, 2)
    assert plan.has_gpus
    assert plan.worker.script == (script[0] if script else None)
