"""What is on storage when a job fails or a node leaves: the newest snapshot, as a checkpoint."""

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ft_run.tests.e2e.conftest import Command, Launcher

SCRIPT = """
import os, sys, threading
import torch
from ft_run.training import Checkpointer

folder, total, fails_at = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
every = int(sys.argv[4]) if len(sys.argv) > 4 else "1h"
torch.set_num_threads(1)
width = int(os.environ.get("WIDTH", "300"))
model = torch.nn.Linear(width, width)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
state = {"model": model, "optimizer": optimizer}
timeout = os.environ.get("SAVE_TIMEOUT", "10min")
checkpointer = Checkpointer(folder, state, checkpoint_every=every, save_timeout=timeout)
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


def start(
    ft: "Launcher", *arguments: object, options: tuple[object, ...] = (), **more: Any
) -> "Command":
    folder = more.pop("folder", ft.folder / "kept")
    script = ft.script(SCRIPT, "train.py")
    return ft.start("--standalone", *options, script, folder, *arguments, **more)


def kept(ft: "Launcher", folder: Path | None = None) -> list[int]:
    """Return the steps of the checkpoints, each of which is whole and the state of its step."""
    import torch
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    folder, steps = folder or ft.folder / "kept", []
    for path in sorted(folder.glob("step-*")):
        if not (path / ".metadata").exists() and folder.parent.name == "odd":
            continue  # behind a URL it is none without
        steps.append(int(path.name.removeprefix("step-")))
        dcp_to_torch_save(path, ft.folder / "plain.pt")
        state = torch.load(ft.folder / "plain.pt", weights_only=True)
        for name in ("weight", "bias"):
            values = state["model"][name]
            assert torch.equal(values, torch.full_like(values, steps[-1])), path
    if steps:
        assert (folder / "latest").read_text() == f"step-{steps[-1]:08}\n"
    return steps


def names(folder: Path) -> set[str]:
    """Return what else is there."""
    return {name for name in os.listdir(folder) if not name.startswith("step-")}


@pytest.mark.slow
def test_the_newest_snapshot_is_saved_before_the_end(ft: "Launcher") -> None:
    command = start(ft, 10**6, 8)
    assert command.wait() == 1
    command.expect(r"checkpoint of step 8 saved: \S+/kept/step-00000008 \(")
    assert kept(ft) == [8]
    command = start(ft, 10**6, -1)
    command.expect(r"begins at 8 ")
    command.expect(r"step 30$")
    command.send(signal.SIGTERM)
    assert command.wait() == 128 + signal.SIGTERM
    before, last = kept(ft)
    assert before == 8
    assert last >= 30
    assert names(ft.folder / "kept") == {"latest"}


@pytest.mark.slow
@pytest.mark.parametrize("never", ["--no-save-at-breakpoint", "--no_save_at_breakpoint"])
def test_nothing_is_saved_where_it_is_not_wanted(ft: "Launcher", never: str) -> None:
    assert start(ft, 10**6, 8, options=(never,)).wait() == 1
    assert os.listdir(ft.folder / "kept") == []
    command = start(ft, 10**6, -1, options=(never,))
    command.expect(r"step 30$")
    command.send(signal.SIGTERM)
    assert command.wait() == 128 + signal.SIGTERM
    assert os.listdir(ft.folder / "kept") == []
