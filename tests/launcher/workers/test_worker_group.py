"""How far the workers of a node came, as it is told when they are gone."""

from types import SimpleNamespace
from typing import cast

import pytest
from ft_run.launcher.logs.log_dir import AttemptLogs
from ft_run.launcher.processes.worker_watch import WorkerWatch
from ft_run.launcher.workers.worker_group import WorkerGroup
from ft_run.launcher.workers.worker_starter import WorkerStarter
from ft_run.rendezvous.protocol.claim import Progress
from ft_run.rendezvous.protocol.messages import Assignment
from ft_run.training.worker import page_layout as layout

ROUND = Assignment(0, "m", 0, 0, 1, 0, 2, 0, 2, "n", "127.0.0.1", 1, "", None)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (((3, 5), (3, 9)), Progress(9, has_stepped=True)),
        (((3, None), (0, None)), Progress(-1, has_stepped=True)),
        (((0, None), (0, None)), Progress()),
        ((None, (3, 9)), Progress(9, has_stepped=True)),
        # It may have done a step, although nothing is known of it.
        ((None, (0, None)), None),
        ((None, None), None),
    ],
)
def test_the_furthest_worker_counts(
    said: tuple[tuple[int, int | None] | None, ...], told: Progress | None
) -> None:
    logs = cast(AttemptLogs, SimpleNamespace(workers=(None, None)))
    group = WorkerGroup(
        ROUND, logs, "default", cast(WorkerStarter, SimpleNamespace(spawner=None, relay=None))
    )
    for worker, progress in zip(group._workers, said, strict=True):
        worker.watch = WorkerWatch()
        if progress is not None:
            ticks, furthest = progress
            worker.watch._page[layout.PID], worker.watch._page[layout.TICKS] = 1, ticks
            worker.watch._page[layout.FURTHEST] = 0 if furthest is None else furthest + 1
    group.gone()
    assert group.progress == told
