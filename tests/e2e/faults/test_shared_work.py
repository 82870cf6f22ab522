"""10,000 pieces of work on four hosts with random faults: all are done, few of them twice.

``FT_RUN_SOAK_SEED`` says which faults; the seed is printed.
"""

import os
import random
import re
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Callable

import pytest
from ft_run.tests.e2e.faults.test_soak import NAMES, ListedSoak, Soak

SEED = int(os.environ.get("FT_RUN_SOAK_SEED") or random.SystemRandom().randrange(2**32))
PIECES = 10_000
FAULTS = 12
WORKER = f"""
import os, sys, time
from ft_run.training import shared_work
for piece in shared_work("w", {PIECES}):
    time.sleep(0.005)
    with open(os.path.join(sys.argv[1], str(os.getpid())), "a") as file:
        file.write(f"{{piece.start}} {{time.monotonic()}}\\n")
"""
"""Writes what it has done, and when, before the piece is confirmed."""


class WorkSoak(Soak):
    """Four hosts that share work, and a master on a fifth; one of them may be missing."""

    nodes = "3:4"

    def __init__(self, ft, network, seed: int, options: tuple[str, ...] = ()) -> None:
        self.done = ft.folder / "done"
        self.done.mkdir()
        self.arguments = (ft.script(WORKER, "worker.py"), self.done)
        self.faults_at: list[tuple[float, str]] = []
        super().__init__(ft, network, seed, options)

    def faults(self) -> tuple[Callable[[], str], ...]:
        """Return what can be done to the job."""
        return self.kill_rank, self.kill_agent, self.kill_master, self.lose_host

    def kill_rank(self) -> str:
        said = "".join(agent.stderr for agent in self.agents.values())
        pids = map(int, re.findall(r"started ranks=.* pids=(\d+)", said))
        there = sorted(self.ft.processes().keys() & pids)
        pid = self.random.choice(there)  # a node that has just come has none
        os.kill(pid, signal.SIGKILL)
        return f"worker {pid} killed"

    def lose_host(self) -> str:
        """A host is gone, the world is resized without it, and again when it is back."""
        name = self.random.choice(NAMES[1:])
        self.hosts[name].cut()
        self.hosts[name].kill()
        self.agents[name].wait()
        self.wait_for_loss(name)
        before = self.finished_epochs()
        self.ft.wait_until(lambda: self.finished_epochs() > before, "the others go on")
        self.hosts[name].mend()
        self.start_agent(name)
        return f"host {name} lost, and back"

    def finished_epochs(self) -> int:
        """Return how far the work is, in steps of 300 pieces."""
        return len(self.times()) // 300

    def times(self) -> dict[int, list[float]]:
        """Return when each piece was done."""
        times: dict[int, list[float]] = defaultdict(list)
        for path in self.done.iterdir():
            for line in path.read_text().splitlines():
                piece, at = line.split()
                times[int(piece)].append(float(at))
        return times

    def run(self) -> None:
        """Let the faults happen while pieces are left."""
        for number in range(FAULTS):
            self.wait_for_progress()
            if len(self.times()) > PIECES - 4000:  # three hosts do 600 a second while one is lost
                break
            fault = self.faults()[number % len(self.faults())]
            at = time.monotonic()
            what = fault()
            self.faults_at.append((at, what))
            print(f"{number}: {what} ({time.monotonic() - at:.1f} s)", flush=True)

    def done_again(self) -> Counter[str]:
        """Return how many pieces were done again after which fault."""
        causes: Counter[str] = Counter()
        for times in self.times().values():
            first, *later = sorted(times)
            for again in later:
                causes[str([what for at, what in self.faults_at if first - 5 < at < again])] += 1
        return causes


class ListedWorkSoak(WorkSoak, ListedSoak):
    """The same on hosts of which three may lead."""

    endpoint = ListedSoak.endpoint

    def faults(self) -> tuple[Callable[[], str], ...]:
        """Return what can be done to the job."""
        return self.kill_rank, self.kill_agent, self.power_off_leader, self.kill_leader

    def kill_leader(self) -> str:
        name = self.leader()
        self.agents[name].send(signal.SIGKILL)
        self.agents[name].wait()
        self.start_agent(name)
        return f"agent of host {name}, which leads, killed and started again"

    def start_master(self) -> None:
        """There is none."""


@pytest.mark.long
@pytest.mark.root
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", [WorkSoak, ListedWorkSoak])
def test_every_piece_is_done_whatever_fails(ft, network, kind: type[WorkSoak]) -> None:
    print(f"FT_RUN_SOAK_SEED={SEED}", flush=True)
    soak = kind(ft, network, SEED, ("--max-node-failures", "never"))
    soak.run()
    last = [soak.agents[name] for name in NAMES]
    ft.wait_until(
        lambda: all(agent.process.poll() is not None for agent in last), "the job ends", 600
    )
    assert [agent.wait() for agent in last] == [0, 0, 0, 0], last[0].stderr
    times, again = soak.times(), soak.done_again()
    assert sorted(times) == list(range(PIECES))
    for cause, count in again.items():
        print(f"{count} pieces done again: {cause}", flush=True)
    assert "[]" not in again, "without a fault nothing is done twice"
    # Of each fault: what a node had done and not reported, for two seconds at most.
    assert sum(again.values()) < len(soak.faults_at) * 2 * 200
