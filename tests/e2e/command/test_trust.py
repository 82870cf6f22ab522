"""A job with a token, from the outside: what it lets in, what it tells, and where the token is."""

import subprocess
from typing import TYPE_CHECKING

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
os.write(1, f"up {rank} {restart}\\n".encode())
while restart == "1" and not os.path.exists(gate):
    time.sleep(0.01)
if restart == "0":
    time.sleep(600)
"""


def command_lines(ft: "Launcher") -> str:
    """Return what every user of the host sees of the test's processes."""
    return "\n".join(ft.processes().values())


def test_two_nodes_with_a_token(ft: "Launcher", free_port: int) -> None:
    """The workers of one are forked, those of the other executed."""
    endpoint, gate, file = f"127.0.0.1:{free_port}", ft.folder / "gate", ft.folder / "job.token"
    made = ft.run("token", file)
    assert (made.process.returncode, made.stdout, made.stderr) == (0, "", "")
    secret, log = file.read_text().strip(), ft.folder / "log"
    arguments = (
        "--nnodes", 2, "--rdzv-id", f"trust-{ft.mark}", "--rdzv-endpoint", endpoint,
        "--max-restarts", 1, "--log-dir", log, "--tee", 3, "--event-log-handler", "console",
        ft.script(WORKER), gate,
    )  # fmt: skip
    host = ft.start("--token-file", file, "--preload", "json", *arguments)
    host.expect("hosted here")
    other = ft.start(*arguments, env={"FT_RUN_TOKEN": secret})
    for agent in (host, other):
        agent.expect("up . 1")
    assert "script.py" in command_lines(ft)
    assert secret not in command_lines(ft)
    asked = ft.run("status", endpoint, env={"FT_RUN_TOKEN_FILE": str(file)})
    assert "nodes 2 of 2" in asked.stdout, asked.stderr
    asked = ft.run("stacks", endpoint, "--token-file", file)
    assert "ranks 0-1" in asked.stdout, asked.stderr
    for question in ("status", "stacks"):
        asked = ft.run(question, endpoint)
        assert (asked.process.returncode, asked.stdout) == (exit_codes.REFUSED, "")
        assert f"ft-run: error: the master at {endpoint} requires a token; set" in asked.stderr
    gate.touch()
    assert [agent.wait() for agent in (host, other)] == [0, 0]
    told = host.stdout + host.stderr + other.stdout + other.stderr
    told += "".join(path.read_text() for path in log.rglob("*") if path.is_file())
    assert "up 1 1" in told
    assert secret not in told


def test_two_nodes_with_certificates_of_their_own(ft: "Launcher", free_port: int) -> None:
    """As openssl makes them, one for each node; the master's has the name of its endpoint."""

    def openssl(*words: object) -> None:
        command = ["openssl", *map(str, words)]
        subprocess.run(command, cwd=ft.folder, check=True, capture_output=True)

    new = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    for name in ("ca", "foreign"):
        made = ("-keyout", f"{name}.key", "-out", f"{name}.pem", "-subj", f"/CN={name}")
        openssl("req", "-x509", *new, *made)
    (ft.folder / "names").write_text("subjectAltName=DNS:localhost\n")
    for name in ("host", "other"):
        made = ("-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        openssl("req", *new, *made)
        names = ("-extfile", "names") if name == "host" else ()
        openssl(
            *("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key"), *names,
            *("-CAcreateserial", "-out", f"{name}.pem"),
        )  # fmt: skip

    def shown(name: str, ca: str = "ca") -> tuple[str, ...]:
        return ("--tls-cert", f"{name}.pem", "--tls-key", f"{name}.key", "--tls-ca", f"{ca}.pem")

    endpoint, gate = f"localhost:{free_port}", ft.folder / "gate"
    job = ("--nnodes", 2, "--rdzv-id", f"own-{ft.mark}", "--rdzv-endpoint", endpoint)
    script = ("--max-restarts", 1, ft.script(WORKER), gate)
    host = ft.start(*job, *shown("host"), *script)
    host.expect("hosted here")
    other = ft.start(*job, *shown("other"), *script)
    for agent in (host, other):
        agent.expect("up . 1")
    assert "nodes 2 of 2" in ft.run("status", endpoint, *shown("other")).stdout
    quick = ("--rdzv-conf", "connect_timeout=10")
    strangers = {
        "requires a certificate; set --tls-cert, --tls-key and --tls-ca.": (),
        "is not trusted; expected one that is signed by --tls-ca": shown("foreign", "foreign"),
        "does not trust the certificate of this node; expected": shown("foreign"),
    }
    started = {words: ft.start(*job, *quick, *more, *script) for words, more in strangers.items()}
    for sentence, stranger in started.items():
        assert stranger.wait() == exit_codes.REFUSED
        assert sentence in stranger.stderr
    gate.touch()
    assert [agent.wait() for agent in (host, other)] == [0, 0]


def test_a_node_with_another_token_is_told_so(ft: "Launcher", free_port: int) -> None:
    endpoint, conf = f"127.0.0.1:{free_port}", "connect_timeout=10"
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
        f"the master at {endpoint} requires a token;": ft.start(*node),
        "has 5 characters, which is less than 128 bits;": ft.start(
            *node, env={"FT_RUN_TOKEN": "short"}
        ),
    }
    assert [node.wait() for node in nodes.values()] == [exit_codes.REFUSED] * 2 + [exit_codes.USAGE]
    for sentence, told in nodes.items():
        assert sentence in told.stderr
    assert "joined" not in master.stderr
    assert "unauthenticated" not in master.stderr
    master.send(15)
    assert master.wait() == exit_codes.SIGNAL_BASE + 15
