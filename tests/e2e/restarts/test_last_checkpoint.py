"""The last checkpoint of a job whose storage is full: no job succeeds without it."""

import os
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from ft_run.tests.e2e.restarts import test_breakpoints as plain
from ft_run.tests.e2e.restarts import test_sharded_nodes as sharded
from ft_run.tests.e2e.restarts.test_sharded_snapshots import SCRIPT
from ft_run.tests.e2e.restarts.test_storage import mounted

if TYPE_CHECKING:
    from ft_run.tests.e2e.conftest import Command, Launcher

pytestmark = pytest.mark.root
FULL = "size=32k"
"""Enough to see that the folder can be written, and no more."""


def lost(step: int, folder: Path) -> str:
    return (
        rf"\bRuntimeError: the checkpoint of step {step} could not be written to {folder}: "
        r"\[Errno 28\] No space left on device"
    )


@pytest.mark.long
def test_there_is_room_when_it_is_tried_again(ft: "Launcher") -> None:
    folder = ft.folder / "kept"
    with mounted(folder, FULL):
        command = plain.start(ft, 12, -1)
        command.expect("retrying the last checkpoint in 1 s")
        subprocess.run(["mount", "-o", "remount,size=4m", str(folder)], check=True)
        assert command.wait() == 0, command.stderr
        command.expect(r"checkpoint of step 12 saved: ")
        assert plain.kept(ft) == [12]


@pytest.mark.slow
@pytest.mark.parametrize("way", ["saver", "no saver", "torchrun"])
def test_the_ranks_of_a_node_lose_it(ft: "Launcher", way: str) -> None:
    folder = ft.folder / "checkpoints"
    script = ft.script(SCRIPT.replace("every or None", "every, snapshot_every=None"), "train.py")
    if way == "saver":
        script = ft.script(SCRIPT, "train.py")
    torchrun = (str(Path(ft.program[0]).parent / "torchrun"),)
    with mounted(folder, FULL):
        command = ft.start(
            *("--standalone", "--nproc-per-node", 2, script, "fsdp2", ft.folder, 12, 1000),
            program=torchrun if way == "torchrun" else ft.program,
        )
        assert command.wait() == 1
        command.expect(lost(12, folder))
        assert os.listdir(folder) == []


@pytest.mark.slow
def test_the_ranks_of_two_nodes_lose_it(ft: "Launcher", free_port: int) -> None:
    folder = ft.folder / "checkpoints"
    with mounted(
        folder, "size=256k"
    ):  # room for what the savers tell each other, and for one share
        both = sharded.start(ft, free_port, steps=12, every=1000)
        assert [node.wait() for node in both] == [1, 1]
        # A rank that dies first has the others stopped, which may be before they say so too.
        assert re.search(lost(12, folder), both[0].stderr + both[1].stderr)
        assert not list(folder.glob("step-*"))


@pytest.mark.slow
def test_a_folder_that_one_node_cannot_write_to(ft: "Launcher", free_port: int) -> None:
    """All ranks say so, before they train."""
    folder = ft.folder / "checkpoints"
    folder.mkdir()
    guest_only = f'mount --bind -o ro {folder} {folder} && exec "$0" "$@"'
    host, guest = start_apart(ft, free_port, guest_only)
    assert [host.wait(), guest.wait()] == [1, 1]
    refused = rf"RuntimeError: checkpoints cannot be written to {folder}: \[Errno 30\]"
    assert re.search(refused, host.stderr + guest.stderr)
    assert "life 0" not in host.stdout + guest.stdout


def start_apart(ft: "Launcher", port: int, before: str) -> tuple["Command", "Command"]:
    """Start two nodes, one after something is done in a mount namespace of its own."""
    nodes = ("--nnodes", 2, "--nproc-per-node", 2, "--rdzv-endpoint", f"127.0.0.1:{port}")
    job = (*nodes, "--rdzv-id", ft.mark, ft.script(SCRIPT, "train.py"), "fsdp2", ft.folder, 12, 10)
    host = ft.start(*job, env={"LOGLEVEL": "DEBUG"})
    host.expect("hosted here")
    return host, ft.start(*job, program=("unshare", "-m", "sh", "-c", before, *ft.program))
