"""What each rank has of its own comes back: after a crash, in a new job, with other ranks."""

import json
import os
import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ft_run.tests.e2e.conftest import Command, Launcher

# Draws random numbers, and keeps a list of its own and a dictionary that all ranks have.
SCRIPT = """
import json, os, random, sys, threading
import torch
import torch.distributed as dist
from ft_run.training import Checkpointer
from torch import nn

folder, total, waits_at = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo")
torch.manual_seed(rank)
random.seed(rank)
model = nn.Linear(2, 2)
mine, common = [rank], {"step": 0, "by rank": {0: "a"}}
state = {"model": model, "mine": mine, "common": common}
every = 1000 if waits_at < 0 else None
checkpointer = Checkpointer(f"{folder}/checkpoints", state, checkpoint_every=every)
log = open(f"{folder}/log-{rank}", "a", buffering=1)
begin = checkpointer.restore()
found = [mine, common["step"], list(common["by rank"])]
log.write(json.dumps(["begin", begin, world, *found]) + "\\n")
for step in range(begin, total):
    if step == waits_at and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os.write(1, f"rank {rank} is {os.getpid()}\\n".encode())
        threading.Event().wait(100)
    mine.append(step)
    common["step"] = step + 1
    log.write(json.dumps(["drew", step, random.random(), float(torch.rand(()))]) + "\\n")
    checkpointer.step(step + 1)
    if every and step + 1 in (8, total):
        checkpointer.save(step + 1)
        checkpointer.wait()
dist.destroy_process_group()
"""


def start(ft: "Launcher", ranks: int, total: int, waits_at: int = -1) -> "Command":
    return ft.start(
        *("--standalone", "--nproc-per-node", ranks, "--max-restarts", 1, "--preload", "torch"),
        *(ft.script(SCRIPT, "train.py"), ft.folder, total, waits_at),
    )


def logs(folder: Path, ranks: int) -> list[list[list[object]]]:
    found = [(folder / f"log-{rank}").read_text().splitlines() for rank in range(ranks)]
    for rank in range(ranks):
        (folder / f"log-{rank}").unlink()
    return [list(map(json.loads, lines)) for lines in found]


def drawn(log: list[list[object]]) -> dict[object, list[object]]:
    return {line[1]: line[2:] for line in log if line[0] == "drew"}


def test_each_rank_has_its_own_values_in_a_new_job(ft: "Launcher") -> None:
    assert start(ft, 2, 12).wait() == 0
    first, second = map(drawn, logs(ft.folder, 2))
    assert len(first) == len(second) == 12
    assert first != second
    shutil.rmtree(ft.folder / "checkpoints/step-00000012")
    assert start(ft, 2, 12).wait() == 0  # from step 8
    again = logs(ft.folder, 2)
    for rank, undisturbed in enumerate((first, second)):
        assert again[rank][0] == ["begin", 8, 2, [rank, *range(8)], 8, [0]]
        found = drawn(again[rank])
        assert found == {step: undisturbed[step] for step in range(8, 12)}

    command = start(ft, 3, 13)
    assert command.wait() == 0
    with_another = logs(ft.folder, 3)
    assert [log[0] for log in with_another] == [
        *(["begin", 12, 3, [rank, *range(12)], 12, [0]] for rank in range(2)),
        ["begin", 12, 3, [2], 12, [0]],
    ]
    draws = [drawn(log)[12] for log in with_another]
    assert len({tuple(map(str, one)) for one in draws}) == 3
    line = "no saved random number generators, mine for rank 2: as at the start of a job"
    assert command.stderr.count(line) == 1

    command = start(ft, 1, 14)
    assert command.wait() == 0
    (alone,) = logs(ft.folder, 1)
    assert alone[0] == ["begin", 13, 1, [0, *range(13)], 13, [0]]
    line = "the saved random number generators, mine of rank 1, 2 are not used: 3 ranks before, 1"
    assert command.stderr.count(line) == 1


@pytest.mark.parametrize("victim", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_each_rank_has_its_own_values_after_a_crash(ft: "Launcher", victim: int) -> None:
    command = start(ft, 2, 9, waits_at=6)
    pids = {int(one[1]): int(one[2]) for one in command.expect(r"rank (\d) is (\d+)", 2)}
    os.kill(pids[victim], signal.SIGKILL)
    assert command.wait() == 0, command.stderr
    crashed = logs(ft.folder, 2)
    assert start(ft, 2, 9, waits_at=99).wait() == 0
    for rank, (log, undisturbed) in enumerate(zip(crashed, logs(ft.folder, 2), strict=True)):
        assert log[7] == ["begin", 6, 2, [rank, *range(6)], 6, [0]]
        assert drawn(log) == drawn(undisturbed)
    assert "no saved" not in command.stderr
