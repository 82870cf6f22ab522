"""Masters that die and come back: in the middle of a rendezvous, of training, of a stop."""

import re
import signal
import time

import pytest
from ft_run import exit_codes
from ft_run.tests.e2e.cluster import Cluster

pytestmark = pytest.mark.root


def kill(command):
    command.send(signal.SIGKILL)
    assert command.wait() == -signal.SIGKILL


# --- a master alone ------------------------------------------------------------------------------


def test_a_lone_master_dies_during_a_stop(ft, network):
    """The failure that it has heard of costs one restart."""
    job = Cluster(ft, network, "abcm", "--nnodes", 3, master="m")
    master = job.master("m")
    workers = job.start("abc")
    slow = job.told("slow")
    job.told("fail", 1)
    job.agents["b"].expect(r"rank 1 on node 1 \(b\) exited with 3")
    job.expect("ac", "stopping 1 worker")
    kill(master)
    assert job.are_alive(workers["a"], workers["c"])
    successor = job.master("m")
    job.expect("abc", "reconnected to the master")
    job.expect("ac", "stopping 1 worker")
    assert [job.rounds(name) for name in "abc"] == [[0]] * 3, "their workers are not dead yet"
    slow.unlink()
    after = job.started("abc", 1)
    assert [after[name].node_rank for name in "abc"] == [0, 1, 2]
    job.expect("abc", r"round=1 .*restart 1/9: rank 1 on node 1 \(b\) exited with 3")
    job.ends("abc")
    assert successor.wait() == 0


def test_a_master_comes_back_at_another_address(ft, network):
    """As a pod does behind the name of its service."""
    job = Cluster(ft, network, "abmn", "--nnodes", 2, master="master")
    network.alias("master", job.hosts["m"])
    first = job.master("m")
    workers = job.start("ab")
    # Its host goes silently, as the whole node of a pod does.
    job.hosts["m"].cut()
    kill(first)
    network.alias("master", job.hosts["n"])
    second = job.master("n")
    job.expect("ab", "reconnected to the master")
    second.expect("round=0 taken over nodes=2/2")
    assert job.are_alive(*workers.values())
    job.ends("ab")
    assert second.wait() == 0


def test_a_lone_master_that_is_cut_off_takes_no_node_for_lost(ft, network):
    conf = "node_timeout=2"
    job = Cluster(ft, network, "abm", "--nnodes", 2, master="m", conf=conf)
    master = job.master("m", "--rdzv-conf", conf)
    workers = job.start("ab")
    job.hosts["m"].cut()
    job.expect("ab", "no connection to the master at .*: workers keep running")
    master.expect("no node responds: keeping the round for 600 s")
    job.hosts["m"].mend()
    job.expect("ab", "reconnected to the master")
    assert job.are_alive(*workers.values())
    job.ends("ab")
    assert master.wait() == 0
    assert [job.rounds(name) for name in "ab"] == [[0], [0]]
    assert "is lost" not in master.stderr


def test_a_partition_leaves_two_worlds_with_one_number_of_which_one_goes_on(ft, network):
    """A master that starts from nothing and cannot be reached by the running nodes begins anew;
    the next one finds two worlds with the number 0."""
    job = Cluster(ft, network, "abcdm", "--nnodes", 2, master="m")
    first = job.master("m")
    old = job.start("ab")
    for name in "ab":
        job.hosts[name].cut()
    kill(first)
    second = job.master("m")
    new = job.start("cd")
    kill(second)
    for name in "ab":
        job.hosts[name].mend()
    third = job.master("m")
    third.expect("round=0 taken over nodes=2/2")
    job.expect("abcd", "reconnected to the master")
    gone, kept = sorted([("ab", old), ("cd", new)], key=lambda w: job.are_alive(*w[1].values()))
    for name in gone[0]:
        job.agents[name].expect("standing by as a spare")
    assert not job.are_alive(*gone[1].values())
    assert job.are_alive(*kept[1].values())
    job.ends("abcd")
    assert [job.rounds(name) for name in "abcd"] == [[0]] * 4
    assert third.wait() == 0


# --- a master in an agent ------------------------------------------------------------------------


