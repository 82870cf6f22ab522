"""Several agents of this host may lead: what is said where their options do not fit together."""

import pytest
from ft_run import exit_codes
from ft_run.tests.harness import ports

QUICK = "lease=1,fence=3,last_call_timeout=1"


@pytest.fixture
def listed():
    """Three endpoints of this host, in the form of the command line."""
    first = ports.free_port(3)
    return [f"127.0.0.1:{first + number}" for number in range(3)]


def start(ft, endpoints, conf=QUICK, nodes="2:3"):
    """Start an agent."""
    return ft.start(
        "--nnodes", nodes, "--rdzv-id", f"listed-{ft.mark}", "--rdzv-endpoint", ",".join(endpoints),
        "--rdzv-conf", conf, "--no-python", "true",
    )  # fmt: skip


def test_the_listed_host_with_another_fence_is_refused_and_the_others_run(ft, listed):
    agents = [start(ft, listed, f"{QUICK},{more}") for more in ("fence=3", "fence=3", "fence=20")]
    assert [agent.wait() for agent in agents] == [0, 0, exit_codes.REFUSED]
    assert "--rdzv-conf fence in seconds is 20 here and 3 there" in agents[2].stderr


def test_listed_hosts_with_different_lists_are_refused(ft, listed):
    """Each list may have a majority: none of them leads."""
    turned = [*listed[1:], listed[0]]
    agents = [start(ft, listed), start(ft, listed), start(ft, turned)]
    assert [agent.wait() for agent in agents] == [exit_codes.REFUSED] * 3
    here, there = ",".join(listed), ",".join(turned)
    for agent in agents[:2]:
        assert f"--rdzv-endpoint is {here} here and {there} there" in agent.stderr
    assert f"--rdzv-endpoint is {there} here and {here} there" in agents[2].stderr
