"""The root cause of every way to fail, at rank 0 and elsewhere, on one node and on several.

The workers really talk to each other: each has a connection to rank 0, and when one of them
fails, all others fail a moment later, by what they see of the lost connections. Every agent that
is left must name the rank or the node that was first, and how it ended.
"""

import re
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from ft_run import exit_codes

if TYPE_CHECKING:
    from ft_run.tests.e2e.conftest import Command, Launcher
    from ft_run.tests.harness.hosts import Network

WORKERS = """
import ctypes, json, os, socket, sys, time, traceback
env = os.environ
rank, world = int(env["RANK"]), int(env["WORLD_SIZE"])
failing, how = int(sys.argv[1]), sys.argv[2]

def fail():
    if how == "kill":
        os.kill(os.getpid(), 9)
    elif how == "segv":
        ctypes.string_at(0)
    elif how == "exit":
        sys.exit(3)
    elif how == "oom":
        hoard = []
        while True:
            hoard.append(bytearray(os.urandom(1 << 20)))
    elif how in ("raise", "record"):
        raise ValueError("loss is nan")
    # else: something else is done to this worker's node

def meet():
    where = (env["MASTER_ADDR"], int(env["MASTER_PORT"]))
    if rank == 0:
        with socket.create_server(where) as server:
            return [server.accept()[0] for _ in range(world - 1)]
    while True:
        try:
            return [socket.create_connection(where, timeout=10)]
        except ConnectionRefusedError:
            time.sleep(0.01)  # rank 0 is not there yet

def train():
    peers = meet()
    for peer in peers:
        peer.settimeout(float(env.get("PEER_TIMEOUT_S", "60")))
    step = 0
    while True:  # as a collective does: each hears from all others in each step
        if rank:
            peers[0].sendall(b"x")
        for peer in peers:
            if not peer.recv(1):
                raise ConnectionResetError("Connection closed by peer")
        if rank == 0:
            for peer in peers:
                peer.sendall(b"x")
        step += 1
        if step == 3:
            os.write(1, b"rank %d trains\\n" % rank)
            if rank == failing:
                fail()
        time.sleep(0.005)  # a step of the computation

def record(error):  # what torch's @record writes
    message = {"message": f"{type(error).__name__}: {error}", "extraInfo": {
        "py_callstack": traceback.format_exc(), "timestamp": str(int(time.time()))}}
    with open(env["TORCHELASTIC_ERROR_FILE"], "w") as file:
        json.dump({"message": message}, file)

try:
    train()
except Exception as error:
    if how == "record":
        record(error)
    raise
"""

SAYS = {
    "kill": "was killed by SIGKILL",
    "segv": "was killed by SIGSEGV",
    "exit": "exited with 3",
    "oom": "was killed by the kernel's OOM killer (out of memory)",
    "raise": "exited with 1: ValueError: loss is nan",
    "record": "exited with 1: ValueError: loss is nan",
}


@pytest.fixture
def script(ft: "Launcher") -> Path:
    return ft.script(WORKERS)


def root_cause(command: "Command") -> str:
    """What the report of an agent names."""
    (named,) = re.findall(r"^Root cause: (.*)$", command.stderr, re.MULTILINE)
    assert named in command.stderr.splitlines()[-1]  # the verdict says the same
    return str(named)


def check_unsaid(command: "Command", rank: int) -> str:
    """Without @record, and with no exception captured, only an exit with 1 is known.

    The failing worker closes its connections before it is dead, and a peer that sees that may be
    dead before it. So the first to die is named; where that is another one, the report has to say
    that it may be.

    Returns:
        what is named.
    """
    named = root_cause(command)
    match = re.match(r"rank (\d) on node \d \(\S+\) exited with 1$", named)
    assert match is not None, named
    others = command.stderr.count("  exitcode  : 1 ") - 1
    note = re.search(
        r"note      : (\d) other workers? also exited with 1; the root cause is uncertain$",
        command.stderr,
        re.MULTILINE,
    )
    assert (int(note[1]) if note is not None else 0) == others, command.stderr
    assert others or int(match[1]) == rank, command.stderr
    return named


def first_to_die(*commands: "Command") -> set[str]:
    """The first worker of each node that its agent saw end."""
    ends = (
        re.findall(r"round=0 node_rank=\d (rank .*)$", c.stderr, re.MULTILINE) for c in commands
    )
    return {end[0] for end in ends if end}


def check(named: str, rank: int, node: int, how: str) -> None:
    assert re.match(rf"rank {rank} on node {node} \(\S+\) ", named), named
    assert SAYS[how] in named


# --- one node --------------------------------------------------------------------------------

SLOW = pytest.mark.slow


def rows(ranks: tuple[int, int], *always: tuple[str, int]) -> list[object]:
    """Return each way to fail at each of these ranks, all but a few of them for the night."""
    return [
        pytest.param(
            *(how, rank),
            marks=[pytest.mark.root] * (how == "oom") + [SLOW] * ((how, rank) not in always),
        )
        for how in SAYS
        for rank in ranks
    ]


