"""Nodes that die, freeze, are cut off or are told to go, on hosts of their own."""

import signal
import time

import pytest
from ft_run import exit_codes
from ft_run.tests.e2e.cluster import Cluster

pytestmark = pytest.mark.root


def test_a_frozen_host_is_lost_and_its_workers_end_when_it_thaws(ft, network):
    """The default node_timeout of 5 s, with the grace of 1 s in it."""
    job = Cluster(ft, network, "abc", "--nnodes", "2:3", "--rescale-delay", 0)
    before = job.start("abc")
    since = time.monotonic()
    job.hosts["c"].freeze()
    job.noticed("host frozen", since, "ab", r"node 2 \(c\) was lost")
    job.started("ab", 1)
    assert job.are_alive(before["c"]), "frozen, it cannot do anything about its workers"
    job.hosts["c"].thaw()
    job.agents["c"].expect(r"round=0 node_rank=2 killing 1 worker\(s\) at once: round 0 is over")
    after = job.started("abc", 2)
    assert [after[name].node_rank for name in "abc"] == [0, 1, 2]
    assert not job.are_alive(before["c"])
    asked = [job.was_asked_to_stop(before[name]) for name in "abc"]
    assert asked == [True, True, False], "a stale worker writes no checkpoint"
    job.agents["a"].expect("regroup with 3 node.*: scaling up from 2 to 3 nodes")
    job.ends("abc")


def test_a_host_that_gets_another_address_is_met_at_that(ft, network):
    job = Cluster(ft, network, "mab", "--nnodes", 2, master="m")
    job.master("m")
    before = job.start("ab")
    assert before["a"].node_rank == 0
    assert before["b"].store.startswith(job.hosts["a"].address + ":")
    job.hosts["a"].move("10.77.9.9")
    job.agents["a"].expect("reconnected to the master")
    job.told("fail", 1)
    job.agents["b"].expect(r"store=10\.77\.9\.9:")
    job.ends("ab")


def test_what_is_said_while_a_link_is_cut_for_a_moment_arrives(ft, network):
    """No node notices; a moment, on a busy machine, may be longer than the default time-out."""
    job = Cluster(ft, network, "abc", "--nnodes", 3, conf="node_timeout=60")
    job.start("abc")
    job.hosts["c"].cut()
    job.told("done", 2)
    job.agents["c"].expect("all 1 worker.* finished; waiting for the other nodes")
    job.hosts["c"].mend()
    # TCP sends again what was lost; the connection survives.
    ft.wait_until(lambda: job.is_done("c"), "the master has heard of it")
    job.ends("abc")
    assert [job.rounds(name) for name in "abc"] == [[0]] * 3
    assert "keep running" not in job.agents["c"].stderr, "it noticed"


def test_a_link_that_is_back_within_the_grace_touches_no_worker(ft, network):
    job = Cluster(ft, network, "abc", "--nnodes", 3, conf="node_grace=600")
    workers = job.start("abc")
    since = time.monotonic()
    job.hosts["c"].cut()
    job.noticed("link cut", since, "c", "no connection to the master at .*workers keep running")
    job.hosts["c"].mend()
    job.agents["c"].expect("reconnected to the master")
    assert job.are_alive(*workers.values())
    # The master and the node agree again: a failure goes all the way and back.
    job.told("fail", 2)
    job.started("abc", 1)
    assert job.agents["b"].expect("restart 1/9: rank 2 on node 2")
    job.ends("abc")


def test_a_link_that_stays_cut_costs_a_restart_and_stale_workers_end(ft, network):
    job = Cluster(ft, network, "abc", "--nnodes", "2:3", "--rescale-delay", "never")
    before = job.start("abc")
    since = time.monotonic()
    job.hosts["c"].cut()
    job.noticed("link cut for good", since, "ab", r"node 2 \(c\) was lost")
    job.started("ab", 1)
    assert job.are_alive(before["c"]), "it cannot be told to stop"
    job.told("slow")  # its workers do not end when they are asked to stop
    job.hosts["c"].mend()
    job.agents["c"].expect(r"round=0 node_rank=2 killing 1 worker\(s\) at once: round 0 is over")
    job.agents["c"].expect("standing by as a spare")
    assert not job.are_alive(before["c"])
    asked = [job.was_asked_to_stop(before[name]) for name in "abc"]
    assert asked == [True, True, False], "a stale worker writes no checkpoint"
    job.ends("abc")
    assert job.rounds("c") == [0]


def test_two_nodes_that_do_not_reach_each_other_both_stay(ft, network):
    """Only the way to the master counts; what a broken path between workers means they say."""
    job = Cluster(ft, network, "abc", "--nnodes", 3)
    workers = job.start("abc")
    network.separate(job.hosts["b"], job.hosts["c"])
    job.told("done", 1)
    job.agents["b"].expect("all 1 worker.* finished")
    assert job.are_alive(workers["a"], workers["c"])
    job.ends("abc")


def test_all_agents_but_one_are_killed(ft, network):
    job = Cluster(ft, network, "abcd", "--nnodes", "1:4")
    job.start("abcd")
    since = time.monotonic()
    for name in "bcd":
        job.agents[name].send(signal.SIGKILL)
    job.noticed("three of four agents killed", since, "a", r"stopping 1 worker.* was lost")
    job.agents["a"].expect(r"node_rank=0 started ranks=0 of 1 on 1 node")
    for name in "bcd":
        job.agents[name].wait()
    job.ends("a")
    assert "Traceback" not in job.agents["a"].stderr


@pytest.mark.slow
def test_a_preempted_node_takes_the_time_that_its_workers_need(ft, network):
    job = Cluster(ft, network, "abc", "--nnodes", "2:3")
    before = job.start("abc")
    slow = job.told("slow")
    job.agents["c"].send(signal.SIGTERM)
    job.expect("ab", "stopping 1 worker")
    assert job.are_alive(*before.values())
    assert [job.rounds(name) for name in "abc"] == [[0]] * 3
    slow.unlink()
    job.started("ab", 1)
    assert job.agents["c"].wait() == exit_codes.SIGNAL_BASE + signal.SIGTERM
    job.ends("ab")
