"""Which nodes form a world: spares, elastic worlds, units, other options, absent nodes."""

import signal
import time

import pytest
from ft_run import exit_codes
from ft_run.tests.e2e.cluster import Cluster

pytestmark = pytest.mark.root


def test_a_spare_takes_the_rank_of_a_node_that_is_lost(ft, network):
    job = Cluster(ft, network, "abcd", "--nnodes", 3)
    job.start("abc")
    job.agent("d").expect("standing by as a spare")
    since = time.monotonic()
    job.kill_agent("b")
    after = job.started("acd", 1)
    ft.measured("agent killed: a spare stands in, all run", since)
    assert {name: after[name].node_rank for name in "acd"} == {"a": 0, "c": 2, "d": 1}
    job.agents["d"].expect(r"restart 1/9: node 1 \(b\) was lost")
    job.ends("acd")
    assert job.rounds("d") == [1]


def test_a_spare_stands_in_for_a_preempted_node_at_no_cost(ft, network):
    job = Cluster(ft, network, "abc", "--nnodes", 2)
    job.start("ab")
    job.agent("c").expect("standing by as a spare")
    job.agents["b"].send(signal.SIGTERM)
    after = job.started("ac", 1)
    assert {name: after[name].node_rank for name in "ac"} == {"a": 0, "c": 1}
    assert job.agents["b"].wait() == exit_codes.SIGNAL_BASE + signal.SIGTERM
    job.ends("ac")
    assert "(0 of 9 restarts used)" in job.agents["c"].stderr


def test_without_a_spare_the_others_wait_for_a_replacement_and_name_the_missing_node(ft, network):
    job = Cluster(ft, network, "abcd", "--nnodes", 3)
    job.start("abc")
    job.kill_agent("b")
    job.expect("ac", r"waiting for nodes: 2 of 3 connected; missing: b/0 \(gives up in")
    job.agent("d")
    after = job.started("acd", 1)
    assert {name: after[name].node_rank for name in "acd"} == {"a": 0, "c": 2, "d": 1}
    job.ends("acd")


def test_an_elastic_world_shrinks_and_grows_again(ft, network):
    job = Cluster(ft, network, "abc", "--nnodes", "2:3", "--rescale-delay", 0)
    before = job.start("abc")
    since = time.monotonic()
    job.kill_agent("b")
    job.noticed("agent killed", since, "ac", r"stopping 1 worker.*: node 1 \(b\) was lost")
    smaller = job.started("ac", 1)
    assert sorted(started.rank for started in smaller.values()) == [0, 1]
    assert not job.are_alive(*before.values())
    job.expect("ac", r"restart 1/9: node 1 \(b\) was lost: no connection for")
    job.agent("b")
    larger = job.started("abc", 2)
    assert sorted(started.rank for started in larger.values()) == [0, 1, 2]
    assert larger["a"].node_rank == 0
    job.expect("abc", r"regroup with 3 node\(s\): scaling up from 2 to 3 nodes")
    job.ends("abc")
    assert "(1 of 9 restarts used)" in job.agents["b"].stderr


def test_a_late_comer_that_need_not_wait_enters_at_the_next_restart(ft, network):
    """It is an option of the job: the master alone, which was told otherwise, follows it."""
    job = Cluster(ft, network, "abcm", "--nnodes", "2:3", "--rescale-delay", "never", master="m")
    master = job.master("m", "--rdzv-conf", "last_call_timeout=1,rescale_delay=0")
    job.start("ab")
    job.agent("c").expect("standing by as a spare")
    job.told("fail", 1)
    after = job.started("abc", 1)
    assert {name: after[name].node_rank for name in "abc"} == {"a": 0, "b": 1, "c": 2}
    job.ends("abc")
    assert master.wait() == 0
    assert "the world grows" not in job.agents["a"].stderr


def test_three_survivors_of_a_job_in_pairs(ft, network):
    """Two go on and one is a spare, although that one hosts the master."""
    job = Cluster(ft, network, "abcd", "--nnodes", "2:4", "--node-unit", 2, "--rescale-delay", 0,
                  master="d")  # fmt: skip
    before = job.start("abcd")
    assert "hosted here" in job.agents["d"].stderr
    assert before["d"].node_rank == 3
    job.kill_agent("b")
    after = job.started("ac", 1)
    assert sorted(started.node_rank for started in after.values()) == [0, 1]
    job.agents["d"].expect("standing by as a spare")
    assert not job.are_alive(before["d"])
    # The master that is no member goes on with its work: a failure, and a node that comes back.
    job.told("fail", 1)
    job.started("ac", 2)
    job.agent("b")
    again = job.started("abcd", 3)
    assert sorted(started.node_rank for started in again.values()) == [0, 1, 2, 3]
    job.ends("abcd")
    assert "(2 of 9 restarts used)" in job.agents["b"].stderr


@pytest.mark.parametrize("is_ranked", [False, True], ids=["no-rank", "node-rank"])
def test_hosts_of_one_name_are_nodes_with_numbers_of_their_own(ft, network, is_ranked):
    """A number that the master gave is the node's also when its agent is started again."""
    job = Cluster(ft, network, "ab", "--nnodes", 2, host_name="vm")
    ranks = {"a": ("--node-rank", 0), "b": ("--node-rank", 1)} if is_ranked else {"a": (), "b": ()}
    job.agent("a", *ranks["a"]).expect("waiting for nodes: 1 of 2")
    job.agent("b", *ranks["b"]).expect("duplicate host name vm: this node is vm/1")
    assert {name: at.node_rank for name, at in job.started("ab", 0).items()} == {"a": 0, "b": 1}
    job.kill_agent("b")
    job.agent("b", *ranks["b"]).expect(r"node_id=vm/1 ")
    assert {name: at.node_rank for name, at in job.started("ab", 1).items()} == {"a": 0, "b": 1}
    job.ends("ab")


def test_two_nodes_with_one_rank(ft, network):
    # So that it is not the keepalive by which the frozen one is noticed.
    job = Cluster(ft, network, "abc", "--nnodes", 2, conf="node_timeout=600")
    for rank, name in enumerate("ab"):
        job.agent(name, "--node-rank", rank)
    workers = job.started("ab", 0)
    twin = job.agent("c", "--node-rank", 1)
    assert twin.wait() == exit_codes.REFUSED
    assert "--node-rank 1 is already used by another node" in twin.stderr
    assert job.are_alive(*workers.values())
    # A node that does not answer gives way before it would be a lost node.
    job.hosts["b"].freeze()
    since = time.monotonic()
    job.agent("c", "--node-rank", 1)
    after = job.started("ac", 1)
    ft.measured("two agents claim one rank, the older frozen: replaced", since)
    assert after["c"].node_rank == 1
    job.hosts["b"].thaw()
    assert job.agents["b"].wait() == exit_codes.REFUSED
    assert not job.was_asked_to_stop(workers["b"]), "its worker is stale"
    job.ends("ac")


@pytest.mark.slow
def test_a_lost_node_without_a_replacement_ends_the_job(ft, network):
    job = Cluster(ft, network, "abc", "--nnodes", 3, conf="join_timeout=10")
    job.start("abc")
    job.kill_agent("c")
    for name in "ab":
        assert job.agents[name].wait() == exit_codes.RENDEZVOUS_FAILED
        assert (
            job.agents[name]
            .stderr.splitlines()[-1]
            .endswith("job FAILED: 2 of at least 3 nodes joined within 10 s; missing: c/0")
        )
