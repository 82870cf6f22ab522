"""No process outlives what it belongs to, whatever is killed."""

import os
import signal
import sys

from ft_run.tests.harness.family import spawner_of

# A worker that does everything to stay: it ignores SIGTERM and leaves a child and a grandchild
# in sessions of their own, which ignore it too.
STUBBORN = """
import os, signal, threading
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGINT, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.setsid()
        os.write(1, b"grandchild %d\\n" % os.getpid())
        threading.Event().wait()
    os.write(1, b"child %d\\n" % os.getpid())
    threading.Event().wait()
os.write(1, b"worker %d\\n" % os.getpid())
threading.Event().wait()
"""

FAMILY = 2 * 3


def start_family(ft, *options):
    command = ft.start("--standalone", "--nproc-per-node", 2, *options, ft.script(STUBBORN))
    command.expect(r"^(worker|child|grandchild) \d+", FAMILY)
    return command


def test_sigkill_of_the_agent_leaves_nothing(ft):
    command = start_family(ft)
    assert len(ft.processes()) == FAMILY + 3  # agent, guard, spawner
    command.send(signal.SIGKILL)
    ft.wait_until(lambda: not ft.processes(), "everything is gone")


def test_sigkill_of_the_spawner_leaves_nothing_and_is_reported(ft):
    command = start_family(ft)
    os.kill(spawner_of(command.pid), signal.SIGKILL)
    assert command.wait() == 1
    assert command.stderr.count("ft-run: error: the spawner process was killed") == 1
    assert "Traceback" not in command.stderr
    ft.wait_until(lambda: not ft.processes(), "everything is gone")


def test_workers_that_ignore_sigterm_are_killed_when_their_time_is_over(ft):
    command = start_family(ft, "--shutdown-timeout", 1)
    command.send(signal.SIGTERM)
    assert command.wait() == 128 + signal.SIGTERM
    assert "still alive after --shutdown-timeout 1 s: sending SIGKILL" in command.stderr
    assert not ft.processes()


def test_a_failure_ends_the_whole_family_before_the_next_round(ft):
    script = ft.script(
        STUBBORN.replace(
            'os.write(1, b"worker',
            'print("alive", os.environ["TORCHELASTIC_RESTART_COUNT"], flush=True)\n'
            'if os.environ["TORCHELASTIC_RESTART_COUNT"] == "1":\n'
            "    os._exit(0)\n"
            'if os.environ["RANK"] == "0":\n'
            "    os._exit(5)\n"
            'os.write(1, b"worker',
        )
    )
    command = ft.run(
        "--standalone", "--nproc-per-node", 2, "--max-restarts", 1, "--shutdown-timeout", 1, script
    )
    assert command.process.returncode == 0
    assert "rank 0 on node 0" in command.stderr
    assert not ft.processes()


def test_a_worker_has_no_descriptors_of_its_launcher(ft):
    script = ft.script(
        "import os\n"
        "fds = {}\n"
        "for fd in os.listdir('/proc/self/fd'):\n"
        "    try: fds[int(fd)] = os.readlink(f'/proc/self/fd/{fd}')\n"
        "    except OSError: pass\n"
        "print(sorted(fd for fd in fds if fd > 2))\n"
    )
    for options in ((), ("--tee", "3")):
        command = ft.run("--standalone", *options, script)
        assert command.stdout.endswith("[]\n")


def test_a_bystander_is_left_alone(ft):
    """Another process may have the variables of a job, even those of this one."""
    ready, gate = ft.folder / "ready", ft.folder / "gate"
    script = ft.script(
        "import os, sys, threading\n"
        "if os.environ['TORCHELASTIC_RESTART_COUNT'] == '1': sys.exit()\n"
        "names = ('MASTER_ADDR', 'MASTER_PORT', 'RANK', 'LOCAL_RANK', 'WORLD_SIZE',\n"
        "         'TORCHELASTIC_RUN_ID')\n"
        "print('env', *(f'{name}={os.environ[name]}' for name in names), flush=True)\n"
        "while not os.path.exists(sys.argv[1]): threading.Event().wait(0.02)\n"
        "sys.exit(3)\n"
    )
    command = ft.start("--standalone", "--max-restarts", 1, script, gate)
    (match,) = command.expect("^env (.*)")
    env = dict(pair.split("=", 1) for pair in match[1].split())
    wait = f"import threading; open({str(ready)!r}, 'w').close(); threading.Event().wait()"
    bystander = ft.start("-c", wait, program=(sys.executable,), env=env)
    ft.wait_until(ready.exists, "the bystander runs")
    gate.touch()
    assert command.wait() == 0
    command.expect("round=1 .*restart 1/1")
    assert bystander.process.poll() is None
    bystander.send(signal.SIGTERM)
    assert bystander.wait() == -signal.SIGTERM
