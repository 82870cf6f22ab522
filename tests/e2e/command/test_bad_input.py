"""What a person gets for input that cannot work: one sentence, the documented exit code."""

import contextlib
import http.server
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from ft_run import exit_codes
from ft_run.tests.harness import ports

if TYPE_CHECKING:
    from ft_run.tests.e2e.conftest import Command, Launcher

QUICK = "connect_timeout=2"
"""A first connection that fails is given up soon."""


@pytest.fixture
def script(ft: "Launcher") -> Path:
    return ft.script("print('the worker ran')\n")


def sentence(command: "Command", status: int) -> str:
    """Check the form of a refusal; return its sentence."""
    assert command.wait() == status, command.stderr
    assert "Traceback" not in command.stdout + command.stderr
    errors = [line for line in command.stderr.splitlines() if line.startswith("ft-run: error: ")]
    assert len(errors) == 1, command.stderr
    assert command.stderr.splitlines()[-1] == errors[0]
    assert "the worker ran" not in command.stdout
    return errors[0].removeprefix("ft-run: error: ")


# --- the endpoint --------------------------------------------------------------------------------


@contextlib.contextmanager
def silent_listener() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


class _Web(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def web_server() -> Iterator[int]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Web) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


def test_endpoints_where_no_master_answers(ft: "Launcher", script: Path) -> None:
    """At the same time, since each is tried until the time-out."""
    port = ports.free_port()

    def start(endpoint: str, conf: str = QUICK) -> "Command":
        return ft.start("--rdzv-endpoint", endpoint, "--rdzv-conf", conf, script)

    with silent_listener() as taken:
        nothing = start(f"127.0.0.1:{port}", f"is_host=0,{QUICK}")
        unknown = start("no-such-host.invalid:1")
        silent = start(f"127.0.0.1:{taken}")
        told = [sentence(one, exit_codes.RENDEZVOUS_FAILED) for one in (nothing, unknown, silent)]
    assert told[0] == (
        f"no master at 127.0.0.1:{port} within 2 s (connection refused); check "
        "--rdzv-endpoint, and that ft-run runs on that host."
    )
    assert "no master at no-such-host.invalid:1 within 2 s (the name does not resolve)" in told[1]
    assert told[2].startswith(
        f"port {taken} of this host is in use by a process that does not answer as an ft-run master"
    )
    assert "use another port" in told[2]


def test_a_port_held_by_another_server_is_known_at_once(ft: "Launcher", script: Path) -> None:
    # No connect_timeout: the default is a minute, which is not waited for.
    with web_server() as port:
        where = ("--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-conf", "is_host=0")
        command = ft.start(*where, script)
        told = sentence(command, exit_codes.RENDEZVOUS_FAILED)
    assert told.startswith(f"the server at 127.0.0.1:{port} is not an ft-run master;")
    assert "reconnecting" not in command.stderr


def test_a_master_alone_whose_port_is_taken(ft: "Launcher") -> None:
    with silent_listener() as port:
        told = sentence(
            ft.start("master", "--bind", f"127.0.0.1:{port}"), exit_codes.RENDEZVOUS_FAILED
        )
    assert told == (
        f"port {port} of this host is in use; free it, or listen at another with --bind."
    )


def test_an_address_that_this_host_does_not_have(ft: "Launcher", free_port: int) -> None:
    told = sentence(ft.start("master", "--bind", f"198.51.100.1:{free_port}"), exit_codes.USAGE)
    assert f"cannot listen at 198.51.100.1:{free_port}" in told
    assert "give an address of this host" in told


def test_a_master_alone_that_is_none_of_those_listed(ft: "Launcher") -> None:
    listed = "198.51.100.1:29400, 198.51.100.2:29400, 198.51.100.3:29400"
    told = sentence(ft.start("master", "--bind", listed.replace(" ", "")), exit_codes.USAGE)
    assert told == (
        f"none of the endpoints {listed} is of this host and free; expected the list of the"
        " hosts on which ft-run master runs."
    )


