"""``--preload`` as a user sees it: rounds, failures, what is killed, what is said."""

import os
import re
import signal
import sys

import pytest
from ft_run.tests.e2e.imports import torch_notes
from ft_run.tests.harness.family import children, command_of, spawner_of, state_of


def fork_server_of(ft, command):
    """Return the pid of the process that has the modules; waits until there is one."""
    found: list[int] = []

    def there_is() -> bool:
        forked = children(spawner_of(command.pid))
        found[:] = [pid for pid in forked if "forkserver_main.py" in command_of(pid)]
        return bool(found)

    ft.wait_until(there_is, "there is a fork server")
    return found[0]


# Each process says which it is and what it has imported; then rank 0 fails, except in the last
# attempt.
FAILING = """
import os, sys, threading
attempts, folder = int(sys.argv[1]), sys.argv[2]
warm = "colorsys" in sys.modules
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
line = f"attempt {attempt} rank {os.environ['RANK']} warm {warm} parent {os.getppid()}\\n"
os.write(1, line.encode())
if attempt < attempts:
    said = f"{folder}/said-{attempt}"
    if os.environ["RANK"] == "0":
        open(said).read()  # the other one has said its line too
        os._exit(3)
    open(said, "w").close()
    threading.Event().wait()
"""


def failing(ft, attempts):
    """Return the arguments for a script of two workers that fails that many times."""
    for attempt in range(attempts):
        os.mkfifo(ft.folder / f"said-{attempt}")
    return ft.script(FAILING), attempts, ft.folder


WAITING = """
import os, sys, threading
os.write(1, f"runs {os.environ['TORCHELASTIC_RESTART_COUNT']} {os.getpid()}\\n".encode())
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    threading.Event().wait()
"""


def test_workers_of_every_round_are_forked_and_are_the_spawners(ft):
    command = ft.run(
        *("--standalone", "--nproc-per-node", 2, "--max-restarts", 2, "--preload", "colorsys"),
        *failing(ft, 2),
    )
    assert command.process.returncode == 0
    lines = sorted(command.stdout.splitlines())
    assert [line.rpartition(" parent ")[0] for line in lines] == [
        f"attempt {attempt} rank {rank} warm True" for attempt in range(3) for rank in range(2)
    ]
    assert len({line.rpartition(" parent ")[2] for line in lines}) == 1
    assert command.stderr.count("preload: imported colorsys in ") == 1
    assert command.stderr.count("exited with 3") >= 2


@pytest.mark.slow
def test_check_workers_have_a_fork_server_of_their_own(ft):
    noted = ft.folder / "imports"
    ft.script(torch_notes(noted), "sitecustomize.py")
    command = ft.run(
        *("--standalone", "--nproc-per-node", 2, "--network-check", "--preload", "torch"),
        ft.script("import torch; print('ran')"),
        env={"PYTHONPATH": str(ft.folder)},
    )
    assert command.process.returncode == 0
    assert command.stdout.count("ran") == 2
    # Once for those that check, once for those that train.
    assert noted.read_text() == "torch\n" * 2
    assert command.stderr.count("preload: imported torch in") == 1


def test_a_fork_server_that_is_killed_is_replaced_and_its_workers_run_on(ft):
    command = ft.start(
        "--standalone", "--max-restarts", 1, "--preload", "colorsys", ft.script(WAITING)
    )
    (runs,) = command.expect(r"^runs 0 (\d+)")
    server = fork_server_of(ft, command)
    os.kill(server, signal.SIGKILL)
    command.expect("preload: imported colorsys", 2)
    assert fork_server_of(ft, command) != server
    os.kill(int(runs[1]), signal.SIGKILL)
    assert command.wait() == 0
    assert "runs 1 " in command.stdout


