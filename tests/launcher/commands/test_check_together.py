"""What ``ft-run check`` of several nodes asks of the agent that carries it out."""

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from ft_run.launcher.agent import run
from ft_run.launcher.agent.identity import NodeIdentity
from ft_run.launcher.agent.parts import NodeParts
from ft_run.launcher.cli.parse import parse
from ft_run.launcher.commands import check_together
from ft_run.launcher.machine.worker_count import WorkerCount
from ft_run.launcher.options import CheckOptions, LaunchOptions


def test_the_folder_of_the_logs_reaches_the_check_workers_and_nothing_is_created_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched: list[LaunchOptions] = []

    def launch(options: LaunchOptions) -> int:
        launched.append(options)
        return 0

    monkeypatch.setattr(check_together, "launch", launch)
    logs = str(tmp_path / "logs")
    options = parse(
        ["check", "--nnodes", "2", "--rdzv-endpoint", "h:1", "--rdzv-id", "x", "--log-dir", logs],
        {},
    )
    assert isinstance(options, CheckOptions)
    assert options.rendezvous is not None
    assert check_together.check_together(options, options.rendezvous) == 0
    (job,) = launched
    assert job.logs.log_dir is None
    parts = SimpleNamespace(
        options=job,
        count=WorkerCount(1, "given"),
        commands=SimpleNamespace(devices=(), omp_threads={}, python="python"),
        cpus=None,
        gpus_shown={},
    )
    identity = SimpleNamespace(node_id="a/0")
    plan = run._crew_plan(cast(NodeParts, parts), cast(NodeIdentity, identity))
    assert plan.log_dir == logs
