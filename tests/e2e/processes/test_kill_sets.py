"""SIGKILL of several processes of one node at once: nothing that a worker started is left.

Of agent, guard and spawner one must be left to do it: where all three are killed by their numbers,
the rest have to be killed too (docs/internals/architecture.md).
"""

import contextlib
import itertools
import os
import signal

import pytest
from ft_run.tests.e2e.processes.test_processes import FAMILY, STUBBORN
from ft_run.tests.harness import family

PROCESSES = ("agent", "guard", "spawner", "fork server", "relay", "worker")
ALL_GUARDIANS = {"agent", "guard", "spawner"}

PAIRS = ["agent + guard", "agent + spawner", "guard + spawner", "spawner + fork server"]
"""One guardian is left. What is in no pair here ends by itself, or with what has started it."""
ALL = [
    " + ".join(names)
    for count in (2, 3)
    for names in itertools.combinations(PROCESSES, count)
    if set(names) != ALL_GUARDIANS
]


def start(ft, *options):
    script = ft.script(STUBBORN)
    command = ft.start(
        *("--standalone", "--nproc-per-node", 2, "--shutdown-timeout", 0.2, *options, script)
    )
    lines = command.expect(r"(worker|child|grandchild) (\d+)", FAMILY)
    return command, [int(line[2]) for line in lines if line[1] == "worker"]


@pytest.mark.parametrize(
    "names",
    [*PAIRS, *(pytest.param(n, marks=pytest.mark.slow) for n in ALL if n not in PAIRS)],
)
def test_nothing_is_left(ft, names):
    command, workers = start(ft, "--preload", "colorsys", "--tee", 3)
    pids = {
        "agent": command.pid,
        "guard": family.guard_of(command.pid),
        "spawner": family.spawner_of(command.pid),
        "fork server": family.fork_server_of(command.pid),
        "relay": family.relay_of(command.pid),
        "worker": workers[0],
    }
    for name in names.split(" + "):
        with contextlib.suppress(ProcessLookupError):  # the others' end may have ended it
            os.kill(pids[name], signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):  # what was killed need not end the job
        command.send(signal.SIGTERM)
    command.wait()
    ft.wait_until(lambda: not ft.processes(), "everything is gone")


def test_killall_by_name_leaves_nothing(ft):
    command, _ = start(ft)
    named = [pid for pid in ft.processes() if family.name_of(pid) == "ft-run"]
    assert sorted(named) == sorted([command.pid, family.spawner_of(command.pid)])
    shown = [pid for pid in ft.processes() if "ft-run" in family.command_of(pid)]
    assert shown == named, "nor does `pkill -f ft-run` meet the guard"
    for pid in named:
        os.kill(pid, signal.SIGKILL)
    ft.wait_until(lambda: not ft.processes(), "everything is gone")


@pytest.mark.parametrize(
    ("frozen", "number"),
    [
        ("guard", signal.SIGKILL),
        ("spawner", signal.SIGTERM),
        pytest.param("guard", signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param("spawner", signal.SIGKILL, marks=pytest.mark.slow),
    ],
)
def test_a_process_that_was_stopped_is_no_obstacle(ft, frozen, number):
    command, _ = start(ft)
    pids = {"guard": family.guard_of, "spawner": family.spawner_of}
    os.kill(pids[frozen](command.pid), signal.SIGSTOP)
    command.send(number)
    assert command.wait() in (128 + number, -number)
    assert "survives SIGKILL" not in command.stderr
    ft.wait_until(lambda: not ft.processes(), "everything is gone")
