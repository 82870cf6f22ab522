"""What is slow is not taken to hang: parts that take long, libraries, suspended jobs, mixed.

All run with ``--hang-timeout auto``, several at once. One round has each of them;
``FT_RUN_MIXED_S=3600`` begins another one until an hour is over.
"""

import itertools
import os
import re
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from ft_run.tests.e2e.conftest import Command, Launcher
from ft_run.tests.harness.family import children

HERE = Path(__file__).parent
MIXED_S = float(os.environ.get("FT_RUN_MIXED_S", "0"))
"""No round begins after that."""

SLOW_S = 90.0
"""Above the 60 s of ``auto``, and the 10 s in which the master looks."""

PARTS = {
    "evaluates": "is making progress",
    "evaluates on rank 0": "rank 0 is making progress",
    "accumulates": "is making progress",
    "loads": "",
    "saves": "rank 0 is in a call that may take a long time",
    "compiles": "is in a call that may take a long time",
    "debugs": "rank 0 is in a debugger",
}
"""What takes long, and why it is none: else it was not suspected, and the test shows nothing."""

STOPPED = {"workers": "all ranks are stopped by a signal", "job": ""}
"""What is stopped for a while, and then goes on."""

STACKS = ("torch", "lightning", "accelerate", "transformers")

pytestmark = [pytest.mark.ecosystem, pytest.mark.slow, pytest.mark.timeout(MIXED_S + 3600)]


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several of these at once may take minutes to begin."""
    monkeypatch.setattr("ft_run.tests.e2e.conftest.TIMEOUT_S", 900.0)


class Mixed:
    """Jobs of one round or more, and what was wrong with them."""

    def __init__(self, ft: Launcher) -> None:
        self.ft = ft
        self.wrong: list[str] = []
        self.ended = 0
        self._number = itertools.count()
        self._stacks = itertools.cycle(STACKS)
        self._begun = time.monotonic()

    def one_round(self) -> None:
        """Have each slow thing once, three at a time, and libraries meanwhile."""
        begin = [(self._part, name) for name in PARTS] + [(self._stop, name) for name in STOPPED]
        for index in range(0, len(begin), 3):
            ends = [start(name) for start, name in begin[index : index + 3]]
            until = time.monotonic() + SLOW_S
            while time.monotonic() < until:
                self._stack(next(self._stacks))
            for end in ends:
                end()

    def _start(self, *job: object) -> Command:
        return self.ft.start(
            "--standalone", "--nproc-per-node", 2, "--max-restarts", 1, "-t", 2,
            "--hang-timeout", "auto", *job,
        )  # fmt: skip

    def _stack(self, name: str) -> None:
        """Train with a library; rank 1 fails once."""
        folder = self.ft.folder / f"{name}-{next(self._number)}"
        command = self._start(HERE / f"{name}_stack.py", folder, 1)
        self._take(name, command, r" restart 1/1: .*the fish has bitten", "as expected", 1)
        shutil.rmtree(folder, ignore_errors=True)

    def _part(self, name: str) -> Callable[[], None]:
        command = self._start(HERE / "slow_parts.py", name, SLOW_S)
        return lambda: self._take(name, command, PARTS[name], "trained")

    def _stop(self, which: str) -> Callable[[], None]:
        """Stop processes of a job that trains; what is returned lets them go on."""
        over = self.ft.folder / f"over-{next(self._number)}"
        command = self._start(HERE / "slow_parts.py", "trains", over)
        command.expect("^trains$", count=2)
        (started,) = command.expect(r"pids=(\d+),(\d+)")
        pids = list(map(int, started.groups())) if which == "workers" else family(command.pid)
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)

        def end() -> None:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
            over.touch()
            self._take(f"{which} stopped", command, STOPPED[which], "trained")

        return end

    def _take(
        self, name: str, command: Command, said: str, printed: str, restarts: int = 0
    ) -> None:
        """Wait for the end of a job, which must have gone as it should."""
        status, errors = command.wait(), command.stderr
        is_right = (
            status == 0
            and len(re.findall(r" restart \d/1: ", errors)) == restarts
            and bool(re.search(said, errors))
            and command.stdout.count(printed) == 2
        )
        if not is_right:
            self.wrong.append(f"{name}: exit code {status}\n{errors}\n{command.stdout}")
        self.ended += 1
        verdict = "right" if is_right else "WRONG"
        print(f"{time.monotonic() - self._begun:6.0f} s  {name}: {verdict}", flush=True)  # with -s


def family(pid: int) -> list[int]:
    """Return a process and all that descend from it."""
    return [pid, *(each for child in children(pid) for each in family(child))]


def test_slow_is_not_hung(ft: Launcher) -> None:
    for stack in STACKS:
        pytest.importorskip(stack)
    mixed, until = Mixed(ft), time.monotonic() + MIXED_S
    mixed.one_round()
    while time.monotonic() < until:
        mixed.one_round()
    print(f"{mixed.ended} jobs, {len(mixed.wrong)} of them not as they should be")
    assert not mixed.wrong, "\n\n".join(mixed.wrong)
