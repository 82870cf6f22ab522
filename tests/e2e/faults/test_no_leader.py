"""What agents say that have no master, or of whose hosts none may lead. All are of this host."""

import re
import signal
import socket

import pytest
from ft_run import exit_codes
from ft_run.tests.harness import ports

QUICK = "lease=1,fence=3,last_call_timeout=1"


@pytest.fixture
def listed():
    """Three endpoints of this host, in the form of the command line."""
    first = ports.free_port(3)
    return [f"127.0.0.1:{first + number}" for number in range(3)]


def start(ft, endpoints, conf=QUICK, nodes="2:3", worker=("true",)):
    """Start an agent."""
    return ft.start(
        "--nnodes", nodes, "--rdzv-id", f"listed-{ft.mark}", "--rdzv-endpoint", ",".join(endpoints),
        "--rdzv-conf", conf, "--no-python", *worker,
    )  # fmt: skip


def test_listed_hosts_with_other_options_are_refused(ft, listed):
    """One with another fence, and the others run; and hosts of which one has another list.

    Each list may have a majority: none of them leads.
    """
    gate = ft.folder / "gate"
    worker = ("sh", "-c", f"until [ -e {gate} ]; do sleep 0.2; done")  # as long as it may take
    agents = [start(ft, listed, f"{QUICK},fence={s}", worker=worker) for s in (3, 3, 20)]
    first = ports.free_port(3)
    those = [f"127.0.0.1:{first + number}" for number in range(3)]
    turned = [*those[1:], those[0]]
    others = [start(ft, those), start(ft, those), start(ft, turned)]
    assert agents[2].wait() == exit_codes.REFUSED
    assert "--rdzv-conf fence in seconds is 20 (" in agents[2].stderr
    gate.touch()
    assert [agent.wait() for agent in agents[:2]] == [0, 0]
    assert [agent.wait() for agent in others] == [exit_codes.REFUSED] * 3
    here, there = ",".join(those), ",".join(turned)
    for agent in others[:2]:
        assert re.search(rf"--rdzv-endpoint is {here} \(.*: {there}\)", agent.stderr)
    assert re.search(rf"--rdzv-endpoint is {there} \(.*: {here}\)", others[2].stderr)


UNTIL_TOLD = """
import os, sys, time
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
sys.exit(3)
"""


def test_what_nodes_say_while_they_wait_and_until_when(ft, free_port, listed):
    """Where the master is gone, and where no host leads; both wait at the same time."""
    told = ft.folder / "told"
    host, other = ft.start_two(
        "--nnodes", 2, "--rdzv-id", f"away-{ft.mark}", "--rdzv-endpoint", f"localhost:{free_port}",
        "--rdzv-conf", "master_timeout=8", ft.script(UNTIL_TOLD), told,
    )  # fmt: skip
    alone = start(ft, listed, f"{QUICK},connect_timeout=8")
    other.expect("started ranks=1 of 2")
    host.send(signal.SIGKILL)
    away = rf"no connection to the master at localhost:{free_port} \(.*\): "
    other.expect(rf"{away}workers keep running; reconnecting, gives up in \d s")
    told.touch()
    other.expect("rank 1 .* exited with 3")
    other.expect(f"{away}worker failed; the restart waits for the master; reconnecting, gives up")
    alone.expect(
        rf"no connection to the master; {listed[0]}: no leader yet; {listed[1]}: connection refused"
        rf"; {listed[2]}: connection refused; 2 of 3 needed to elect a leader: trying again, "
        rf"gives up in"
    )
    assert [node.wait() for node in (other, alone)] == [exit_codes.RENDEZVOUS_FAILED] * 2
    assert f"within 8 s ({listed[0]}: no leader yet; {listed[1]}: conn" in alone.stderr


def test_listed_endpoints_that_are_one_host_count_as_one(ft, free_port):
    """As where several slurmd are of one host: one agent listens for all of them."""
    names = (socket.gethostname(), "localhost", "127.0.0.1")
    one = [f"{name}:{free_port}" for name in names]
    agents = [start(ft, one, nodes="3") for _ in names]
    assert [agent.wait() for agent in agents] == [0, 0, 0]
    leads = [agent.stderr for agent in agents if "this host may lead" in agent.stderr]
    assert len(leads) == 1
    assert "this host is the leader" in leads[0]