# --- this node -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("nope.py",), "no script 'nope.py'"),
        (("--nproc-per-node", "gpu"), "--nproc-per-node=gpu needs an NVIDIA or AMD GPU"),
        (("--local-addr", "not an address"), "invalid value 'not an address' for --local-addr"),
    ],
)
def test_usage_errors(ft: "Launcher", script: Path, arguments: tuple[str, ...], told: str) -> None:
    command = ft.start(*arguments, script, env={"CUDA_VISIBLE_DEVICES": ""})
    assert told in sentence(command, exit_codes.USAGE)
    assert len(command.stderr.splitlines()) == 1


def test_a_local_address_that_does_not_resolve(ft: "Launcher", script: Path) -> None:
    told = sentence(ft.start("--local-addr", "no-such-host.invalid", script), exit_codes.USAGE)
    assert told == (
        "--local-addr 'no-such-host.invalid' is neither an IP address nor a host name that "
        "resolves."
    )


def test_a_local_address_of_another_host_is_remarked(ft: "Launcher", script: Path) -> None:
    # It may be right (address translation), so it is taken; but a slip must not go unnoticed.
    command = ft.run("--standalone", "--local-addr", "198.51.100.1", script)
    assert command.process.returncode == 0
    assert "198.51.100.1 is not an address of this host" in command.stderr


def test_a_worker_port_in_use(ft: "Launcher", script: Path) -> None:
    with socket.create_server(("", 0), family=socket.AF_INET6) as listener:
        port = listener.getsockname()[1]
        command = ft.start("--standalone", "--worker-port", port, script)
        told = sentence(command, exit_codes.USAGE)
    assert told.startswith(f"--worker-port {port}: no port of it is free")


@pytest.mark.parametrize("python", ["/no/such/python", "no-such-python", "."])
def test_a_python_that_is_not_there(ft: "Launcher", script: Path, python: str) -> None:
    command = ft.start("--standalone", script, env={"PYTHON_EXEC": python})
    told = sentence(command, exit_codes.USAGE)
    assert told.startswith(f"PYTHON_EXEC was given {python!r}, which is not a program")


# --- several nodes -------------------------------------------------------------------------------

HOLD = """
import os, sys, time
sys.stdout.write(f"up {os.environ['RANK']}\\n")  # at once, so that it stays a whole line
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
"""


ODD = (
    (("--max-restarts", 5), "--max-restarts is 5 (this job: 3)"),
    (("--rdzv-id", "other"), "--rdzv-id 'other' is not the job of this master ('j')"),
    (("--node-rank", 7), "--node-rank 7 is not below the number of nodes (2)"),
)
"""Options of a node that do not fit those of the job, and what it is told."""


def test_nodes_that_do_not_agree(ft: "Launcher", free_port: int, tmp_path: Path) -> None:
    script, gate = ft.script(HOLD), tmp_path / "gate"
    common = ("--nnodes", 2, "--rdzv-id", "j", "--max-restarts", 3,
              "--rdzv-endpoint", f"127.0.0.1:{free_port}", "--rdzv-backend", "grpc")  # fmt: skip

    def are_refused() -> None:
        odd = [ft.start(*common, *given, script, gate) for given, _ in ODD]
        for command, (_, told) in zip(odd, ODD, strict=True):
            assert told in sentence(command, exit_codes.REFUSED)

    first = ft.start(*common, script, gate)
    first.expect("waiting for nodes: 1 of 2")
    are_refused()
    second = ft.start(*common, script, gate)
    second.expect(r"up \d")
    are_refused()  # also while the job runs, and its nodes are not disturbed
    gate.touch()
    assert [first.wait(), second.wait()] == [0, 0]
    assert not re.search(r"round=\d+ node_rank=\d+ (restart|regroup|stopping)", first.stderr)
    told = re.findall("master: node .* refused: (.*)", first.stderr)
    assert told.count("the node's options differ: --max-restarts is 5 (this job: 3)") == 1
