"""Ranks that come to torch's store before it listens: they connect when it does."""

import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ft_run.tests.e2e.conftest import Launcher

# Rank 0 makes its store when the other has been refused and waits in Python. Without ft-run's
# wait it is torch that waits, and rank 0 for ever.
SCRIPT = """
import os, sys, time
import torch.distributed as dist

refused = sys.argv[1]
pause = time.sleep

def sleep(seconds):
    time.sleep = pause
    with open(refused, "w"):
        pass

if os.environ["RANK"] == "0":
    open(refused).close()
else:
    time.sleep = sleep
dist.init_process_group("gloo")
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    "way",
    [["--preload", "torch"], pytest.param(["--watch-workers"], marks=pytest.mark.slow)],
    ids=["preload", "watched"],
)
def test_a_rank_waits_until_the_store_listens(ft: "Launcher", way: list[str]) -> None:
    os.mkfifo(ft.folder / "refused")
    script = ft.script(SCRIPT, "train.py")
    command = ft.start(
        *("--standalone", "--nproc-per-node", 2, *way, script, ft.folder / "refused"),
    )
    assert command.wait() == 0, command.stderr
