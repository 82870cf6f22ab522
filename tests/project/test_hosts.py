"""The hosts that tests build: they do what their methods say, and leave nothing."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from ft_run.tests.harness import hosts
from ft_run.tests.harness.hosts import Host, Network

pytestmark = pytest.mark.root

TIMEOUT_S = 60

# Counts on standard output; goes on only when it is asked to.
ECHO = """
import socket
server = socket.create_server(("", 700))
print("listening", flush=True)
while True:
    peer, _ = server.accept()
    with peer:
        peer.sendall(socket.gethostname().encode())
"""

# An address that was looked for while the link was cut is unreachable for some seconds more: the
# kernel gives up its search (ARP) for all that wait for it, also those that came after the mending.
ASK = """
import errno, socket, sys, time
until = time.monotonic() + float(sys.argv[2])
answer = ""
while not answer:
    try:
        left = max(0.01, until - time.monotonic())
        with socket.create_connection((sys.argv[1], 700), timeout=left) as peer:
            answer = peer.recv(100).decode()
    except OSError as error:
        if error.errno != errno.EHOSTUNREACH or time.monotonic() >= until:
            answer = "no answer"
print(answer, end="")
"""


@pytest.fixture
def network() -> Iterator[Network]:
    reason = hosts.unavailable()
    if reason is not None:
        pytest.skip(reason)
    with Network() as network:
        yield network
        namespaces = [host.namespace for host in network.hosts.values()]
    assert not set(namespaces) & set(os.listdir("/run/netns"))


def serve(host: Host) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [*host.enter, sys.executable, "-c", ECHO], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    with process.stdout as output:
        assert output.readline() == "listening\n"
    return process


def ask(host: Host, peer: str, patience_s: float = 0.2) -> str:
    """What a host hears from another; ``no answer`` where none comes within the patience."""
    return host.run(sys.executable, "-c", ASK, peer, patience_s)


def test_a_link_is_cut_and_mended(network):
    a, b, c = (network.add(name) for name in "abc")
    servers = [serve(a), serve(b)]
    b.cut()
    assert ask(a, "b") == "no answer"
    assert ask(b, "a") == "no answer"
    assert ask(c, "a", TIMEOUT_S) == "a"
    b.mend()
    assert ask(a, "b", TIMEOUT_S) == "b"
    network.separate(a, b)
    assert ask(a, "b") == ask(b, "a") == "no answer"
    assert ask(c, "b", TIMEOUT_S) == "b"
    network.join(a, b)
    assert ask(a, "b", TIMEOUT_S) == "b"
    network.close()
    for server in servers:
        server.wait(TIMEOUT_S)


def test_networks_beside_each_other_do_not_meet(network):
    with Network() as other:
        a, b = network.add("a"), other.add("b")
        assert a.address == b.address
        server = serve(b)
        c = network.add("c")
        assert ask(c, b.address) == "no answer"
        other.close()
        server.wait(TIMEOUT_S)
