"""Spawner or guard are stopped: workers that die are noticed, and signals are obeyed."""

import os
import signal

import pytest
from ft_run import exit_codes
from ft_run.tests.harness.stoppers import STOPPERS, parent_of

pytestmark = pytest.mark.root

WORKER = """
import os, sys, time
gate, restart = sys.argv[1], os.environ["TORCHELASTIC_RESTART_COUNT"]
os.write(1, f"up restart={restart} parent={os.getppid()} pid={os.getpid()}\\n".encode())
while restart == "0" and not os.path.exists(gate + os.environ["RANK"]):
    time.sleep(0.01)
sys.exit(3 if restart == "0" else 0)
"""


def start(ft, *options):
    """Start a job; return the command, the spawner and the workers."""
    gate = ft.folder / "gate"
    command = ft.start("--standalone", *options, ft.script(WORKER), gate)
    ups = command.expect(r"^up restart=0 parent=(\d+) pid=(\d+)", 2)
    return command, int(ups[0][1]), [int(up[2]) for up in ups]


def test_worker_that_exits_while_the_spawner_is_stopped_is_restarted(ft):
    command, spawner, _ = start(ft, "--nproc-per-node", 2, "--max-restarts", 1)
    with STOPPERS["SIGSTOP"](spawner):
        (ft.folder / "gate0").touch()
        command.expect("restart 1/1: rank [01] on node 0 .* exited with 3")
        command.expect("^up restart=1", 2)
    assert command.wait() == 0


UNWAKEABLE = ["debugger", pytest.param("frozen cgroup", marks=pytest.mark.slow)]


@pytest.mark.parametrize("kind", UNWAKEABLE)
def test_worker_that_exits_is_reported_although_the_spawner_cannot_be_woken(ft, kind):
    options = ("--nproc-per-node", 2, "--max-restarts", 1, "--shutdown-timeout", 1)
    command, spawner, _ = start(ft, *options)
    with STOPPERS[kind](spawner):
        (ft.folder / "gate0").touch()
        command.expect("rank 0 .*exited with 3")
        command.expect("ft-run: error: the spawner process was killed or did not respond")
    assert command.wait() == exit_codes.WORKERS_FAILED
    assert "Traceback" not in command.stderr
    ft.wait_until(lambda: not ft.processes(), "no process is left")


@pytest.mark.parametrize("kind", list(STOPPERS))
def test_agent_ends_although_the_guard_is_stopped(ft, kind):
    command, spawner, _ = start(ft, "--nproc-per-node", 2)
    guard = parent_of(spawner)
    with STOPPERS[kind](guard):
        command.send(signal.SIGTERM)
        assert command.wait() == 128 + signal.SIGTERM
    ft.wait_until(lambda: not os.path.exists(f"/proc/{guard}"), "the guard is gone")


@pytest.mark.parametrize("kind", ["SIGSTOP", *UNWAKEABLE])
def test_agent_ends_although_the_spawner_is_stopped(ft, kind):
    command, spawner, _ = start(ft, "--nproc-per-node", 2, "--shutdown-timeout", 1)
    with STOPPERS[kind](spawner):
        command.send(signal.SIGTERM)
        assert command.wait() in (128 + signal.SIGTERM, exit_codes.WORKERS_FAILED)
    ft.wait_until(lambda: not ft.processes(), "no process is left")
