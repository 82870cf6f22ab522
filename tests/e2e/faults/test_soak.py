"""A training run on four hosts with random faults ends as one that was left alone, bit for bit.

``FT_RUN_SOAK_FAULTS`` says how many faults (2, of as many kinds), ``FT_RUN_SOAK_SEED`` which; the
seed is printed. A fault comes when training has made progress since the last one.
"""

import os
import random
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from ft_run.tests.e2e.cluster import PORT

if TYPE_CHECKING:
    from ft_run.tests.e2e.conftest import Command

FAULTS = int(os.environ.get("FT_RUN_SOAK_FAULTS", "2"))
SEED = int(os.environ.get("FT_RUN_SOAK_SEED") or random.SystemRandom().randrange(2**32))
TRAINING = Path(__file__).resolve().parents[3] / "examples" / "train_digits.py"
ARGUMENTS = (TRAINING, "--epochs", 10 + 10 * FAULTS)
"""Enough epochs that some are left after the last fault: one or two pass at most of them, and a
dozen while a master is started again."""
PROGRESS_S = 600
"""Bounds each wait: four workers that import torch at once, on a busy machine."""
NAMES = "abcd"


class Soak:
    """A job on four hosts, its master on a fifth, and what can be done to them."""

    endpoint = f"m:{PORT}"
    arguments: tuple[object, ...] = ARGUMENTS
    nodes = "4"

    def __init__(self, ft, network, seed: int, options: tuple[str, ...]) -> None:
        self.ft, self.network = ft, network
        self.options = options
        self.random = random.Random(seed)
        self.hosts = {name: network.add(name) for name in NAMES}
        self.agents: dict[str, Command] = {}
        self.start_master()
        for name in NAMES:
            self.start_agent(name)

    def faults(self) -> tuple[Callable[[], str], ...]:
        """Return what can be done to the job."""
        return self.kill_rank, self.kill_agent, self.kill_master, self.cut_link, self.freeze

    def start_master(self) -> None:
        self.master_host = self.network.hosts.get("m") or self.network.add("m")
        self.master = self.ft.start("master", "--bind", f":{PORT}", host=self.master_host)
        self.master.expect("listening at")

    def start_agent(self, name: str) -> None:
        self.agents[name] = self.ft.start(
            "--nnodes", self.nodes, "--rdzv-endpoint", self.endpoint, "--rdzv-id", "soak",
            "--max-restarts", 1000,
            "--log-dir", self.ft.folder / "logs" / name, *self.options,
            *self.arguments, host=self.hosts[name],
        )  # fmt: skip

    # --- faults: each returns what it did ----------------------------------------------------

    def kill_rank(self) -> str:
        name = self.random.choice(NAMES)
        pid = int(re.findall(r"started ranks=.* pids=(\d+)", self.agents[name].stderr)[-1])
        os.kill(pid, signal.SIGKILL)
        return f"worker {pid} of host {name} killed"

    def kill_agent(self) -> str:
        name = self.random.choice(NAMES)
        self.agents[name].send(signal.SIGKILL)
        self.agents[name].wait()
        self.start_agent(name)
        return f"agent of host {name} killed and started again"

    def kill_master(self) -> str:
        self.master.send(signal.SIGKILL)
        self.master.wait()
        self.start_master()
        self.master.expect(r"round=\d+ taken over")
        return "master killed and started again"

    def cut_link(self) -> str:
        name = self.random.choice(NAMES)
        self.hosts[name].cut()
        self.wait_for_loss(name)
        self.hosts[name].mend()
        return f"host {name} cut off until it was lost"

    def freeze(self) -> str:
        name = self.random.choice(NAMES)
        self.hosts[name].freeze()
        self.wait_for_loss(name)
        self.hosts[name].thaw()
        return f"host {name} frozen until it was lost"

    def wait_for_loss(self, name: str) -> None:
        lost = rf"node {name}/0 is lost"
        self.master.expect(lost, 1 + len(re.findall(lost, self.master.stderr)))

    # --- progress ----------------------------------------------------------------------------

    def finished_epochs(self) -> int:
        """Return how many epochs have been finished, over all agents that ever were."""
        output = "".join(command.stdout for command in self.ft.commands)
        return len(re.findall(r"^epoch \d+/", output, re.MULTILINE))

    def wait_for_progress(self) -> None:
        before = self.finished_epochs()

        def has_progressed() -> bool:
            ended = [n for n in NAMES if self.agents[n].process.poll() is not None]
            assert not ended, f"the agents of {ended} have ended: {self.agents[ended[0]].stderr}"
            return self.finished_epochs() > before

        self.ft.wait_until(has_progressed, "another epoch is finished", PROGRESS_S)

    def wait_for_end(self, *commands: "Command") -> None:
        """Wait until these have ended, as long as training makes progress."""

        def have_ended() -> bool:
            return all(command.process.poll() is not None for command in commands)

        while not have_ended():
            before = self.finished_epochs()
            self.ft.wait_until(
                lambda before=before: have_ended() or self.finished_epochs() > before,
                "another epoch is finished, or the job ends",
                PROGRESS_S,
            )

    def run(self) -> None:
        """Let all faults happen, each kind at least once if there are enough."""
        faults = list(self.faults())
        self.random.shuffle(faults)
        kinds = [faults[n % len(faults)] for n in range(FAULTS)]
        self.random.shuffle(kinds)
        for number, fault in enumerate(kinds, 1):
            self.wait_for_progress()
            since = time.monotonic()
            what = fault()
            print(f"{number}: {what} ({time.monotonic() - since:.1f} s)", flush=True)


