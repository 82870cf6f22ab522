"""Three hosts may lead: the one that leads is lost, cut off, or two of them are.

Workers write down when they live, by the machine's clock: two worlds of two leaders never do at one
time.
"""

import itertools
import json
import re
import signal
import time
from collections import defaultdict
from pathlib import Path

import pytest
from ft_run.tests.e2e.cluster import PORT, WORKER, Cluster

pytestmark = pytest.mark.root

CONF = "lease=2,fence=5,node_timeout=3,last_call_timeout=2"

BEATS = """
import os, sys, threading, time
def beat():
    world = os.environ["MASTER_ADDR"] + ":" + os.environ["MASTER_PORT"]
    with open(sys.argv[1] + ".beats", "a", buffering=1) as file:
        while True:
            file.write(f"{time.monotonic()} {world}\\n")
            time.sleep(0.02)
threading.Thread(target=beat, daemon=True).start()
"""


class Listed(Cluster):
    """A job whose hosts a, b and c may lead."""

    def __init__(self, ft, network, names, *options, conf=CONF):
        super().__init__(ft, network, names, *options, master="a,b,c", conf=conf)
        self.beats = Path(f"{self.gate}.beats")
        self._script = ft.script(BEATS + WORKER, "beating_worker.py")

    def leader(self, besides=""):
        """Wait until a host leads, and return its name."""
        found: list[str] = []

        def leads():
            found[:] = [
                name
                for name in "abc"
                if name not in besides
                and name in self.agents
                and re.findall(r"this host (no longer )?leads", self._said(name))[-1:] == [""]
            ]
            return bool(found)

        self.ft.wait_until(leads, "a host leads")
        return found[0]

    def status(self, name):
        """Ask a host."""
        asked = self.ft.run("status", f"{name}:{PORT}", "--json", host=self.hosts[name])
        return json.loads(asked.stdout)

    def agree(self, names):
        """Return whether hosts name the same leader, and that it is one of them."""
        found = [self.status(name) for name in names]
        leads = {(status["leader"], status["term"]) for status in found}
        return len(leads) == 1 and sum(status["lease_s"] > 0 for status in found) == 1

    def run_again(self, names):
        """Wait until the workers of a round after the first run in hosts."""
        self.ft.wait_until(
            lambda: all(max(self.rounds(name), default=0) > 0 for name in names),
            f"{', '.join(names)} run again",
        )

    def worlds_never_met(self):
        """Check what the workers have written; return how many worlds there were."""
        times = defaultdict(list)
        for line in self.beats.read_text().splitlines():
            at, world = line.split()
            times[world].append(float(at))
        spans = sorted((min(of), max(of), world) for world, of in times.items())
        for (_, end, before), (begin, _, after) in itertools.pairwise(spans):
            assert end < begin, f"workers of {before} were alive with those of {after}"
        return len(spans)


def without(names, *gone):
    return "".join(name for name in names if name not in gone)


def test_the_process_that_leads_dies(ft, network):
    job = Listed(ft, network, "abcd", "--nnodes", "2:4")
    job.start("abcd")
    leader = job.leader()
    since = time.monotonic()
    job.agents[leader].send(signal.SIGKILL)
    job.agents[leader].wait()
    left = without("abcd", leader)
    job.leader(besides=leader)
    job.ft.measured("leader killed: another leads", since)
    job.run_again(left)
    job.ft.measured("leader killed: all run again", since)
    ft.wait_until(lambda: job.agree(without("abc", leader)), "the hosts agree which one leads")
    job.ends(left)
    # A fence that was quicker than the election of a busy machine must not hide the loss.
    assert re.search(r"\([1-9] of 9 restarts used\)", job.agents[left[0]].stderr)
    assert job.worlds_never_met() >= 2


def test_the_leader_of_three_lone_masters_dies(ft, network):
    """No worker is touched; the masters that are left end with the job, and with its status."""
    job = Listed(ft, network, "abcde", "--nnodes", 2)
    masters = {
        name: ft.start(
            "master", "--rdzv-endpoint", f"a:{PORT},b:{PORT},c:{PORT}", "--rdzv-conf", CONF,
            host=job.hosts[name],
        )
        for name in "abc"
    }  # fmt: skip
    job.agents |= masters
    started = job.start("de")
    leader = job.leader()
    since = time.monotonic()
    masters[leader].send(signal.SIGKILL)
    masters[leader].wait()
    others = without("abc", leader)
    second = job.leader(besides=leader)
    masters[second].expect("round=0 taken over")
    job.ft.measured("leader of three lone masters killed: taken over", since)
    job.expect("de", "connected to the master again")
    assert job.are_alive(*started.values())
    job.told("fail", 0)
    assert job.started("de", 1)
    job.ends("de" + others)
    assert job.worlds_never_met() == 2


@pytest.mark.slow
def test_the_leaders_host_loses_its_power_and_a_spare_takes_its_place(ft, network):
    job = Listed(ft, network, "abcde", "--nnodes", 4, conf="last_call_timeout=2")
    for name in "abcde":
        job.agent(name)
    ft.wait_until(lambda: sum(bool(job.rounds(n)) for n in "abcde") == 4, "four nodes run")
    leader = job.leader()
    since = time.monotonic()
    job.hosts[leader].cut()
    job.hosts[leader].kill()
    left = without("abcde", leader)
    if job.rounds(leader):
        job.run_again(left)
        job.ft.measured("leader without power: all run again", since)
    else:
        job.leader(besides=leader)
        job.expect(left, "connected to the master again")
    job.gate.touch()
    assert [job.agents[name].wait() for name in left] == [0] * 4
    job.worlds_never_met()


@pytest.mark.slow
def test_the_leader_is_cut_off_and_comes_back(ft, network):
    job = Listed(ft, network, "abcde", "--nnodes", "2:5")
    job.start("abcde")
    leader = job.leader()
    since = time.monotonic()
    job.hosts[leader].cut()
    left = without("abcde", leader)
    job.agents[leader].expect("this host no longer leads")
    job.agents[leader].expect("the workers here are killed")
    job.run_again(left)
    job.ft.measured("leader cut off: the others run again", since)
    job.hosts[leader].mend()
    job.agents[leader].expect("connected to the master again")
    assert job.worlds_never_met() >= 2
    job.ends("abcde")
    job.worlds_never_met()


@pytest.mark.slow
def test_two_of_three_hosts_are_lost_and_one_comes_back(ft, network):
    job = Listed(ft, network, "abcde", "--nnodes", "2:5")
    job.start("abcde")
    leader = job.leader()
    other = next(name for name in "abc" if name != leader)
    for name in (leader, other):
        job.hosts[name].cut()
        job.hosts[name].kill()
    left = without("abcde", leader, other)
    job.expect(left, "the workers here are killed")
    job.hosts[other].mend()
    job.agent(other)
    job.run_again(left)
    job.ends(left + other)
    job.worlds_never_met()