def test_a_module_that_has_changed_on_disk_is_imported_again(ft):
    module = ft.script("name = 'old'\n", "mine.py")
    script = ft.script("import mine\nprint(mine.name)\n" + WAITING)
    command = ft.start("--standalone", "--max-restarts", 1, "--preload", "mine", script)
    (runs,) = command.expect(r"^runs 0 (\d+)")
    module.write_text("name = 'the new one'\n")
    os.kill(int(runs[1]), signal.SIGKILL)
    assert command.wait() == 0
    assert [line for line in command.stdout.splitlines() if "runs" not in line] == [
        "old",
        "the new one",
    ]
    assert f"preload: {module} has changed on disk; importing again" in command.stderr
    assert command.stderr.count("preload: imported mine") == 2


def test_a_stop_does_not_wait_for_the_preload(ft):
    ft.script(
        "import os, threading\nos.write(1, b'importing\\n')\nthreading.Event().wait()", "slow.py"
    )
    command = ft.start("--standalone", "--preload", "slow", ft.script("print('ran')"))
    command.expect("^importing")
    command.expect("waiting for --preload imports")  # the agent has its signal handlers by then
    command.send(signal.SIGTERM)
    assert command.wait() == 128 + signal.SIGTERM
    assert "ran" not in command.stdout
    assert "still alive" not in command.stderr
    assert not ft.processes()


# Says how far it is, has another program do something, as modules do that compile, and needs it.
COMPILING = """
import os, subprocess
os.write(1, b"importing\\n")
subprocess.run(["sh", "-c", "while ! [ -e gate ]; do sleep 0.02; done"], check=True)
"""

# The node that has no fork server fails, when the test lets it.
OF_TWO_NODES = """
import os, sys
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
if sys.argv[1:] and attempt == "0":
    open(sys.argv[1]).read()
    sys.exit(3)
print("attempt", attempt, "warm", "slow" in sys.modules, flush=True)
"""


def test_a_stop_leaves_what_the_preload_has_started_alone(ft, free_port):
    """And the store, which does not wait for the preload, is that of the round."""
    ft.script(COMPILING, "slow.py")
    fail = ft.folder / "fail"
    os.mkfifo(fail)
    args = ("--nnodes", 2, "--rdzv-endpoint", f"127.0.0.1:{free_port}", "--rdzv-id", "stop",
            "--max-restarts", 1, "--store", "separate")  # fmt: skip
    script = ft.script(OF_TWO_NODES)
    first = ft.start(*args, "--preload", "slow", script)
    first.expect("hosted here")
    second = ft.start(*args, script, fail)
    first.expect("waiting for --preload imports")
    first.expect("^importing")
    fail.write_text("")
    first.expect("round=1 .* waiting for --preload imports")
    (ft.folder / "gate").touch()
    assert [first.wait(), second.wait()] == [0, 0]
    assert first.stdout.splitlines()[-1] == "attempt 1 warm True"
    assert first.stdout.count("importing") == 1
    assert first.stderr.count("preload: imported slow in") == 1
    assert "still alive" not in first.stderr


def test_signals_for_the_program_do_not_end_workers_that_wait_for_the_preload(ft):
    gate = ft.folder / "gate"
    os.mkfifo(gate)
    ft.script(f"import os\nos.write(1, b'importing\\n')\nopen({str(gate)!r}).read()\n", "slow.py")
    command = ft.start("--standalone", "--preload", "slow", ft.script("print('ran')"))
    command.expect("^importing")
    command.expect("waiting for --preload imports")
    command.send(signal.SIGUSR1)
    # All sleep again, the agent first: it has been handed on before there is a worker to end.
    ft.wait_until(
        lambda: {state_of(pid) for pid in sorted(ft.processes())} == {"S"}, "the signal is handled"
    )
    gate.write_text("")
    assert command.wait() == 0
    assert command.stdout.endswith("ran\n")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            ("--preload", "json.no_such_module"),
            (
                "preload: there is no module 'json.no_such_module'; falling back to normal "
                "worker start"
            ),
        ),
        pytest.param(
            ("--preload", "json.no_such_module", "--network-check"),
            (
                "preload: there is no module 'json.no_such_module'; falling back to normal worker "
                "start"
            ),
            marks=pytest.mark.slow,
        ),
        (("--preload", "colorsys", "--no-python"), "--preload is ignored with --no-python"),
    ],
)
def test_without_a_fork_server_one_sentence_says_so(ft, options, sentence):
    script = ft.script(f"#!{sys.executable}\nimport os\nos.write(1, b'ran\\n')\n")
    script.chmod(0o755)
    command = ft.run("--standalone", "--nproc-per-node", 2, *options, script)
    assert command.process.returncode == 0
    assert command.stdout.count("ran\n") == 2
    assert command.stderr.count(sentence) == 1
    assert "Traceback" not in command.stderr


