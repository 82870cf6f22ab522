"""``--store separate``: the store of a round lives in a process of its own, beside rank 0."""

import os
import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ft_run.tests.e2e.conftest import Launcher

# Rank 0 leaves at once, and rank 1 still needs the store.
WORKER = """
import os, sys
from torch.distributed import rendezvous

env = os.environ
assert env["TORCHELASTIC_USE_AGENT_STORE"] == "True"
store, rank, world = next(rendezvous("env://"))
attempt = int(env["TORCHELASTIC_RESTART_COUNT"])
if rank == 0:
    assert not store.check(["rank0"]), "a key of an earlier round"
    store.set("rank0", str(os.getpid()))
    sys.exit(0)
store.wait(["rank0"])
print(f"rank 0 of attempt {attempt} leaves", flush=True)
with open(sys.argv[1]) as gate:
    gate.read()  # until the test lets go
store.set("alone", "still there")
print(store.get("alone").decode(), flush=True)
"""


def test_it_outlives_rank_0_and_its_end_is_a_failure_of_the_round(
    ft: "Launcher", free_port: int
) -> None:
    gate = ft.folder / "gate"
    os.mkfifo(gate)
    args = ("--nnodes", 2, "--max-restarts", 2, "--rdzv-endpoint", f"127.0.0.1:{free_port}",
            "--rdzv-id", "store", "--store", "separate", "--preload", "torch.distributed",
            ft.script(WORKER), gate)  # fmt: skip
    first, second = ft.start_two(*args)
    second.expect("rank 0 of attempt 0 leaves")
    first.expect("all 1 worker.* finished; waiting for the other nodes")
    (match,) = first.expect(r" in process (\d+)$")
    os.kill(int(match[1]), signal.SIGKILL)  # when only the other node runs
    second.expect("rank 0 of attempt 1 leaves")
    first.expect("all 1 worker.* finished; waiting for the other nodes", 2)
    os.close(os.open(gate, os.O_WRONLY))
    assert [first.wait(), second.wait()] == [0, 0], first.stderr + second.stderr
    assert second.stdout.endswith("still there\n")
    for agent in (first, second):
        agent.expect(r"restart 1/2: the store process on node 0 \(\S+\) was killed by SIGKILL\b")
        assert "left running" not in agent.stderr
        assert agent.stderr.count("preload:") == 1
    assert "in process" not in second.stderr  # the store is rank 0's node's business
    assert len({match[1] for match in first.expect(r" in process (\d+)$", 2)}) == 2


def test_a_store_that_cannot_run_is_named_as_the_cause(ft: "Launcher") -> None:
    python = ft.script(
        "#!/bin/sh\n"
        'case "$*" in *store_process.py*) echo "no torch here" >&2; exit 7;; esac\n'
        f'exec {sys.executable} "$@"\n',
        "python",
    )
    python.chmod(0o755)
    script = ft.script("import threading\nthreading.Event().wait()\n")
    command = ft.run(
        "--standalone", "--store", "separate", script, env={"PYTHON_EXEC": str(python)}
    )
    assert command.process.returncode == 1
    (line,) = [line for line in command.stderr.splitlines() if line.startswith("Root cause:")]
    assert line.startswith("Root cause: the store process on node 0 (")
    assert line.endswith(") exited with 7: no torch here")
    assert "rank -1" not in command.stderr


# Stands in for the store process, to see what reaches it.
STORE = """
import signal
signal.signal(signal.SIGTERM, lambda *_: print("told to end", flush=True))
signal.signal(signal.SIGUSR2, lambda *_: print("signalled", flush=True))
print("serving", flush=True)
while True:
    signal.pause()
"""


def test_signals_for_the_workers_are_not_for_it(ft: "Launcher") -> None:
    """Workers that are being stopped may still need their store."""
    python = ft.script(
        "#!/bin/sh\n"
        f'case "$*" in *store_process.py*) exec {sys.executable} {ft.script(STORE, "store.py")};; '
        f'esac\nexec {sys.executable} "$@"\n',
        "python",
    )
    python.chmod(0o755)
    script = ft.script(
        "import signal\n"
        "signal.signal(signal.SIGTERM, lambda *_: None)\n"  # it stays until it is killed
        "signal.signal(signal.SIGUSR2, lambda *_: print('signalled', flush=True))\n"
        "print('ready', flush=True)\n"
        "while True:\n"
        "    signal.pause()\n"
    )
    logs = ft.folder / "logs"
    command = ft.start("--standalone", "--store", "separate", "--log-dir", logs,
                       "--shutdown-timeout", 1, script,
                       env={"PYTHON_EXEC": str(python)})  # fmt: skip
    command.expect("^ready")
    (log,) = logs.glob("*/attempt_0/store.log")
    ft.wait_until(lambda: log.read_text() == "serving\n", "the store serves")
    command.send(signal.SIGUSR2)
    command.expect("^signalled")
    command.send(signal.SIGTERM)
    assert command.wait() == 128 + signal.SIGTERM
    assert "still alive after --shutdown-timeout 1 s" in command.stderr
    assert log.read_text() == "serving\n"