@pytest.mark.parametrize(("how", "rank"), rows((0, 2), *((how, 2) for how in SAYS), ("kill", 0)))
def test_on_one_node(
    ft: "Launcher", script: Path, request: pytest.FixtureRequest, how: str, rank: int
) -> None:
    program: tuple[str, ...] = ft.program
    if how == "oom":
        program = (*request.getfixturevalue("memory_limit"), *ft.program)
    command = ft.run("--standalone", "--nproc-per-node", 3, script, rank, how, program=program)
    assert command.process.returncode == exit_codes.WORKERS_FAILED
    check(root_cause(command), rank, 0, how)


@pytest.mark.parametrize("rank", [pytest.param(0, marks=SLOW), 2])
def test_on_one_node_without_an_error_message(ft: "Launcher", script: Path, rank: int) -> None:
    flags = ("--standalone", "--nproc-per-node", 3, "--no-capture-errors")
    command = ft.run(*flags, script, rank, "raise")
    assert command.process.returncode == exit_codes.WORKERS_FAILED
    assert check_unsaid(command, rank) in first_to_die(command)


# --- several nodes ---------------------------------------------------------------------------


def start_nodes(
    ft: "Launcher",
    script: Path,
    endpoint: str,
    rank: int,
    how: str,
    *flags: str,
    programs: tuple[tuple[str, ...], ...] = ((), ()),
    env: Mapping[str, str] | None = None,
) -> "list[Command]":
    """Start two nodes with two workers each; ``rank`` is told how to fail."""
    common = ("--nnodes", 2, "--nproc-per-node", 2, "--rdzv-backend", "grpc",
              "--rdzv-endpoint", endpoint, "--rdzv-id", "cause", *flags)  # fmt: skip
    return [
        ft.start(
            *common, "--node-rank", node, script, rank, how,
            program=program or ft.program, env=env,
        )
        for node, program in enumerate(programs)
    ]  # fmt: skip


@pytest.mark.parametrize(("how", "rank"), rows((0, 3), ("kill", 0), ("raise", 3), ("oom", 3)))
def test_on_several_nodes(
    ft: "Launcher",
    script: Path,
    request: pytest.FixtureRequest,
    free_port: int,
    how: str,
    rank: int,
) -> None:
    programs: list[tuple[str, ...]] = [(), ()]
    if how == "oom":
        programs[rank // 2] = (*request.getfixturevalue("memory_limit"), *ft.program)
    nodes = start_nodes(ft, script, f"127.0.0.1:{free_port}", rank, how, programs=tuple(programs))
    assert [node.wait() for node in nodes] == [exit_codes.WORKERS_FAILED] * 2
    named = {root_cause(node) for node in nodes}
    assert len(named) == 1
    check(named.pop(), rank, rank // 2, how)


@pytest.mark.parametrize("rank", [pytest.param(0, marks=SLOW), 3])
def test_on_several_nodes_without_an_error_message(
    ft: "Launcher", script: Path, free_port: int, rank: int
) -> None:
    nodes = start_nodes(ft, script, f"127.0.0.1:{free_port}", rank, "raise", "--no-capture-errors")
    assert [node.wait() for node in nodes] == [exit_codes.WORKERS_FAILED] * 2
    named = {check_unsaid(node, rank) for node in nodes}
    assert len(named) == 1
    assert named <= first_to_die(*nodes)


@pytest.mark.parametrize("lost", [0, pytest.param(1, marks=SLOW)])
def test_a_dead_agent_is_named(ft: "Launcher", script: Path, free_port: int, lost: int) -> None:
    master = ft.start("master", "--bind", f"127.0.0.1:{free_port}")
    master.expect("listening at")
    nodes = start_nodes(ft, script, f"127.0.0.1:{free_port}", -1, "", "--rdzv-conf", "is_host=0")
    for node in nodes:
        node.expect("rank . trains", 2)
    nodes[lost].send(signal.SIGKILL)
    survivor = nodes[1 - lost]
    assert survivor.wait() == master.wait() == exit_codes.WORKERS_FAILED
    assert re.match(rf"node {lost} \(\S+\) was lost: ", root_cause(survivor))


@pytest.mark.root
@pytest.mark.parametrize("cut", [pytest.param(0, marks=SLOW), 1])
def test_a_node_whose_link_is_cut_is_named(
    ft: "Launcher", script: Path, network: "Network", cut: int
) -> None:
    """The workers time out long before the master knows that a node is silent."""
    master = network.add("master")
    hosts = [network.add(name) for name in ("a", "b")]
    alone = ft.start("master", "--bind", ":29400", "--rdzv-conf", "node_timeout=6",
                     program=(*master.enter, *ft.program))  # fmt: skip
    alone.expect("listening at")
    conf = "is_host=0,node_timeout=6,master_timeout=1"
    nodes = start_nodes(
        ft, script, f"{master.address}:29400", -1, "", "--rdzv-conf", conf,
        programs=tuple((*host.enter, *ft.program) for host in hosts),
        env={"PEER_TIMEOUT_S": "2"},
    )  # fmt: skip
    for node in nodes:
        node.expect("rank . trains", 2)
    hosts[cut].cut()
    survivor = nodes[1 - cut]
    assert survivor.wait() == alone.wait() == exit_codes.WORKERS_FAILED
    assert re.match(rf"node {cut} \({hosts[cut].name}\) was lost: ", root_cause(survivor))
    assert "exited with 1" in survivor.stderr  # its workers were heard of first
    assert nodes[cut].wait() == exit_codes.RENDEZVOUS_FAILED
