"""A training run on four hosts with random faults ends as one that was left alone, bit for bit.

``FT_RUN_SOAK_FAULTS`` says how many faults (5, one of each kind), ``FT_RUN_SOAK_SEED`` which; the
seed is printed. A fault comes when training has made progress since the last one.
"""

import os
import random
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from ft_run.tests.e2e.cluster import PORT

if TYPE_CHECKING:
    from ft_run.tests.e2e.conftest import Command

FAULTS = int(os.environ.get("FT_RUN_SOAK_FAULTS", "5"))
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

    def __init__(self, ft, network, seed: int, options: tuple[str, ...]) -> None:
        self.ft = ft
        self.options = options
        self.random = random.Random(seed)
        self.hosts = {name: network.add(name) for name in NAMES}
        self.master_host = network.add("m")
        self.agents: dict[str, Command] = {}
        self.faults: tuple[Callable[[], str], ...] = (
            self.kill_rank,
            self.kill_agent,
            self.kill_master,
            self.cut_link,
            self.freeze,
        )
        self.start_master()
        for name in NAMES:
            self.start_agent(name)

    def start_master(self) -> None:
        self.master = self.ft.start("master", "--bind", f":{PORT}", host=self.master_host)
        self.master.expect("listening at")

    def start_agent(self, name: str) -> None:
        self.agents[name] = self.ft.start(
            "--nnodes", 4, "--rdzv-endpoint", f"m:{PORT}", "--rdzv-id", "soak",
            "--max-restarts", 1000,
            "--log-dir", self.ft.folder / "logs" / name, *self.options, *ARGUMENTS,
            host=self.hosts[name],
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

    def run(self) -> None:
        """Let all faults happen, each kind at least once if there are enough."""
        kinds = [self.faults[n % len(self.faults)] for n in range(FAULTS)]
        self.random.shuffle(kinds)
        for number, fault in enumerate(kinds, 1):
            self.wait_for_progress()
            since = time.monotonic()
            what = fault()
            print(f"{number}: {what} ({time.monotonic() - since:.1f} s)", flush=True)


def digest(*commands) -> list[str]:
    return [d for command in commands for d in re.findall("weights sha256: (.*)", command.stdout)]


@pytest.mark.long
@pytest.mark.root
@pytest.mark.timeout(600 + 60 * FAULTS)
@pytest.mark.parametrize(
    "options",
    [
        pytest.param((), id="cold"),
        pytest.param(("--preload", "torch,sklearn"), id="warm", marks=pytest.mark.slow),
    ],
)
def test_training_with_random_faults_ends_as_if_there_had_been_none(ft, network, options):
    print(f"FT_RUN_SOAK_SEED={SEED} FT_RUN_SOAK_FAULTS={FAULTS}", flush=True)
    soak = Soak(ft, network, SEED, options)
    soak.run()
    last = [soak.agents[name] for name in NAMES]
    ft.wait_until(
        lambda: all(agent.process.poll() is not None for agent in last), "the job ends", PROGRESS_S
    )
    assert [agent.wait() for agent in last] == [0, 0, 0, 0], last[0].stderr
    assert soak.master.wait() == 0
    print(last[0].stderr.splitlines()[-1])

    undisturbed = ft.start("--standalone", "--nproc-per-node", 4, *ARGUMENTS)
    ft.wait_until(lambda: undisturbed.process.poll() is not None, "the job ends", PROGRESS_S)
    assert undisturbed.wait() == 0
    assert len(digest(*last)) == 1
    assert digest(*last) == digest(undisturbed)

    for host in (*soak.hosts.values(), soak.master_host):
        assert not host.pids()
        assert host.run("ss", "-Hltn") == "", "a process listens"
    assert list(ft.temporary.iterdir()) == []
    assert [path.name for path in ft.folder.glob("digits-*")] == []
