"""``--preload auto`` as a user sees it: a job learns, restarts are forked, the next start too."""

import os
import re
import signal

from ft_run.tests.e2e.conftest import Command

# A step; a module beside the script that has the name of a library; a worker that can be killed.
WORKER = """
import os, sys, threading
warm = "ft_run.training" in sys.modules
import scipy
from ft_run.training import progress
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
progress(attempt)
os.write(1, f"attempt {attempt} warm {warm} pid {os.getpid()}\\n".encode())
if attempt < int(sys.argv[1]):
    threading.Event().wait()
"""

# It takes until the test opens a file, in the fork server only.
SLOW = """
if b"forkserver_main" in open("/proc/self/cmdline", "rb").read():
    open("gate").read()
"""

THREADS = """
if b"forkserver_main" in open("/proc/self/cmdline", "rb").read():
    import threading
    threading.Thread(target=threading.Event().wait, daemon=True).start()
"""


def kill_one(command: Command, attempt: int) -> None:
    """Kill a worker of an attempt when both have written their line."""
    os.kill(int(command.expect(rf"^attempt {attempt} .*pid (\d+)", 2)[0][1]), signal.SIGKILL)


def attempts(command: Command) -> list[tuple[str, str]]:
    """Return each attempt, with whether its workers were forked."""
    return sorted(set(re.findall(r"^attempt (\d) warm (\w+)", command.stdout, re.MULTILINE)))


def preload_lines(command: Command) -> list[str]:
    found = [line.partition("preload: ")[2] for line in command.stderr.splitlines()]
    return [re.sub(r"[\d.]+ s \(\d+ MiB\)", "T", line) for line in found if line]


def test_restarts_are_forked_once_the_modules_are_known(ft):
    """Also those of the next start. A restart during the import does not wait for it."""
    ft.script(SLOW, "scipy.py")
    os.mkfifo(ft.folder / "gate")
    args = ("--standalone", "--nproc-per-node", 2, "--max-restarts", 2, "--preload", "auto",
            "--tune-file", ft.folder / "tuned.json", ft.script(WORKER), 2)  # fmt: skip
    command = ft.start(*args)
    kill_one(command, 0)
    command.expect("^attempt 1", 2)
    (ft.folder / "gate").write_text("")
    command.expect("the next workers are forked")
    kill_one(command, 1)
    assert command.wait() == 0
    assert attempts(command) == [("0", "False"), ("1", "False"), ("2", "True")]
    assert preload_lines(command) == [
        "imported 2 module(s) of scipy, ft_run, which the workers use, in T; the next workers are"
        " forked"
    ]
    assert "waiting for --preload" not in command.stderr

    ft.script("", "scipy.py")
    again = ft.start(*args)
    for attempt in range(2):
        kill_one(again, attempt)
    assert again.wait() == 0
    assert attempts(again) == [(str(attempt), "True") for attempt in range(3)]
    assert preload_lines(again) == ["imported 2 module(s) of scipy, ft_run in T"]


def test_what_is_not_safe_to_fork_is_left_to_the_workers(ft):
    ft.script(THREADS, "scipy.py")
    command = ft.start("--standalone", "--nproc-per-node", 2, "--max-restarts", 1, "--preload",
                       "auto", ft.script(WORKER), 1)  # fmt: skip
    command.expect("preload: ")
    kill_one(command, 0)
    assert command.wait() == 0
    assert attempts(command) == [("0", "False"), ("1", "False")]
    assert preload_lines(command) == [
        "importing scipy starts threads, which a fork does not copy; falling back to normal worker"
        " start"
    ]
