"""Three hosts may lead: the one that leads is lost, cut off, frozen, or two of them are.

Workers write down when they live, by the machine's clock: two worlds of two leaders never do at one
time.
"""

import os
import random
import re
import signal
import threading
import time

import pytest
from ft_run.tests.e2e.cluster import PORT
from ft_run.tests.e2e.listed import CALM, QUICK, Listed, without

pytestmark = pytest.mark.root

ENDED = "killing the workers of this node|stopping 1 worker"
"""By the fence; or in order before that, where the leader has still found that nodes are lost."""


def test_the_process_that_leads_dies(ft, network):
    job = Listed(ft, network, "abcd", "--nnodes", "2:4", conf=QUICK)
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
    for name in left:  # also a host that does not lead, and a node that cannot lead
        shown = job.ft.run("status", "a,b,c" if name == "d" else "localhost", host=job.hosts[name])
        assert shown.wait() == 0
        assert re.search(r"round \d+ up .* nodes 3 of 2:4", shown.stdout), shown.stdout
        assert len(re.findall(r"^\d .* running +yes", shown.stdout, re.M)) == 3, shown.stdout
    job.ends(left)
    # A fence that was quicker than the election of a busy machine must not hide the loss.
    assert re.search(r"\([1-9] of 9 restarts used\)", job.agents[left[0]].stderr)
    assert job.worlds_never_met() >= 2


def start_masters(job, names="abc"):
    """Start masters alone in hosts, with the list of all three."""
    listed = ",".join(f"{name}:{PORT}" for name in "abc")
    for name in names:
        job.agents[name] = job.ft.start(
            "master", "--bind", listed, "--rdzv-conf", job.conf, host=job.hosts[name]
        )
    return {name: job.agents[name] for name in "abc"}


def test_the_leader_of_three_lone_masters_dies(ft, network):
    """No worker is touched; the masters that are left end with the job, and with its status."""
    # The fence leaves an election the time that it takes on a busy machine.
    conf = "lease=2,fence=15,node_timeout=3,last_call_timeout=2"
    job = Listed(ft, network, "abcde", "--nnodes", 2, conf=conf)
    masters = start_masters(job)
    started = job.start("de")
    leader = job.leader()
    since = time.monotonic()
    masters[leader].send(signal.SIGKILL)
    masters[leader].wait()
    others = without("abc", leader)
    second = job.leader(besides=leader)
    masters[second].expect("round=0 taken over")
    job.ft.measured("leader of three lone masters killed: taken over", since)
    job.expect("de", "reconnected to the master")
    assert job.are_alive(*started.values())
    job.told("fail", 0)
    assert job.started("de", 1)
    job.ends("de" + others)
    assert job.worlds_never_met() == 2


@pytest.mark.slow
@pytest.mark.parametrize("fence", ["6", "never"])
def test_the_leaders_host_loses_its_power_and_the_world_shrinks(ft, network, fence):
    conf = f"fence={fence},last_call_timeout=2"
    job = Listed(ft, network, "abcd", "--nnodes", "2:4", conf=conf)
    job.start("abcd")
    leader = job.leader()
    left = without("abcd", leader)
    since = time.monotonic()
    job.hosts[leader].cut()
    job.hosts[leader].kill()
    job.run_again(left)
    job.ft.measured(f"leader without power, fence={fence}: all run again", since)
    job.ends(left)
    assert {job.restarts(name) for name in left} == {1}
    assert job.worlds_never_met() == 2


@pytest.mark.slow
def test_the_process_that_leads_dies_and_is_started_again(ft, network):
    job = Listed(ft, network, "abcd", "--nnodes", "2:4")
    job.start("abcd")
    leader = job.leader()
    since = time.monotonic()
    job.kill_agent(leader)
    job.agent(leader)
    job.run_again("abcd")
    job.ft.measured("leader killed and started again: all run again", since)
    job.ends("abcd")
    assert job.worlds_never_met() >= 2


MOMENTS = {"start": 8.0, "checks": 15.0, "stop": 1.0, "regroup": 2.0, "verdict": 0.3}
"""What is under way when the leader dies, and how long it takes in seconds, roughly."""


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
def test_the_process_that_leads_dies_at_any_moment(ft, network, moment):
    checks = ("--network-check",) if moment == "checks" else ()
    conf = f"{CALM},join_timeout=60,master_timeout=60"
    job = Listed(ft, network, "abcd", "--nnodes", "2:4", *checks, conf=conf)
    for name in "abcd":
        job.agent(name)
    left = "abcd"
    if moment not in ("start", "checks"):
        job.started("abcd", 0)
    if moment == "stop":
        slow = job.told("slow")
        job.told("fail", 0)
    elif moment == "regroup":
        left = without(left, "d")
        job.kill_agent("d")
    elif moment == "verdict":
        job.gate.touch()
    threading.Event().wait(random.uniform(0.0, MOMENTS[moment]))  # the moment is the test
    leader = next(filter(job.leads, "abc"), "a")
    job.agents[leader].send(signal.SIGKILL)
    job.agents[leader].wait()
    left = without(left, leader)
    if moment == "stop":
        slow.unlink()
    if moment != "verdict":
        job.leader(besides=leader)
    job.gate.touch()
    assert {name: job.agents[name].wait() for name in left} == dict.fromkeys(left, 0)
    job.worlds_never_met()


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
        job.expect(left, "reconnected to the master")
    job.gate.touch()
    assert [job.agents[name].wait() for name in left] == [0] * 4
    job.worlds_never_met()


