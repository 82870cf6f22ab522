"""The first things a user does."""

import sys

import pytest


@pytest.fixture
def hello(ft):
    return ft.script(
        "import os, sys\n"
        "sys.stdout.write(f\"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}\\n\")\n"
    )


def test_standalone_runs_all_workers_and_exits_0(ft, hello):
    command = ft.run("--standalone", "--nproc-per-node", 3, hello)
    assert command.process.returncode == 0
    assert sorted(command.stdout.splitlines()) == [f"rank {r} of 3" for r in range(3)]
    said = command.stderr.splitlines()
    assert "job succeeded" in said[-1]
    assert 3 <= len(said) < 10


# A node on its own does not use these: they cost memory and time, and gRPC does not survive a fork.
UNNEEDED = {
    "cryptography",
    "google.protobuf",
    "grpc",
    "numpy",
    "prometheus_client",
    "re2",
    "rich",
    "torch",
    "ft_run.protos.rendezvous_pb2",
    "ft_run.rendezvous.transport.client",
    "ft_run.rendezvous.transport.codec",
}


def test_a_standalone_run_loads_only_what_it_needs(ft, hello):
    # The same entry point, in an interpreter that tells its modules at the end.
    probe = ft.script(
        "import asyncio, sys\n"
        "before = set(sys.modules)\n"
        "from ft_run.launcher.main import main\n"
        "status = main(sys.argv[1:])\n"
        "print(*sorted(set(sys.modules) - before), file=sys.stderr)\n"
        "sys.exit(status)\n",
        "probe.py",
    )
    words = ("--standalone", "--preload", "colorsys", hello)
    command = ft.run(*words, program=(sys.executable, str(probe)))
    assert command.process.returncode == 0
    loaded = set(command.stderr.splitlines()[-1].split())
    assert "ft_run.launcher.agent.agent" in loaded
    assert loaded & UNNEEDED == set()
    assert "colorsys" not in loaded


def test_the_workers_of_one_node_meet_at_the_given_port_in_every_round(ft, free_port):
    """Rank 0 can listen at it: nothing else does, neither a master nor the round before."""
    script = ft.script(
        "import os, socket, sys\n"
        "where = (os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT']))\n"
        "restarts = os.environ['TORCHELASTIC_RESTART_COUNT']\n"
        "if os.environ['RANK'] == '0':\n"
        "    server = socket.create_server(where)\n"
        "    print('met', *where, restarts, server.accept()[0].recv(5))\n"
        "else:\n"
        "    while True:\n"
        "        try:\n"
        "            socket.create_connection(where).sendall(b'hello')\n"
        "            break\n"
        "        except ConnectionRefusedError:\n"
        "            pass\n"
        "sys.exit(restarts != '2')\n"
    )
    where = ("--rdzv-backend", "static", "--rdzv-endpoint", f"localhost:{free_port}")
    more = ("--nproc-per-node", 2, "--max-restarts", 2, "--node-rank", 0)
    command = ft.start(*where, *more, script)
    assert command.wait() == 0, command.stderr
    met = [f"met localhost {free_port} {restarts} b'hello'" for restarts in range(3)]
    assert command.stdout.splitlines() == met
