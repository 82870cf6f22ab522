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
    pathlib.Path(sys.argv[1], f"tidy-{os.environ['RANK']}").touch()
    os._exit(0)
signal.signal(signal.SIGTERM, tidy)
os.write(1, b"ready\\n")
while True:
    signal.pause()
"""


def test_an_orderly_stop(ft):
    """Other signals: conformance."""
    script = ft.script(TIDY)
    command = ft.start("--standalone", "--nproc-per-node", 2, script, ft.folder)
    command.expect("^ready", 2)
    command.send(signal.SIGTERM)
    assert command.wait() == 128 + signal.SIGTERM
    lines = [line for line in command.stderr.splitlines() if "received" in line]
    assert len(lines) == 1
    assert "received SIGTERM: stopping 2 worker(s) and leaving the job" in lines[0]
    assert "is being preempted" not in command.stderr, "the script has not asked"
    assert "Traceback" not in command.stderr
    # The workers had the time to finish what they were doing.
    assert all((ft.folder / f"tidy-{rank}").exists() for rank in (0, 1))
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
    script = ft.script(
        "import signal\n"
        "signal.signal(signal.SIGINT, signal.SIG_DFL)\n"  # no traceback of the worker
        f"print('ready', flush=True)\nraise SystemExit({code})\n"
    )
    command = ft.start("--standalone", "--log-dir", ft.folder / "logs", script)
    command.expect("^ready")
    while command.process.poll() is None:
        command.send(signal.SIGTERM)
        command.send(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            command.process.wait(0.001)
    assert command.wait() in (code, 128 + signal.SIGTERM, 128 + signal.SIGINT)
    assert "Traceback" not in command.stderr


# Starts the program behind it with all signals blocked, as some schedulers and test programs do.
DEAF = """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
os.execvp(sys.argv[1], sys.argv[1:])
"""


def deaf(ft):
    return (sys.executable, "-c", DEAF, *ft.program)


MASKS = """
import os, signal, sys
blocked = signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM, signal.SIGUSR1])
signal.signal(signal.SIGUSR1, lambda *_: os.write(1, b"usr1\\n"))
os.write(1, b"ready %d\\n" % len(blocked))
while True:
    signal.pause()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
def test_signals_that_the_parent_blocked_are_received(ft, number):
    # The worker blocks some of these signals, as its parent did, until it is killed.
    options = ("--standalone", "--shutdown-timeout", 1)
    command = ft.start(*options, ft.script(MASKS), program=deaf(ft))
    (ready,) = command.expect(r"^ready (\d+)")
    assert int(ready[1]) > 50, "a worker has the mask of the parent, as from torchrun"
    command.send(signal.SIGUSR1)
    command.expect("^usr1")
    command.send(number)
    assert command.wait() == 128 + number
    assert not ft.processes()


@pytest.mark.parametrize(
    "options",
    [(), ("--preload", "colorsys"), ("--store", "separate")],
    ids=["cold", "warm", "store"],
)
def test_exit_of_a_worker_is_noticed_if_the_parent_blocks_sigchld(ft, options):
    script = ft.script("import os, sys; sys.exit(os.environ['TORCHELASTIC_RESTART_COUNT'] == '0')")
    command = ft.run("--standalone", "--max-restarts", 1, *options, script, program=deaf(ft))
    assert command.process.returncode == 0
    assert "restart 1/1" in command.stderr


def test_lone_master_receives_signals_that_the_parent_blocked(ft):
    command = ft.start("master", "--bind", "127.0.0.1:0", program=deaf(ft))
    command.expect("listening")
    command.send(signal.SIGTERM)
    assert command.wait() == 128 + signal.SIGTERM


def test_hosts_receives_signals_that_the_parent_blocked(ft):
    ssh = ft.folder / "ssh"
    ssh.write_text("#!/bin/sh\necho started\ngrep -q SIGTERM\nexit 143\n")
    ssh.chmod(0o755)
    options = ("--hosts", "a,b", "--ssh", ssh, "train.py")
    command = ft.start("hosts", *options, program=deaf(ft))
    command.expect("started", 2)
    command.send(signal.SIGTERM)
    assert command.wait() == 128 + signal.SIGTERM