class ListedSoak(Soak):
    """A job of which three hosts may lead; it has no other master."""

    endpoint = f"a:{PORT},b:{PORT},c:{PORT}"

    def faults(self) -> tuple[Callable[[], str], ...]:
        """Return what can be done to the job."""
        return (
            self.power_off_leader,
            self.freeze_leader,
            self.cut_off_leader,
            self.cut_in_two,
            self.kill_rank,
            self.kill_agent,
        )

    def start_master(self) -> None:
        """There is none: hosts a, b and c may lead."""

    def leader(self) -> str:
        """Return the host that has said last that it leads; any, if none does."""
        said = [
            re.findall(r"this host is (no longer )?the leader", self.agents[n].stderr)
            for n in NAMES
        ]
        leads = [name for name, words in zip(NAMES, said, strict=True) if words[-1:] == [""]]
        return self.random.choice(leads or NAMES[:3])

    def lasts(self) -> float:
        """Let a fault last for a while: no node is lost, one is, or another host leads already."""
        seconds = self.random.choice((1.0, 5.0, 9.0, 20.0))
        threading.Event().wait(seconds)  # how long is the fault
        return seconds

    # --- faults: each returns what it did ----------------------------------------------------

    def power_off_leader(self) -> str:
        name = self.leader()
        self.hosts[name].cut()
        self.hosts[name].kill()
        self.agents[name].wait()
        seconds = self.lasts()
        self.hosts[name].mend()
        self.start_agent(name)
        return f"host {name}, which leads, without power for {seconds:g} s"

    def freeze_leader(self) -> str:
        name = self.leader()
        self.hosts[name].freeze()
        seconds = self.lasts()
        self.hosts[name].thaw()
        return f"host {name}, which leads, frozen for {seconds:g} s"

    def cut_off_leader(self) -> str:
        name = self.leader()
        self.hosts[name].cut()
        seconds = self.lasts()
        self.hosts[name].mend()
        return f"host {name}, which leads, cut off for {seconds:g} s"

    def cut_in_two(self) -> str:
        names = self.random.sample(NAMES, len(NAMES))
        pairs = [(self.hosts[one], self.hosts[other]) for one in names[:2] for other in names[2:]]
        for one, other in pairs:
            self.network.separate(one, other)
        seconds = self.lasts()
        for one, other in pairs:
            self.network.join(one, other)
        return f"hosts {names[0]}{names[1]} cut from {names[2]}{names[3]} for {seconds:g} s"


def digest(*commands) -> list[str]:
    return [d for command in commands for d in re.findall("weights sha256: (.*)", command.stdout)]


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.timeout(600 + 60 * FAULTS)
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        pytest.param(Soak, (), id="cold"),
        pytest.param(Soak, ("--preload", "torch,torch._dynamo,sklearn"), id="warm"),
        pytest.param(ListedSoak, (), id="listed"),
    ],
)
def test_training_with_random_faults_ends_as_if_there_had_been_none(ft, network, kind, options):
    print(f"FT_RUN_SOAK_SEED={SEED} FT_RUN_SOAK_FAULTS={FAULTS}", flush=True)
    soak = kind(ft, network, SEED, options)
    soak.run()
    last = [soak.agents[name] for name in NAMES]
    soak.wait_for_end(*last)
    assert [agent.wait() for agent in last] == [0, 0, 0, 0], last[0].stderr
    if kind is Soak:
        assert soak.master.wait() == 0, soak.master.stderr
    print(last[0].stderr.splitlines()[-1])

    undisturbed = ft.start("--standalone", "--nproc-per-node", 4, *options, *ARGUMENTS)
    soak.wait_for_end(undisturbed)
    assert undisturbed.wait() == 0, undisturbed.stderr
    assert len(digest(*last)) == 1
    assert digest(*last) == digest(undisturbed)

    for host in network.hosts.values():
        assert not host.pids()
        assert host.run("ss", "-Hltn") == "", "a process listens"
    assert list(ft.temporary.iterdir()) == []
    assert [path.name for path in ft.folder.glob("digits-*")] == []
