"""Ranks that are killed, nodes that leave and come back, and a master that moves: the same samples.

``FT_RUN_RESIZING_FAULTS`` says how many faults (100), ``FT_RUN_RESIZING_SEED`` which; the seed is
printed.
"""

import os
import random
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from ft_run.tests.e2e.cluster import PORT
from ft_run.tests.e2e.restarts import test_exact_data as exact
from ft_run.tests.harness.hosts import Network

if TYPE_CHECKING:
    from ft_run.tests.e2e.conftest import Command, Launcher

short_folder, ft = exact.short_folder, exact.ft

FAULTS = int(os.environ.get("FT_RUN_RESIZING_FAULTS", "100"))
SEED = int(os.environ.get("FT_RUN_RESIZING_SEED") or random.SystemRandom().randrange(2**32))
EPOCHS = 10 + 4 * FAULTS
NODES = 3


class Job:
    """A job of one to three nodes with a rank each; the first one hosts the master."""

    def __init__(self, ft: "Launcher", port: int) -> None:
        self.ft, self.port, self.random = ft, port, random.Random(SEED)
        self.folder = ft.folder / "job"
        self.folder.mkdir()
        (self.folder / "slow").touch()
        self.nodes: list[Command] = []
        self.join()
        self.nodes[0].expect("hosted here")

    def join(self) -> str:
        """Start a node."""
        arguments = ("ddp", "-1:1", 0, "short", "exact", EPOCHS)
        self.nodes.append(exact.start(self.ft, self.folder, self.port, f"1:{NODES}", 1, *arguments))
        if self.random.random() < 0.7:  # else the next fault comes meanwhile
            self.nodes[-1].expect(r"^rank \d is \d+")
        return f"node {len(self.nodes)} joins"

    def leave(self) -> str:
        """End a node that does not host the master, with or without notice."""
        node = self.nodes.pop(self.random.randrange(1, len(self.nodes)))
        number = self.random.choice((signal.SIGKILL, signal.SIGTERM))
        node.send(number)
        node.wait()
        return f"a node leaves by {number.name}"

    def kill(self) -> str:
        """Kill a rank."""
        pids = [re.findall(r"^rank \d is (\d+)", node.stdout, re.MULTILINE) for node in self.nodes]
        pid = int(self.random.choice([of_node for of_node in pids if of_node])[-1])
        if pid not in self.ft.processes():
            return f"{pid} is dead already"
        os.kill(pid, signal.SIGKILL)
        return f"rank killed: {pid}"

    def fault(self) -> str:
        """Let something happen."""
        kinds: list[Callable[[], str]] = [self.kill, self.kill]
        if len(self.nodes) < NODES:
            kinds.append(self.join)
        if len(self.nodes) > 1:
            kinds.append(self.leave)
        return self.random.choice(kinds)()

    def progress(self) -> None:
        """Wait until ranks have made some steps more."""
        wanted = written(self.folder) + 60 * self.random.randrange(1, 6)

        def is_done() -> bool:
            assert self.nodes[0].process.poll() is None, self.nodes[0].stderr
            return written(self.folder) > wanted

        try:
            self.ft.wait_until(is_done, "some steps are done")
        except pytest.fail.Exception:
            print(self.nodes[0].stderr)
            raise


def written(folder: Path) -> int:
    """Return the size of what all ranks have noted: some 50 bytes for a step of a rank."""
    return sum(path.stat().st_size for path in folder.glob("log-*"))


@pytest.mark.slow
@pytest.mark.timeout(120 + 15 * FAULTS)
def test_random_kills_and_resizes(ft: "Launcher", free_port: int) -> None:
    print(f"FT_RUN_RESIZING_SEED={SEED} FT_RUN_RESIZING_FAULTS={FAULTS}", flush=True)
    job = Job(ft, free_port)
    for number in range(FAULTS):
        job.progress()
        print(f"{number}: {job.fault()}", flush=True)
    job.progress()
    (job.folder / "slow").unlink()
    assert [node.wait() for node in job.nodes] == [0] * len(job.nodes), job.nodes[0].stderr
    worlds = {world for _, world, _, _ in exact.records(job.folder)}
    assert worlds == {1, 2, 3}
    weights = exact.check(job.folder, epochs=EPOCHS)
    expected = exact.undisturbed(ft, free_port, "ddp", "0:2", 0, "short", "exact", EPOCHS)
    assert max(abs(one - other) for one, other in zip(weights, expected, strict=True)) < 1e-9


@pytest.mark.slow
@pytest.mark.root
def test_the_node_of_the_master_is_killed(ft: "Launcher", network: Network, free_port: int) -> None:
    """Any of three hosts may lead; two others go on, and the third one comes back."""
    folder = ft.folder / "job"
    folder.mkdir()
    (folder / "slow").touch()
    hosts = {name: network.add(name) for name in "abc"}

    def start(name: str) -> "Command":
        return ft.start(
            *("--nnodes", "2:3", "--rdzv-endpoint", f"a:{PORT},b:{PORT},c:{PORT}"),
            *("--rdzv-id", f"{ft.mark}listed", "--max-restarts", 9, "--preload", exact.PRELOAD),
            *("--rescale-delay", "0s"),
            *("--rdzv-conf", "lease=2,fence=5,node_timeout=3,last_call_timeout=2"),
            *(ft.script(exact.SCRIPT, "train.py"), folder, "ddp", "-1:1", 2, "short", "exact", 12),
            host=hosts[name],
        )

    agents = {name: start(name) for name in hosts}
    for name in hosts:
        agents[name].expect(r"^rank \d is \d+")
    ft.wait_until(lambda: (10, 3) in seen(folder), "three ranks are in the middle of an epoch")
    (leader,) = (name for name in hosts if "this host is the leader" in agents[name].stderr)
    agents[leader].send(signal.SIGKILL)
    agents[leader].wait()
    before = max(step for step, _ in seen(folder))
    ft.wait_until(lambda: (before + 3, 2) in seen(folder), "two ranks go on")
    agents[leader] = start(leader)
    agents[leader].expect(r"^rank \d is \d+")
    (folder / "slow").unlink()
    assert [agent.wait() for agent in agents.values()] == [0, 0, 0], agents[leader].stderr
    assert {world for _, world in seen(folder)} == {2, 3}
    weights = exact.check(folder, epochs=12)
    expected = exact.undisturbed(ft, free_port, "ddp", "0:2", 0, "short", "exact", 12)
    assert max(abs(one - other) for one, other in zip(weights, expected, strict=True)) < 1e-9


def seen(folder: Path) -> set[tuple[int, int]]:
    """Return each step that a rank has made, and the number of ranks then."""
    return {(step, world) for step, world, _, _ in exact.records(folder)}