def test_the_node_that_hosts_the_master_comes_back_with_other_options(ft, network):
    """It is refused, not the nodes whose workers run."""
    job = Cluster(ft, network, "abc", "--nnodes", 3)
    before = job.start("abc")
    job.kill_agent("a")
    job.expect("bc", "no connection to the master at .*: workers keep running")
    other = job.agent("a", "--max-restarts", 5)
    assert other.wait() == exit_codes.REFUSED
    assert re.search(
        r"^ft-run: error: the node's options differ: --max-restarts is 5 \(this job: 9\)\. "
        r"The job is already running on [bc]: use its options, or stop it there first.$",
        other.stderr,
        re.MULTILINE,
    )
    assert job.are_alive(before["b"], before["c"])
    since = time.monotonic()
    job.agent("a")
    after = job.started("abc", 1)
    ft.measured("host of the master started again: all run", since)
    assert [after[name].node_rank for name in "abc"] == [before[n].node_rank for n in "abc"]
    assert not job.are_alive(before["b"], before["c"])
    job.ends("abc")


def test_the_node_that_hosts_the_master_dies_before_all_have_come(ft, network):
    job = Cluster(ft, network, "abc", "--nnodes", 3)
    for name in "ab":
        job.agent(name).expect("waiting for nodes: . of 3")
    job.kill_agent("a")
    job.agents["b"].expect("no connection to the master at")
    job.agent("c")
    job.agent("a")
    job.started("abc", 0)
    job.ends("abc")


def test_node_0_hosts_the_master_also_when_its_workers_are_done(ft, network):
    job = Cluster(ft, network, "abc", "--nnodes", 3, conf="node_grace=600")
    workers = job.start("abc")
    job.told("done", 0)
    job.agents["a"].expect("all 1 worker.* finished; waiting for the other nodes")
    assert job.are_alive(workers["b"], workers["c"])
    job.told("fail", 2)
    job.started("abc", 1)
    # Also when the job is over, for a node that could not hear of it yet.
    job.told("done", 2)
    ft.wait_until(lambda: job.is_done("c"), "the master has heard of it")
    job.hosts["c"].freeze()
    ft.wait_until(lambda: not job.is_attached("c"), "the master has noticed")
    job.gate.touch()
    job.agents["b"].expect("job succeeded")
    assert job.agents["a"].process.poll() is None
    job.hosts["c"].thaw()
    job.ends("abc")


def test_the_host_of_the_master_is_cut_off_from_the_others(ft, network):
    """To a master in node 0's agent that node is not silent: it takes the others for lost."""
    job = Cluster(ft, network, "abc", "--nnodes", 3, conf="node_timeout=2")
    before = job.start("abc")
    job.hosts["a"].cut()
    job.expect("bc", "no connection to the master .*: workers keep running")
    job.agents["a"].expect(r"waiting for nodes: 1 of 3 connected; missing: ")
    assert job.are_alive(before["b"], before["c"])
    assert not job.are_alive(before["a"])
    job.hosts["a"].mend()
    after = job.started("abc", 1)
    assert [after[name].node_rank for name in "abc"] == [0, 1, 2]
    assert not job.are_alive(*before.values())
    job.expect("abc", r"round=1 .*restart 1/9: node [12] \([bc]\) was lost")
    job.ends("abc")
    assert "(1 of 9 restarts used)" in job.agents["c"].stderr


def test_the_host_of_the_master_freezes(ft, network):
    """Frozen, it takes no node for lost; when it thaws, the others have the grace to be back."""
    job = Cluster(ft, network, "abc", "--nnodes", 3, conf="node_timeout=2,node_grace=600")
    before = job.start("abc")
    job.hosts["a"].freeze()
    job.expect("bc", "no connection to the master .*: workers keep running")
    job.hosts["a"].thaw()
    job.expect("bc", "reconnected to the master")
    assert job.are_alive(*before.values())
    # The master and the nodes agree again: a failure goes all the way and back.
    job.told("fail", 2)
    job.started("abc", 1)
    job.expect("abc", r"round=1 .*restart 1/9: rank 2 on node 2 \(c\) exited with 3")
    job.ends("abc")


