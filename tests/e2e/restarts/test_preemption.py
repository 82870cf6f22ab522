"""Nodes that will be gone: their ranks leave one state first, in the time that there is."""

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from ft_run.tests.e2e.restarts.test_snapshots import loaded_by_dcp

if TYPE_CHECKING:
    from ft_run.tests.e2e.conftest import Command, Launcher

ASKS = """
import os, sys, threading
from ft_run.training import preempted
life, rank = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"]
world = os.environ["WORLD_SIZE"]
preempted()
os.write(1, f"rank {rank} of {world} runs\\n".encode())
while world == sys.argv[1] and not (preempted() and sys.argv[2] == "ends"):
    threading.Event().wait(0.01)
os.write(1, f"rank {rank} of {world} ends\\n".encode())
"""

# The weight counts the steps.
KEEPS = """
import os, sys, threading
import torch
from torch import nn
from ft_run.training import Checkpointer
torch.set_num_threads(1)
model = nn.Linear(1, 1, bias=False)
nn.init.zeros_(model.weight)
state = {"model": model}
rank, world = os.environ["RANK"], int(os.environ["WORLD_SIZE"])
if world > 1:
    torch.distributed.init_process_group("gloo")
checkpointer = Checkpointer(sys.argv[1], state, checkpoint_every="1h")
for number in checkpointer.steps(int(sys.argv[2])):
    os.write(1, f"rank {rank} of {world} is at {number}\\n".encode())
    with torch.no_grad():
        model.weight += 1
    threading.Event().wait(0.02)
if world > 1:
    torch.distributed.destroy_process_group()
"""


def job_of_two(ft: "Launcher", port: int, *more: object) -> tuple["Command", "Command"]:
    where = ("--nnodes", "1:2", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", ft.mark)
    return ft.start_two(*where, "--rdzv-conf", "last_call_timeout=600", *more)


def test_a_script_that_asks_may_end_and_the_others_go_on(ft: "Launcher", free_port: int) -> None:
    script = ft.script(ASKS, "asks.py")
    nodes = job_of_two(ft, free_port, script, 2, "ends")
    for node in nodes:
        node.expect(r"rank \d of 2 runs")
    nodes[1].send(signal.SIGTERM)
    for node in nodes:
        node.expect(r"rank \d of 2 ends")
    assert nodes[1].wait() == 143
    assert "leaving the job (SIGTERM)" in nodes[1].stderr
    nodes[0].expect("rank 0 of 1 runs")
    assert nodes[0].wait() == 0
    assert "is being preempted (SIGTERM): saving a snapshot on all ranks" in nodes[0].stderr
    assert "(0 of 0 restarts used)" in nodes[0].stderr


def test_a_notice_in_a_file_and_a_script_that_does_nothing_about_it(ft: "Launcher") -> None:
    notice = ft.folder / "notice"
    node = ft.start(
        *("--standalone", "--preemption_notice", f"file:{notice}", "--shutdown-timeout", 1),
        *(ft.script(ASKS, "asks.py"), 1, "stays"),
    )
    node.expect("rank 0 of 1 runs")
    notice.write_text("2")
    assert node.wait() == 143
    assert (
        f"being preempted (notice of file:{notice}), 2 s left: saving a snapshot on all ranks"
    ) in node.stderr
    assert "stopping 1 worker(s) and leaving the job" in node.stderr


def test_a_script_that_does_not_ask_is_stopped_at_once(ft: "Launcher") -> None:
    script = "import os, time\nos.write(1, b'runs\\n')\ntime.sleep(600)\n"
    node = ft.start("--standalone", ft.script(script))
    node.expect("runs")
    node.send(signal.SIGTERM)
    assert node.wait() == 143
    assert "is being preempted" not in node.stderr
    assert "received SIGTERM: stopping 1 worker(s) and leaving the job" in node.stderr


def steps_of(node: "Command") -> list[int]:
    return [int(line.split()[-1]) for line in node.stdout.splitlines() if " is at " in line]


@pytest.mark.long
def test_a_node_alone_leaves_a_checkpoint_of_its_last_step(ft: "Launcher") -> None:
    folder = ft.folder / "checkpoints"
    script = ft.script(KEEPS, "keeps.py")
    node = ft.start("--standalone", script, folder, 100_000)
    node.expect("rank 0 of 1 is at 3")
    node.send(signal.SIGTERM)
    assert node.wait() == 143
    done = steps_of(node)[-1] + 1
    assert f"all ranks saved the snapshot of step {done}:" in node.stderr
    assert sorted(os.listdir(folder)) == ["latest", f"step-{done:08}"]
    assert loaded_by_dcp(folder / f"step-{done:08}")["model"]["weight"].item() == done
    node = ft.start("--standalone", script, folder, done + 2)
    assert node.wait() == 0
    assert steps_of(node) == [done, done + 1]


@pytest.mark.slow
def test_the_others_go_on_from_the_step_that_all_have_left(ft: "Launcher", free_port: int) -> None:
    folder = ft.folder / "checkpoints"
    nodes = job_of_two(ft, free_port, ft.script(KEEPS, "keeps.py"), folder, 400)
    nodes[0].expect("rank 0 of 2 is at 3")
    nodes[1].send(signal.SIGTERM)
    assert nodes[1].wait() == 143
    assert nodes[0].wait() == 0
    assert steps_of(nodes[0]) == list(range(400))  # none is lost, and none done twice
    left = steps_of(nodes[1])[-1] + 1
    assert f"all ranks saved the snapshot of step {left}:" in nodes[1].stderr
    # Memory is enough where a node stays.
    assert sorted(os.listdir(folder)) == ["latest", "step-00000400"]


@pytest.mark.slow
def test_all_nodes_are_preempted_at_once(ft: "Launcher", free_port: int) -> None:
    folder = ft.folder / "checkpoints"
    nodes = job_of_two(ft, free_port, ft.script(KEEPS, "keeps.py"), folder, 100_000)
    nodes[0].expect("rank 0 of 2 is at 3")
    for node in nodes:
        node.send(signal.SIGTERM)
    assert [node.wait() for node in nodes] == [143, 143]
    (left,) = {steps_of(node)[-1] + 1 for node in nodes}
    assert f"step-{left:08}" in os.listdir(folder)


STALLS = """
from ft_run.training.checkpointer import Checkpointer
Checkpointer._save = lambda *_, **__: threading.Event().wait()
"""


@pytest.mark.slow
def test_the_time_is_kept_with_a_storage_that_stalls(ft: "Launcher") -> None:
    folder: Path = ft.folder / "checkpoints"
    stalled = KEEPS.replace("import torch\n", f"import torch\n{STALLS}", 1)
    node = ft.start(
        "--standalone", "--shutdown-timeout", 2, ft.script(stalled, "stalls.py"), folder, 100_000
    )
    node.expect("rank 0 of 1 is at 3")
    node.send(signal.SIGTERM)
    assert node.wait() == 143
    assert "all ranks saved" not in node.stderr
