"""Workers that are killed at any moment: what they resume from, and what comes out in the end."""

import json
import os
import random
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ft_run.tests.e2e.conftest import Command, Launcher

SCRIPT = """
import hashlib, os, sys, threading
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from ft_run.training import Checkpointer

folder, total, every, width = sys.argv[1], *map(int, sys.argv[2:])
rank, restarts = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(200, width), nn.Dropout(0.1), nn.Linear(width, 200))
model = DistributedDataParallel(model)
optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
checkpointer = Checkpointer(
    f"{folder}/checkpoints", {"model": model, "optimizer": optimizer}, checkpoint_every=every
)
log = open(f"{folder}/log-{rank}", "a", buffering=1)
is_first = True
for number in checkpointer.steps(total):
    if is_first:
        is_first = False
        log.write(f"begin {restarts} {number}\\n")
        os.write(1, f"life {restarts} of rank {rank} is {os.getpid()}\\n".encode())
    else:
        log.write(f"done {restarts} {number}\\n")
    torch.manual_seed(number * 2 + int(rank))
    optimizer.zero_grad()
    model(torch.randn(3, 200)).square().sum().backward()
    optimizer.step()
    threading.Event().wait(0.005)
values = list(model.module.state_dict().values())
values += [value for state in optimizer.state.values() for value in state.values()]
digest = hashlib.sha256(b"".join(value.numpy().tobytes() for value in values)).hexdigest()
os.write(1, f"state of rank {rank}: {digest}\\n".encode())
dist.destroy_process_group()
"""
PRELOAD = ("--preload", "torch,torch._dynamo,ft_run.training.checkpointer")


def states(ft: "Launcher", command: "Command") -> set[str]:
    """Return the digests that the ranks ended with."""
    ft.wait_until(lambda: command.process.poll() is not None, "the job has ended", 1800)
    assert command.wait() == 0, command.stderr
    return {match[1] for match in command.expect(r"state of rank \d: (\w+)", 2)}


def train(ft: "Launcher", folder: Path, steps: int, kills: int, width: int) -> set[str]:
    """Train with two workers, of which one is killed again and again; return the last states."""
    folder.mkdir()
    script = ft.script(SCRIPT, "train.py")
    command = ft.start(
        *("--standalone", "--nproc-per-node", 2, "--max-restarts", kills, *PRELOAD),
        *(script, folder, steps, 50, width),
    )
    chance = random.Random(random.randrange(1 << 32))
    held: list[tuple[int, int, int]] = []
    for life in range(kills):
        found = command.expect(rf"life {life} of rank (\d) is (\d+)", 2)
        if life >= 10 and (folder / "checkpoints/latest").exists():  # there is a saver
            held.append(held_by(command.pid))
        threading.Event().wait(chance.random() * 0.4)
        os.kill(int(chance.choice(found)[2]), signal.SIGKILL)
    if kills > 20:
        print(json.dumps({"descriptors, memory and snapshots": [held[0], held[-1]]}))
        assert held[-1][0] == held[0][0]
        assert held[-1][1] < held[0][1] + (8 << 20)
        # Each rank has two buffers, or three while a checkpoint is written.
        assert 0 < held[-1][2] <= 1.5 * held[0][2]
    return states(ft, command)


def held_by(agent: int) -> tuple[int, int, int]:
    """Return how many descriptors an agent has, its memory, and that of the snapshots, in bytes."""
    fds = [Path(f"/proc/{agent}/fd/{name}") for name in os.listdir(f"/proc/{agent}/fd")]
    snapshots = [fd for fd in fds if "ft-run-snapshot" in os.readlink(fd)]
    pages = int(Path(f"/proc/{agent}/statm").read_text().split()[1])
    return len(fds), pages * 4096, sum(fd.stat().st_blocks * 512 for fd in snapshots)


def lost_steps(folder: Path, lives: int) -> list[int]:
    """Return for each restart how many steps that any rank had done were done once more."""
    begun: dict[int, set[int]] = {life: set() for life in range(lives)}
    done: dict[int, int] = dict.fromkeys(range(lives), 0)
    for rank in (0, 1):
        for line in (folder / f"log-{rank}").read_text().splitlines():
            word, life, number = line.split()
            if word == "begin":
                begun[int(life)].add(int(number))
            done[int(life)] = max(done[int(life)], int(number))
    assert all(len(numbers) == 1 for numbers in begun.values()), begun
    return [done[life] - min(begun[life + 1]) for life in range(lives - 1)]


def loaded_by_dcp(path: Path) -> dict[str, Any]:
    """Load a checkpoint with plain DCP."""
    import torch
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    dcp_to_torch_save(path, path.parent / "plain.pt")
    state: dict[str, Any] = torch.load(path.parent / "plain.pt", weights_only=True)
    return state


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_nothing_but_one_step_is_lost_with_each_of_100_kills(ft: "Launcher") -> None:
    kills, width = 100, 1000
    before = {*os.listdir("/dev/shm"), "libpod_lock"}  # a test beside this one may use podman
    steps = 60 * kills + 40
    undisturbed = train(ft, ft.folder / "undisturbed", steps, 0, width)
    assert len(undisturbed) == 1
    folder = ft.folder / "killed"
    assert train(ft, folder, steps, kills, width) == undisturbed
    lost = lost_steps(folder, kills + 1)
    print(json.dumps({"kills": kills, "steps": steps, "lost": lost}))
    # -1: killed after the snapshot was complete, and before a rank had said that the step is done.
    assert all(-1 <= number <= 1 for number in lost), lost
    assert set(os.listdir("/dev/shm")) <= before
    for name in os.listdir(folder / "checkpoints"):
        assert name == "latest" or name.startswith("step-")
    for path in sorted((folder / "checkpoints").glob("step-*")):
        same = ft.folder / "undisturbed" / path.relative_to(folder)
        if same.exists():  # one is left out while the one before it is still being written
            loaded = [loaded_by_dcp(one) for one in (path, same)]
            # Python's generator, which is in it too, is seeded by the system here.
            assert str(loaded[0]["model"]) == str(loaded[1]["model"])
            assert str(loaded[0]["optimizer"]) == str(loaded[1]["optimizer"])