USR1 = """
import os, signal, subprocess, sys, torch

class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 1000
    def __getitem__(self, index):
        return index

if __name__ == "__main__":
    signalled, handled = os.pipe()
    signal.signal(signal.SIGUSR1, lambda *_: os.write(handled, b"caught"))
    helper = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    # No tensor: processes share tensors through sockets with long names in this directory.
    options = {"num_workers": 1, "multiprocessing_context": "spawn", "collate_fn": list}
    loader = torch.utils.data.DataLoader(Numbers(), **options)
    numbers = iter(loader)
    next(numbers)
    print("ready", flush=True)
    caught = os.read(signalled, 10).decode()
    count = 1 + len(list(numbers))
    helper.stdin.close()
    print(caught, "helper", helper.wait(), "batches", count)
"""


def test_sigusr1_reaches_only_processes_that_handle_it(ft):
    """Not a helper, nor a DataLoader worker that is spawned."""
    command = ft.start("--standalone", ft.script(USR1))
    command.expect("^ready")
    command.send(signal.SIGUSR1)
    assert command.wait() == 0, command.stderr
    assert "caught helper 0 batches 1000" in command.stdout


HALF = """
import os, pathlib, signal, sys, time
done, is_first = pathlib.Path(sys.argv[1]), os.environ["RANK"] == "0"
if is_first:
    signal.signal(signal.SIGUSR1, lambda *_: done.touch())
os.write(1, b"ready\\n")
while not done.exists():
    time.sleep(0.1)
"""


def test_a_worker_without_a_handler_survives_sigusr1(ft):
    command = ft.start("--standalone", "--nproc-per-node", 2, ft.script(HALF), ft.folder / "done")
    command.expect("^ready", 2)
    command.send(signal.SIGUSR1)
    assert command.wait() == 0, command.stderr


LAST_STEP = r"""
import os, signal, subprocess, sys, torch

class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 1000
    def __getitem__(self, index):
        return index

stopped, stop = os.pipe()
signal.signal(signal.SIGTERM, lambda *_: os.write(stop, b"1"))
# One write for each line: both processes write to the same pipe.
saves = "import os, signal; signal.signal(15, lambda *_: os.write(1, b'helper saved\\n'));"
subprocess.Popen([sys.executable, "-c", saves + "os.write(1, b'helper\\n'); signal.pause()"])
# No tensor: processes share tensors through sockets with long names in this directory.
options = {"num_workers": 2, "prefetch_factor": 1, "collate_fn": list}
for (number,) in torch.utils.data.DataLoader(Numbers(), **options):
    if number == 3:
        os.write(1, b"ready\n")
        os.read(stopped, 1)
    if number == 20:  # the signal came earlier; this needs the processes of the loader
        os.write(1, b"step ended\n")
        os._exit(0)
"""


@pytest.mark.parametrize(
    "wrapper",
    [
        "",
        "trap '' TERM; \"$@\"; true",  # ignores it
        "trap 'sleep 0' TERM; \"$@\"; true",  # handles it when its command has ended
        "\"$@\" & trap 'kill -TERM $!' TERM; wait; wait",  # forwards it
    ],
    ids=["no wrapper", "ignores", "handles", "forwards"],
)
def test_a_handler_of_sigterm_finishes_a_step_with_its_data_loader(ft, wrapper):
    """The other child of the worker receives SIGTERM once the worker has ended."""
    shell = ("sh", "-c", wrapper, "sh") if wrapper else ()
    script = ft.script(LAST_STEP)
    command = ft.start("--standalone", "--no-python", *shell, sys.executable, script)
    command.expect("^helper")
    command.expect("^ready")
    command.send(signal.SIGTERM)
    assert command.wait() == 128 + signal.SIGTERM, command.stderr
    assert "step ended" in command.stdout, command.stderr
    assert "helper saved" in command.stdout
    assert "Traceback" not in command.stderr


def test_children_of_a_worker_that_ignore_sigterm_are_killed_in_time(ft):
    script = ft.script(
        "import signal, subprocess, sys\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n"
        "subprocess.Popen(['sh', '-c', 'trap \"\" TERM; echo ready; while :; do sleep 1; done'])\n"
        "while True: signal.pause()\n"
    )
    command = ft.start("--standalone", script)
    command.expect("^ready")
    command.send(signal.SIGTERM)
    assert command.wait() == 128 + signal.SIGTERM
    assert "left running still alive after 5 s: sending SIGKILL" in command.stderr
