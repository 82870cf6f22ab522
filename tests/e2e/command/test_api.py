"""A job started from Python: what the caller gets, and that nothing is left whatever ends."""

import re
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from ft_run.launcher.api import ProcessFailure

if TYPE_CHECKING:
    from ft_run.tests.e2e.conftest import Command, Launcher

HEAD = """
import glob, os, signal, stat, sys, tempfile, threading
from ft_run.launcher.api import *

def rank():
    return int(os.environ["RANK"])

def restarts():
    return int(os.environ["TORCHELASTIC_RESTART_COUNT"])
"""


def start(ft: "Launcher", text: str, *args: object, name: str = "program.py") -> "Command":
    """Start a Python program that uses the API."""
    return ft.start(ft.script(HEAD + text, name), *args, program=(sys.executable,))


def run(ft: "Launcher", text: str, *args: object) -> "Command":
    command = start(ft, text, *args)
    assert command.wait() == 0, command.stderr
    return command


def test_a_function_of_the_main_program_from_a_thread_of_a_busy_process(ft: "Launcher") -> None:
    """The caller has what an agent must not have: threads, and gRPC loaded."""
    command = run(
        ft,
        """
def modes():
    folder, = glob.glob(tempfile.gettempdir() + "/ft-run-api-*")
    return {name: oct(os.stat(path).st_mode & 0o777)
            for name, path in [("folder", folder), ("call", folder + "/call")]}

def work(scale, *, bias=0):
    return scale * rank() + bias, sys.argv[1:], modes()

def launch():
    results.update(elastic_launch(LaunchConfig(1, 1, 3), work)(10))

results = {}
if __name__ == "__main__":
    import grpc
    channel = grpc.insecure_channel("127.0.0.1:1")
    channel.subscribe(print, try_to_connect=True)
    thread = threading.Thread(target=launch)
    thread.start()
    thread.join()
    print(results, "torch" in sys.modules, flush=True)
    channel.close()
""",
        "an argument",
    )
    each = "['an argument'], {'folder': '0o700', 'call': '0o600'}"
    expected = f"{{0: (0, {each}), 1: (10, {each}), 2: (20, {each})}} False"
    assert expected in command.stdout.splitlines()


def test_the_values_are_those_of_the_last_round(ft: "Launcher", free_port: int) -> None:
    """Rank 0 has returned once when rank 2, on the other node, fails; all run again."""
    text = """
def work(gate):
    if rank() == 2 and restarts() == 0:
        open(gate).read()  # until the test lets go
        raise OSError("out of ink")
    return f"{rank()}/{restarts()}"

if __name__ == "__main__":
    port, nproc, gate = sys.argv[1:]
    config = LaunchConfig(2, 2, int(nproc), rdzv_endpoint=f"127.0.0.1:{port}", run_id="two",
                          rdzv_backend="c10d", max_restarts=1)
    print(elastic_launch(config, work)(gate), flush=True)
"""
    gate = ft.folder / "gate"
    import os

    os.mkfifo(gate)
    first = start(ft, text, free_port, 2, gate)
    first.expect("hosted here")
    second = start(ft, text, free_port, 1, gate)
    first.expect("all 2 worker.* finished; waiting for the other nodes")
    os.close(os.open(gate, os.O_WRONLY))
    assert [first.wait(), second.wait()] == [0, 0], first.stderr + second.stderr
    assert first.stdout == "{0: '0/1', 1: '1/1'}\n"
    assert second.stdout == "{2: '2/1'}\n"
    assert "exited with 1: OSError: out of ink" in first.stderr


def test_a_function_that_spawns_a_process_when_the_caller_has_no_main_file(ft: "Launcher") -> None:
    ft.script(
        """
import multiprocessing

def child():
    print("the child ran", flush=True)

def work():
    process = multiprocessing.get_context("spawn").Process(target=child)
    process.start()
    process.join()
    return process.exitcode
""",
        "mine.py",
    )
    text = "import mine; print(elastic_launch(LaunchConfig(1, 1, 1, max_restarts=0), mine.work)())"
    command = ft.run("-c", HEAD + text, program=(sys.executable,), cwd=ft.folder)
    assert command.process.returncode == 0, command.stderr
    assert command.stdout.splitlines() == ["the child ran", "{0: 0}"]


def test_a_failure_is_an_exception_with_the_failures(ft: "Launcher") -> None:
    command = start(
        ft,
        """
def work():
    if rank() == 1:
        raise ValueError("the learning rate is a fish")
    threading.Event().wait()

if __name__ == "__main__":
    config = LaunchConfig(1, 1, 2, LogsSpecs(sys.argv[1]), max_restarts=0)
    try:
        elastic_launch(config, work)()
    except ChildFailedError as error:
        where, failure = error.get_first_failure()
        message = failure.error_file_data["message"]
        assert message["message"] == "ValueError: the learning rate is a fish", message
        assert "is a fish" in message["extraInfo"]["py_callstack"]
        print(error.name, error.exit_code, list(error.failures), where)
        print(failure.rank, failure.exitcode, failure.signal_name(), failure.message)
        print(error)
        raise SystemExit(error.exit_code)
""",
        ft.folder / "logs",
    )
    assert command.wait() == 1
    what = r"rank 1 on node 0 \(\S+\) exited with 1: ValueError: the learning rate is a fish"
    assert re.fullmatch(
        rf"work 1 \[1\] 1\n1 1 <N/A> {what}\nwork failed: {what} \(0 of 0 restarts used\)\n",
        command.stdout,
    )
    assert "\nwork FAILED\n" in command.stderr
    assert 'raise ValueError("the learning rate is a fish")' in command.stderr
    assert ProcessFailure(0, 1, -9, "", "", 0, 0, 0, "h").error_file_data == {"message": "<NONE>"}


