"""A job with a token, from the outside: what it lets in, what it tells, and where the token is."""

from typing import TYPE_CHECKING

import pytest
from ft_run import exit_codes

if TYPE_CHECKING:
    from ft_run.tests.e2e.conftest import Launcher

WORKER = """
import os, pathlib, sys, time
gate, rank, restart = sys.argv[1], os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
inherited = pathlib.Path("/proc/self/environ").read_text() + str(dict(os.environ))
assert "FT_RUN_TOKEN=" not in inherited and "'FT_RUN_TOKEN'" not in inherited
if rank == "1" and restart == "0":
    raise SystemExit(3)
print("up", rank, restart, flush=True)
while restart == "1" and not os.path.exists(gate):
    time.sleep(0.01)
if restart == "0":
    time.sleep(600)
"""


def command_lines(ft: "Launcher") -> str:
    """Return what every user of the host sees of the test's processes."""
    return "\n".join(ft.processes().values())


@pytest.mark.parametrize("options", [(), ("--preload", "json")])
def test_two_nodes_with_a_token(ft: "Launcher", free_port: int, options: tuple[str, ...]) -> None:
    endpoint, gate, file = f"127.0.0.1:{free_port}", ft.folder / "gate", ft.folder / "job.token"
    made = ft.run("token", file)
    assert (made.process.returncode, made.stdout, made.stderr) == (0, "", "")
    secret, log = file.read_text().strip(), ft.folder / "log"
    arguments = (
        "--nnodes", 2, "--rdzv-id", f"trust-{ft.mark}", "--rdzv-endpoint", endpoint, *options,
        "--max-restarts", 1, "--log-dir", log, "--tee", 3, "--event-log-handler", "console",
        ft.script(WORKER), gate,
    )  # fmt: skip
    host = ft.start("--token-file", file, *arguments)
    host.expect("hosted here")
    other = ft.start(*arguments, env={"FT_RUN_TOKEN": secret})
    for agent in (host, other):
        agent.expect("up . 1")
    assert "script.py" in command_lines(ft)
    assert secret not in command_lines(ft)
    asked = ft.run("status", endpoint, env={"FT_RUN_TOKEN_FILE": str(file)})
    assert "nodes 2 of 2" in asked.stdout, asked.stderr
    asked = ft.run("status", endpoint)
    assert asked.process.returncode == exit_codes.REFUSED
    assert f"ft-run: error: the master at {endpoint} wants a token; right would be" in asked.stderr
    gate.touch()
    assert [agent.wait() for agent in (host, other)] == [0, 0]
    told = host.stdout + host.stderr + other.stdout + other.stderr
    told += "".join(path.read_text() for path in log.rglob("*") if path.is_file())
    assert "up 1 1" in told
    assert secret not in told


def test_a_node_with_another_token_is_told_so(ft: "Launcher", free_port: int) -> None:
    endpoint, conf = f"127.0.0.1:{free_port}", "connect_timeout=1"
    job = ("--nnodes", 2, "--rdzv-id", f"trust-{ft.mark}", "--rdzv-endpoint", endpoint)
    first, second = ft.folder / "first", ft.folder / "second"
    for file in (first, second):
        assert ft.run("token", file).process.returncode == 0
    master = ft.start("master", "--bind", endpoint, "--token-file", first)
    master.expect("listening at")
    node = ("--rdzv-conf", conf, *job, ft.script(WORKER), ft.folder / "gate")
    nodes = {
        f"the token differs from that of the master at {endpoint};": ft.start(
            "--token-file", second, *node
        ),
        f"the master at {endpoint} wants a token;": ft.start(*node),
        "has 5 characters, which is less than 128 bits;": ft.start(
            *node, env={"FT_RUN_TOKEN": "short"}
        ),
    }
    assert [node.wait() for node in nodes.values()] == [exit_codes.REFUSED] * 2 + [exit_codes.USAGE]
    for sentence, told in nodes.items():
        assert sentence in told.stderr
    assert "joined" not in master.stderr
    assert "open to all" not in master.stderr
    master.send(15)
    assert master.wait() == exit_codes.SIGNAL_BASE + 15


def test_a_master_without_a_token_says_that_it_is_open(ft: "Launcher", free_port: int) -> None:
    for bind, is_open in ((f"127.0.0.1:{free_port}", False), (f":{free_port}", True)):
        master = ft.start("master", "--bind", bind)
        master.expect("listening at")
        if is_open:
            master.expect("is open to all that reach it, since the job has no token")
        master.send(15)
        master.wait()
        assert master.stderr.count("is open to all") == is_open
