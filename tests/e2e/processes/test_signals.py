"""Signals to an agent: one line, an orderly stop, 128 + n, nothing left."""

import contextlib
import signal
import subprocess
import sys
import time

import pytest
from ft_run.launcher.agent.signals import SAME_S

TIDY = """
import os, pathlib, signal, sys, threading
def tidy(number, frame):
    pathlib.Path(sys.argv[1], f"tidy-{os.environ['RANK']}").write_text(str(number))
    os._exit(0)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
    if signal.getsignal(number) is not signal.SIG_IGN:
        signal.signal(number, tidy)
def user(number, frame):
    os.write(1, f"got {signal.Signals(number).name}\\n".encode())
signal.signal(signal.SIGUSR1, user)
signal.signal(signal.SIGUSR2, user)
os.write(1, b"ready\\n")
while True:
    signal.pause()
"""


def start_tidy(ft, **options):
    script = ft.script(TIDY)
    command = ft.start("--standalone", "--nproc-per-node", 2, script, ft.folder, **options)
    command.expect("^ready", 2)
    return command


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT"])
def test_an_orderly_stop(ft, name):
    command = start_tidy(ft)
    number = signal.Signals[name]
    command.send(number)
    assert command.wait() == 128 + number
    lines = [line for line in command.stderr.splitlines() if "received" in line]
    assert len(lines) == 1
    assert f"received {name}: stopping 2 worker(s)" in lines[0]
    assert "Traceback" not in command.stderr
    # The workers had the time to finish what they were doing, and were told by the same signal.
    assert [(ft.folder / f"tidy-{r}").read_text() for r in (0, 1)] == [str(int(number))] * 2
    assert not ft.processes()


def test_many_sigterms_leave_no_orphans(ft):
    command = start_tidy(ft)
    for _ in range(5):
        command.send(signal.SIGTERM)
    assert command.wait() == 128 + signal.SIGTERM
    assert not ft.processes()


# For a machine that is too busy to handle two signals within SAME_S.
PATIENT = """
import sys
from ft_run.launcher.agent import signals
from ft_run.launcher.main import main
signals.SAME_S = 3600.0
sys.exit(main(sys.argv[1:]))
"""


def interrupted(ft, on_interrupt, program=None):
    """Start a worker that takes SIGINT in a way of its own, and send one."""
    script = ft.script(
        "import os, signal, time\n"
        f"{on_interrupt}"
        "os.write(1, b'ready\\n')\n"
        "while True: signal.pause()\n"
    )
    command = ft.start("--standalone", script, program=program or ft.program)
    command.expect("^ready")
    command.send(signal.SIGINT)
    command.expect("received SIGINT")
    return command


def test_a_second_ctrl_c_kills_at_once(ft):
    command = interrupted(ft, "signal.signal(signal.SIGINT, signal.SIG_IGN)\n")
    time.sleep(SAME_S)  # a hand is slower
    command.send(signal.SIGINT)
    assert command.wait() == 128 + signal.SIGINT
    assert "second Ctrl-C" in command.stderr


def test_a_signal_that_is_sent_twice_is_one(ft):
    """``timeout`` sends it to its child, and then to the process group that it is in."""
    command = interrupted(
        ft,
        "def save(*_):\n"
        "    time.sleep(0.5)\n"
        "    os.write(1, b'saved\\n')\n"
        "    os._exit(0)\n"
        "signal.signal(signal.SIGINT, save)\n",
        program=(sys.executable, ft.script(PATIENT, "patient.py")),
    )
    command.send(signal.SIGINT)
    command.expect("^saved")
    assert command.wait() == 128 + signal.SIGINT
    assert "second Ctrl-C" not in command.stderr


@pytest.mark.parametrize("code", [0, 1])
def test_signals_at_the_end_do_not_end_the_agent_raw(ft, code):
    """They come at every moment from the worker's end on: while it reports, closes and exits."""
    script = ft.script(f"print('ready', flush=True)\nraise SystemExit({code})\n")
    command = ft.start("--standalone", "--log-dir", ft.folder / "logs", script)
    command.expect("^ready")
    while command.process.poll() is None:
        command.send(signal.SIGTERM)
        command.send(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            command.process.wait(0.001)
    assert command.wait() in (code, 128 + signal.SIGTERM, 128 + signal.SIGINT)
    assert "Traceback" not in command.stderr


def test_user_signals_reach_the_workers(ft):
    command = start_tidy(ft)
    for name in ("SIGUSR1", "SIGUSR2"):
        command.send(signal.Signals[name])
        command.expect(f"got {name}", 2)
    command.send(signal.SIGTERM)
    assert command.wait() == 128 + signal.SIGTERM


def test_nohup_survives_a_hang_up(ft):
    command = start_tidy(ft, program=("nohup", *ft.program))
    command.send(signal.SIGHUP)
    command.send(signal.SIGUSR1)  # answered after the hang-up was not
    command.expect("got SIGUSR1", 2)
    command.send(signal.SIGTERM)
    assert command.wait() == 128 + signal.SIGTERM
    assert "SIGHUP" not in command.stderr


def test_a_signal_while_it_waits_for_nodes(ft, free_port):
    command = ft.start("--nnodes", 2, "--rdzv-endpoint", f"127.0.0.1:{free_port}", "--rdzv-id", "x",
                       ft.script(""))  # fmt: skip
    command.expect("waiting for nodes: 1 of 2")
    command.send(signal.SIGTERM)
    assert command.wait() == 128 + signal.SIGTERM


def test_a_node_that_leaves_is_replaced_without_a_restart(ft, free_port):
    script = ft.script(
        "import os, signal, sys\n"
        "env = os.environ\n"
        "print('round of', env['RANK'], env['TORCHELASTIC_RESTART_COUNT'], flush=True)\n"
        "if not os.path.exists(sys.argv[1]):\n"
        "    while True: signal.pause()\n"
    )
    flag = ft.folder / "replaced"
    args = ("--nnodes", 2, "--rdzv-endpoint", f"127.0.0.1:{free_port}", "--rdzv-id", "x",
            script, flag)  # fmt: skip
    host, leaver = ft.start_two(*args)
    for agent in (host, leaver):
        agent.expect("^round of")
    leaver.send(signal.SIGTERM)
    assert leaver.wait() == 128 + signal.SIGTERM
    host.expect("stopping 1 worker.*is leaving: SIGTERM")
    flag.touch()
    replacement = ft.start(*args)
    assert [host.wait(), replacement.wait()] == [0, 0]
    assert "regroup with 2 node(s)" in host.stderr
    assert sorted(host.stdout.splitlines()) == ["round of 0 0", "round of 0 0"]
    assert replacement.stdout == "round of 1 0\n"


def test_a_node_whose_workers_are_done_and_which_waits_for_the_others_can_be_told_to_go(
    ft, free_port
):
    script = ft.script(
        "import os, sys, threading\n"
        "while os.environ['RANK'] == '0' and not os.path.exists(sys.argv[1]):\n"
        "    threading.Event().wait(0.02)\n"
    )
    gate = ft.folder / "gate"
    args = ("--nnodes", "1:2", "--rdzv-endpoint", f"127.0.0.1:{free_port}", "--rdzv-id", ft.mark,
            script, gate)  # fmt: skip
    host, done = ft.start_two(*args)
    done.expect("all 1 worker.* finished; waiting for the other nodes")
    done.send(signal.SIGTERM)
    assert done.wait() == 128 + signal.SIGTERM
    gate.touch()
    assert host.wait() == 0