def test_another_interpreter_is_started_the_ordinary_way(ft):
    other = ft.script(f'#!/bin/sh\nOTHER=1 exec {sys.executable} "$@"\n', "other")
    other.chmod(0o755)
    command = ft.run(
        *("--standalone", "--preload", "colorsys"),
        ft.script("import os; print(os.environ['OTHER'])"),
        env={"PYTHON_EXEC": str(other)},
    )
    assert command.process.returncode == 0
    assert command.stdout == "1\n"
    assert command.stderr.count(f"PYTHON_EXEC={other} is another interpreter") == 1


def test_what_workers_left_running_is_ended_but_not_the_fork_server(ft):
    script = ft.script(
        "import os, threading\nif os.fork() == 0:\n    os.setsid()\n    threading.Event().wait()\n"
    )
    command = ft.run("--standalone", "--preload", "colorsys", script)
    assert command.process.returncode == 0
    assert re.search(r"terminating 1 process\(es\) that the workers left running", command.stderr)
    assert not ft.processes()


# The second process that imports it waits.
ONCE = """
import os
os.write(1, b"importing\\n")
if os.path.exists("imported"):
    open("gate").read()
open("imported", "w").close()
"""


def test_a_spawner_that_sees_an_image_silent_and_dead_at_once_goes_on(ft):
    """The fork server that replaces it may reuse the number of its socket, and is silent so far."""
    ft.script(ONCE, "once.py")
    os.mkfifo(ft.folder / "gate")
    script = ft.script("import os, threading\nos.write(1, b'runs\\n')\nthreading.Event().wait()\n")
    command = ft.start("--standalone", "--preload", "once", script)
    command.expect("^runs")
    server = fork_server_of(ft, command)
    spawner = spawner_of(command.pid)
    os.kill(spawner, signal.SIGSTOP)
    os.kill(server, signal.SIGKILL)
    ft.wait_until(lambda: state_of(server) == "Z", "the fork server is dead")
    os.kill(spawner, signal.SIGCONT)
    command.expect("^importing", 2)
    command.send(signal.SIGTERM)  # while the import goes on
    assert command.wait() == 128 + signal.SIGTERM
    assert "still alive" not in command.stderr
    assert not ft.processes()


def test_a_fork_server_that_was_stopped_does_not_stall_a_restart(ft):
    command = ft.start(
        "--standalone", "--max-restarts", 1, "--preload", "colorsys", ft.script(WAITING)
    )
    (runs,) = command.expect(r"^runs 0 (\d+)")
    os.kill(fork_server_of(ft, command), signal.SIGSTOP)
    os.kill(int(runs[1]), signal.SIGKILL)
    assert command.wait() == 0
    assert "runs 1 " in command.stdout
    assert command.stderr.count("preload: imported colorsys") == 1


def test_a_worker_that_takes_long_to_begin_does_not_hold_up_the_spawner(ft):
    """Its script is on a file system that hangs: here, a FIFO that is never written to."""
    script = ft.folder / "script.py"
    os.mkfifo(script)
    # A spawner that is held up passes no SIGTERM on: only the end of this time would end the job.
    patient = ("--shutdown-timeout", 3600)
    command = ft.start("--standalone", *patient, "--preload", "colorsys", script)
    command.expect("preload: imported")
    spawner, server = spawner_of(command.pid), fork_server_of(ft, command)
    ft.wait_until(lambda: set(children(spawner)) - {server}, "a worker is forked")
    command.send(signal.SIGTERM)
    assert command.wait() == 128 + signal.SIGTERM
    assert "survives SIGKILL" not in command.stderr
