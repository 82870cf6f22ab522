"""What is on storage when a job fails or a node leaves: the newest snapshot, as a checkpoint."""

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from ft_run.tests.e2e.restarts.test_snapshots import loaded_by_dcp

if TYPE_CHECKING:
    from ft_run.tests.e2e.conftest import Command, Launcher

SCRIPT = """
import os, sys, threading
import torch
from ft_run.training import Checkpointer

folder, total, fails_at = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
every = int(sys.argv[4]) if len(sys.argv) > 4 else "1h"
torch.set_num_threads(1)
model = torch.nn.Linear(300, 300)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
state = {"model": model, "optimizer": optimizer}
checkpointer = Checkpointer(folder, state, checkpoint_every=every)
begin = checkpointer.restore()
os.write(1, f"begins at {begin} as {os.getpid()}\\n".encode())
for number in checkpointer.steps(total):
    if number == fails_at:
        sys.exit(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(number + 1)
    os.write(1, f"step {number + 1}\\n".encode())
    threading.Event().wait(0.005)
os.write(1, b"all done\\n")
"""


def start(ft: "Launcher", *arguments: object, options: tuple[object, ...] = ()) -> "Command":
    script = ft.script(SCRIPT, "train.py")
    return ft.start("--standalone", *options, script, ft.folder / "kept", *arguments)


def kept(folder: Path) -> list[int]:
    """Return the steps of the checkpoints, each of which is whole and the state of its step."""
    steps = []
    for path in sorted((folder / "kept").glob("step-*")):
        steps.append(int(path.name.removeprefix("step-")))
        state = loaded_by_dcp(path)
        (folder / "kept/plain.pt").unlink()
        assert {float(value) for value in state["model"]["weight"].flatten()} == {steps[-1]}
        assert {float(value) for value in state["model"]["bias"]} == {steps[-1]}
    if steps:
        assert (folder / "kept/latest").read_text() == f"step-{steps[-1]:08}\n"
    names = set(os.listdir(folder / "kept")) if (folder / "kept").exists() else set()
    assert all(name == "latest" or name.startswith("step-") for name in names), names
    return steps


@pytest.mark.long
def test_the_newest_snapshot_is_saved_before_the_end(ft: "Launcher") -> None:
    command = start(ft, 10**6, 8)
    assert command.wait() == 1
    command.expect(r"The checkpoint of step 8 is complete: \S+/kept/step-00000008 \(")
    assert kept(ft.folder) == [8]
    command = start(ft, 10**6, -1)
    command.expect(r"begins at 8 ")
    command.expect(r"step 30$")
    command.send(signal.SIGTERM)
    assert command.wait() == 128 + signal.SIGTERM
    (found,) = command.expect(r"The checkpoint of step (\d+) is complete: ")
    assert kept(ft.folder) == [8, int(found[1])]
    assert int(found[1]) >= 29