@pytest.mark.slow
@pytest.mark.parametrize("has_token", [False, True], ids=["open", "token"])
def test_the_leader_is_cut_off_and_comes_back(ft, network, has_token):
    token = ft.folder / "token"
    with open(token, "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
        file.write(ft.run("token").stdout)
    options = ("--token-file", token) if has_token else ()
    job = Listed(ft, network, "abcde", "--nnodes", "2:5", *options)
    job.start("abcde")
    leader = job.leader()
    since = time.monotonic()
    job.hosts[leader].cut()
    left = without("abcde", leader)
    job.agents[leader].expect("this host is no longer the leader")
    job.agents[leader].expect(ENDED)
    job.run_again(left)
    job.ft.measured("leader cut off: the others run again", since)
    ft.wait_until(lambda: job.agree(without("abc", leader)), "the hosts agree which one leads")
    job.comes_back(leader, job.hosts[leader].mend)
    assert job.worlds_never_met() >= 2
    job.ends("abcde")
    job.worlds_never_met()


@pytest.mark.slow
@pytest.mark.parametrize("way", ["in", "out"])
def test_one_way_of_the_leaders_link_is_lost(ft, network, way):
    job = Listed(ft, network, "abcd", "--nnodes", "2:4")
    job.start("abcd")
    leader = job.leader()
    left = without("abcd", leader)
    ends = [(job.hosts[leader], job.hosts[name]) for name in left]
    ways = [(one, other) if way == "out" else (other, one) for one, other in ends]
    for sender, receiver in ways:
        sender.blackhole(receiver, add=True)
    job.agents[leader].expect("this host is no longer the leader")
    job.agents[leader].expect(ENDED)
    job.run_again(left)

    def mend():
        for sender, receiver in ways:
            sender.blackhole(receiver, add=False)

    job.comes_back(leader, mend)
    job.ends("abcd")
    assert job.worlds_never_met() >= 2


@pytest.mark.slow
def test_the_leaders_host_freezes_and_thaws(ft, network):
    job = Listed(ft, network, "abcd", "--nnodes", "2:4")
    job.start("abcd")
    leader = job.leader()
    left = without("abcd", leader)
    since = time.monotonic()
    job.hosts[leader].freeze()
    job.run_again(left)
    job.ft.measured("leader frozen: the others run again", since)
    job.comes_back(leader, job.hosts[leader].thaw)
    job.ends("abcd")
    assert job.worlds_never_met(thawed=leader) >= 2


@pytest.mark.slow
def test_the_agent_that_leads_is_stopped_and_its_workers_are_not(ft, network):
    """They are dead before others start without them, although their agent cannot kill them."""
    job = Listed(ft, network, "abcd", "--nnodes", "2:4")
    job.start("abcd")
    leader = job.leader()
    since = time.monotonic()
    job.agents[leader].send(signal.SIGSTOP)
    job.run_again(without("abcd", leader))
    job.ft.measured("agent that leads stopped: the others run again", since)
    ft.wait_until(lambda: job.worlds_never_met() >= 2, "workers of another world live")
    job.comes_back(leader, lambda: job.agents[leader].send(signal.SIGCONT))
    job.ends("abcd")
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
    job.expect(left, "killing the workers of this node")
    job.hosts[other].mend()
    job.agent(other)
    job.run_again(left)
    job.ends(left + other)
    job.worlds_never_met()


@pytest.mark.slow
def test_two_of_three_lone_masters_are_lost_and_one_comes_back(ft, network):
    """Without a fence the workers run on, and nothing is decided until then."""
    job = Listed(
        ft, network, "abcde", "--nnodes", 2, conf="lease=5,fence=never,last_call_timeout=2"
    )
    start_masters(job)
    started = job.start("de")
    leader = job.leader()
    other = next(name for name in "abc" if name != leader)
    for name in (leader, other):
        job.agents[name].send(signal.SIGKILL)
        job.agents[name].wait()
    job.expect("de", "no connection to the master")
    start_masters(job, other)
    second = job.leader(besides=leader)
    job.agents[second].expect("round=0 taken over")
    job.expect("de", "reconnected to the master")
    assert job.are_alive(*started.values())
    job.ends("de" + without("abc", leader))
    assert job.worlds_never_met() == 1


@pytest.mark.slow
def test_a_listed_host_comes_back_empty_with_another_address(ft, network):
    """It votes and joins as a node; what leads meanwhile leads on."""
    job = Listed(ft, network, "abcd", "--nnodes", "2:4", "--rescale-delay", 1)
    job.start("abcd")
    job.hosts["a"].cut()
    job.hosts["a"].kill()
    job.run_again("bcd")
    leader = job.leader(besides="a")
    ft.wait_until(lambda: job.agree("bc"), "the hosts agree which one leads")
    term = job.status(leader)["term"]
    job.hosts["a"].move("10.77.200.1")
    network.alias("a", job.hosts["a"])
    job.hosts["a"].mend()
    job.agent("a")
    job.agents["a"].expect(r"started ranks=.* on 4 node\(s\)")
    ft.wait_until(lambda: job.agree("abc"), "the hosts agree which one leads")
    assert (job.status("a")["term"], job.leader()) == (term, leader)
    job.ends("abcd")
    job.worlds_never_met()
