"""``main`` in a program that has child processes of its own."""

import os
import signal
import sys

from ft_run.tests.harness.family import spawner_of

EXIT_CODE = """
import subprocess, sys
from ft_run.launcher.main import main
child = subprocess.Popen(["sh", "-c", "until [ -e up ]; do sleep 0.05; done; exit 6"])
# The worker lets it end, and waits until it has.
state = "state=$(cut -d ' ' -f 3 /proc/$1/stat 2> /dev/null)"
worker = f"touch up; while {state} && [ $state != Z ]; do sleep 0.05; done"
status = main(["--standalone", "--no-python", "sh", "-c", worker, "sh", str(child.pid)])
print("main", status, "child", child.wait())
"""


def test_the_exit_code_of_a_child_belongs_to_the_program(ft):
    program = (sys.executable, ft.script(EXIT_CODE))
    command = ft.run(program=program)
    assert command.stdout == "main 0 child 6\n", command.stderr


SURVIVES = """
import subprocess, sys
from ft_run.launcher.main import main
child = subprocess.Popen(["sh", "-c", "cat; true"], stdin=subprocess.PIPE)
status = main(["--standalone", "--no-python", "sh", "-c", "echo ready; sleep 1000"])
print("main", status, "child", child.poll())
child.communicate(b"still there")
print(child.returncode)
"""


def test_a_child_of_the_program_survives_the_death_of_the_spawner(ft):
    command = ft.start(program=(sys.executable, ft.script(SURVIVES)))
    command.expect("^ready")
    os.kill(spawner_of(command.pid), signal.SIGKILL)
    command.wait()
    assert command.stdout.splitlines()[1:] == ["main 1 child None", "still there0"], command.stderr