def test_node_0_that_hosts_the_master_comes_back_at_another_address(ft, network):
    """As a pod does that is made anew on another machine, behind the name of its service."""
    job = Cluster(ft, network, "abcd", "--nnodes", 3, master="master")
    network.alias("master", job.hosts["a"])
    for rank, name in enumerate("abc"):
        job.agent(name, "--node-rank", rank)
    before = job.started("abc", 0)
    # Its host goes silently, as the whole node of a pod does.
    job.hosts["a"].cut()
    job.hosts["a"].kill()
    job.expect("bc", "no connection to the master .*: workers keep running")
    assert job.are_alive(before["b"], before["c"])
    network.alias("master", job.hosts["d"])
    job.agent("d", "--node-rank", 0)
    after = job.started("bcd", 1)
    assert {name: after[name].node_rank for name in "bcd"} == {"b": 1, "c": 2, "d": 0}
    assert not job.are_alive(*before.values())
    assert "hosted here" in job.agents["d"].stderr
    job.ends("bcd")
    assert job.agents["a"].wait() == -signal.SIGKILL


# --- few are left --------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_spare_outlives_the_host_of_the_master(ft, network):
    job = Cluster(ft, network, "abcd", "--nnodes", 3)
    before = job.start("abc")
    spare = job.agent("d")
    spare.expect("standing by as a spare")
    job.kill_agent("a")
    job.expect("bcd", "no connection to the master")
    assert job.are_alive(before["b"], before["c"])
    job.agent("a")
    job.expect("bcd", "reconnected to the master")
    job.expect("bc", "round=1 .* started")
    assert spare.process.poll() is None
    job.ends("abcd")


def test_the_node_that_hosts_the_master_is_preempted_and_the_others_run_on_without_it(ft, network):
    job = Cluster(ft, network, "abc", "--nnodes", "2:3", "--rescale-delay", 0)
    job.start("abc")
    since = time.monotonic()
    job.agents["a"].send(signal.SIGTERM)
    job.noticed("agent told to go", since, "bc", r"stopping 1 worker.*node 0 \(a\) is leaving")
    regrouped = job.started("bc", 1)
    assert job.agents["a"].wait() == exit_codes.SIGNAL_BASE + signal.SIGTERM
    job.expect("bc", r"regroup with 2 node\(s\): node 0 \(a\) is leaving: SIGTERM")
    job.expect("bc", "no connection to the master .*: workers keep running")
    assert job.are_alive(*regrouped.values())
    # Its replacement takes their round over, and enters it as any newcomer does.
    job.agent("a")
    job.started("abc", 2)
    job.expect("bc", "regroup with 3 node.*: scaling up from 2 to 3 nodes")
    job.ends("abc")
    assert "(0 of 9 restarts used)" in job.agents["b"].stderr


@pytest.mark.slow
def test_the_node_that_hosts_the_master_is_preempted_and_too_few_are_left(ft, network):
    job = Cluster(ft, network, "ab", "--nnodes", 2)
    job.start("ab")
    job.agents["a"].send(signal.SIGTERM)
    assert job.agents["a"].wait() == exit_codes.SIGNAL_BASE + signal.SIGTERM
    job.agents["b"].expect("no connection to the master .*reconnecting")
    job.agent("a")
    job.started("ab", 1)
    job.ends("ab")
    assert "(0 of 9 restarts used)" in job.agents["b"].stderr


def test_the_node_that_hosts_the_master_and_is_asked_twice_to_go_does_not_wait(ft, network):
    job = Cluster(ft, network, "abc", "--nnodes", "2:3")
    before = job.start("abc")
    slow = job.told("slow", 1)
    job.agents["a"].send(signal.SIGTERM)
    job.agents["a"].expect(
        "hosting the master until the other nodes have restarted without this one"
    )
    job.agents["a"].send(signal.SIGTERM)
    assert job.agents["a"].wait() == exit_codes.SIGNAL_BASE + signal.SIGTERM
    assert job.are_alive(before["b"])
    slow.unlink()
    job.agent("a")
    job.started("abc", 1)
    job.ends("abc")
