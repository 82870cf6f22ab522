"""Workers of the fork server are children of the subreaper, or none of them runs."""

import os
import subprocess
import sys

import pytest

NO_PROCESS = os.strerror(11)
PROGRAM = """
import os, signal, sys
from ft_run.launcher.processes.prctl import become_subreaper
from ft_run.launcher.processes.tree import children
from ft_run.launcher.spawner import double_fork

become_subreaper()
forks, forked = os.fork, []

def limited():  # the calls of the intermediate process, after the caller's own
    if len(forked) == int(sys.argv[1]):
        raise BlockingIOError(11, "no process")
    forked.append(0)
    return forks()

os.fork = limited
try:
    result = double_fork.double_fork(3)
except OSError as error:
    result = error.errno
if isinstance(result, int) and result < 3:
    signal.pause()
if isinstance(result, list):
    print([os.getsid(pid) == pid for pid in result], children(os.getpid()) == sorted(result))
    for pid in result:
        os.kill(pid, signal.SIGKILL)
else:
    print(os.strerror(result))
for _ in range(len(children(os.getpid()))):
    os.wait()  # does not return if one keeps running
"""


@pytest.mark.parametrize(
    ("possible", "line"),
    [(4, "[True, True, True] True\n"), (0, f"{NO_PROCESS}\n"), (3, f"{NO_PROCESS}\n")],
)
def test_all_processes_or_none_are_forked(possible: int, line: str) -> None:
    command = [sys.executable, "-c", PROGRAM, str(possible)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == line
