"""What becomes of a worker that cannot be started, and what is said of it."""

import os
from typing import Any

import pytest
from ft_run.launcher.processes.worker_exec import NOT_EXECUTED, Worker, start_workers
from ft_run.launcher.spawner.messages import Spawned


def started(**changes: Any) -> tuple[Spawned, int]:
    """Start one worker; return what the agent hears of it, and its exit code."""
    worker = Worker(0, ["true"], {}, [], [], [])
    found = start_workers([worker._replace(**changes)], ())
    _, status = os.waitpid(found.pids[0], 0)
    return Spawned(0, tuple(found.pids), dict(found.errors)), os.waitstatus_to_exitcode(status)


def test_what_can_be_started_is() -> None:
    assert started()[0].why_not(["true"]) == {}


def test_a_program_that_is_not_there_is_named() -> None:
    spawned, status = started(argv=["no-such-program"])
    assert spawned.why_not(["no-such-program"]) == {0: "no-such-program: No such file or directory"}
    assert status == NOT_EXECUTED


def test_a_cpu_that_is_not_there_is_not_the_programs_fault() -> None:
    spawned, status = started(cpus=[100_000])
    why = {0: "it cannot be bound to its CPUs (--numa-binding): Invalid argument"}
    assert spawned.why_not(["python"]) == why
    assert not spawned.is_shortage(0)
    assert status == NOT_EXECUTED


def test_a_bug_shows_its_traceback(capfd: pytest.CaptureFixture[str]) -> None:
    _, status = started(env={"A": 5})
    assert "TypeError: " in capfd.readouterr().err
    assert status == NOT_EXECUTED