def test_a_script_a_program_and_wrong_usage(ft: "Launcher") -> None:
    worker = ft.script("import sys, os\nprint(os.environ['RANK'], sys.argv[1:])\n", "worker.py")
    command = run(
        ft,
        """
os.environ["PET_NNODES"] = "7"  # for another launcher
config = LaunchConfig(1, 1, 1, max_restarts=0)
print(elastic_launch(config, sys.argv[1])("--lr", "0.1"), flush=True)
print(elastic_launch(config, "echo")("local rank ${local_rank}"), flush=True)
for entrypoint in ("nowhere.py", "no-such-program"):
    try:
        elastic_launch(config, entrypoint)()
    except UsageError as error:
        print(error)
""",
        worker,
    )
    lines = command.stdout.splitlines()
    assert lines[:4] == ["0 ['--lr', '0.1']", "{}", "local rank 0", "{}"]
    assert lines[4].startswith("no script 'nowhere.py' in ")
    assert lines[5].startswith("invalid value 'no-such-program' for --no-python: expected")
    assert "Traceback" not in command.stderr


def test_a_program_without_a_main_guard_is_told_so(ft: "Launcher") -> None:
    command = start(ft, "elastic_launch(LaunchConfig(1, 1, 1, max_restarts=0), rank)()\n")
    assert command.wait() == 1
    assert 'expected the launch under `if __name__ == "__main__":`.' in command.stderr


WAITING = """
def work():
    if os.fork() == 0:
        os.setsid()
    os.write(1, b"waiting\\n")  # whole, beside other workers
    threading.Event().wait()

if __name__ == "__main__":
    try:
        elastic_launch(LaunchConfig(1, 1, 2, shutdown_timeout=20), work)()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        raise SystemExit(7)
    except JobInterruptedError as error:
        print(error, flush=True)
        raise SystemExit(error.exit_code)
"""


def agent_of(command: "Command") -> int:
    children = Path(f"/proc/{command.pid}/task/{command.pid}/children").read_text().split()
    (agent,) = map(int, children)
    return agent


@pytest.mark.parametrize("ignores_sigterm", [False, True])
def test_a_killed_caller_leaves_neither_processes_nor_files(
    ft: "Launcher", ignores_sigterm: bool
) -> None:
    text = WAITING
    if ignores_sigterm:
        ignores = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        text = ignores + WAITING.replace("shutdown_timeout=20", "shutdown_timeout=1")
    command = start(ft, text)
    command.expect("waiting", 4)
    command.send(signal.SIGKILL)
    ft.wait_until(lambda: not ft.processes(), "everything is gone")
    assert list(ft.temporary.glob("ft-run-api-*")) == []
    command.wait()
    assert "received SIGTERM: stopping 2 worker(s)" in command.stderr


def test_an_interrupt_of_the_caller_alone_stops_everything_first(ft: "Launcher") -> None:
    command = start(ft, WAITING)
    command.expect("waiting", 4)
    command.send(signal.SIGINT)
    assert command.wait() == 7
    assert command.stdout.endswith("interrupted\n")
    assert not ft.processes()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_to_the_agent_is_told(ft: "Launcher", number: signal.Signals) -> None:
    import os

    command = start(ft, WAITING)
    command.expect("waiting", 4)
    os.kill(agent_of(command), number)
    assert command.wait() == 128 + number
    assert f"{number.name} ended the workers of this node before the job was over" in command.stdout
    ft.wait_until(lambda: not ft.processes(), "everything is gone")


def test_a_worker_that_has_returned_is_held_until_the_others_have(ft: "Launcher") -> None:
    """Rank 0 may have the store that the others need. Seen in the kernel's list of locks."""
    run(
        ft,
        """
def is_held(pid):
    lines = open("/proc/locks").read().splitlines()
    return any(" -> " in line and f" {pid} " in line for line in lines)

def work(pids):
    open(f"{pids}.{rank()}", "w").write(str(os.getpid()))
    while not os.path.exists(pids + ".1"):
        pass  # what has not begun cannot be waited for
    if rank() == 1:
        while not (text := os.path.exists(pids + ".0") and open(pids + ".0").read()):
            pass
        while not is_held(text):
            assert os.path.exists(f"/proc/{text}"), "rank 0 is gone"

if __name__ == "__main__":
    elastic_launch(LaunchConfig(1, 1, 2, max_restarts=0), work)(sys.argv[1])
""",
        ft.folder / "pid",
    )


def test_a_worker_that_fails_is_not_waited_for(ft: "Launcher") -> None:
    run(
        ft,
        """
def work():
    if rank() == 1:
        os._exit(7)

if __name__ == "__main__":
    try:
        elastic_launch(LaunchConfig(1, 1, 2, max_restarts=0), work)()
    except ChildFailedError as error:
        assert error.failures[1].exitcode == 7
""",
    )


def test_a_worker_ends_in_order_and_its_interpreter_is_not_taken_apart(ft: "Launcher") -> None:
    """A thread of a process group that was not destroyed would abort it."""
    command = run(
        ft,
        """
import atexit, ctypes, time

class Global:
    def __del__(self):
        os.write(1, b"taken apart\\n")

def work():
    work.kept = Global()
    atexit.register(print, "at exit")
    threading.Thread(target=lambda: (time.sleep(0.1), print("thread"))).start()
    ctypes.CDLL(None).printf(b"from C\\n")
    print("last line", end="")

if __name__ == "__main__":
    elastic_launch(LaunchConfig(1, 1, 1), work)()
""",
    )
    assert sorted(command.stdout.replace("last line", "").split("\n")) == [
        "",
        "at exit",
        "from C",
        "thread",
    ]
    assert "last line" in command.stdout
