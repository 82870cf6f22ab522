"""Log files are there after everything: restarts, regroups, and a kill at any moment."""

import contextlib
import json
import os
import random
import re
import signal
from pathlib import Path
from socket import gethostname
from typing import TYPE_CHECKING

import pytest
from ft_run.tests.harness.family import children, guard_of, spawner_of

if TYPE_CHECKING:
    from ft_run.tests.e2e.conftest import Command, Launcher


def contents(run: Path) -> dict[str, dict[str, str]]:
    """Return attempt → file below it → text."""
    return {
        attempt.name: {
            str(path.relative_to(attempt)): path.read_text()
            for path in sorted(attempt.rglob("*"))
            if path.is_file()
        }
        for attempt in sorted(run.glob("attempt_*"))
    }


# Says which round this is by the number of worlds it has seen, fails or waits as it is told.
ROUNDS = """
import json, os, sys, threading
env = os.environ
print("out of attempt", env["TORCHELASTIC_RESTART_COUNT"], "in a world of", env["WORLD_SIZE"])
print("err of attempt", env["TORCHELASTIC_RESTART_COUNT"], file=sys.stderr, flush=True)
if env["TORCHELASTIC_RESTART_COUNT"] == "0":
    gate = open(sys.argv[1], "rw"[int(env["RANK"])])  # until both have written
    if env["RANK"] == "0":
        error = {"message": {"message": "KeyError: fish", "extraInfo": {"timestamp": "1"}}}
        json.dump(error, open(env["TORCHELASTIC_ERROR_FILE"], "w"))
        sys.exit(1)
    threading.Event().wait()
if env["WORLD_SIZE"] == "2":
    threading.Event().wait()
"""


def test_the_files_of_every_attempt_are_kept_over_restarts_and_regroups(
    ft: "Launcher", free_port: int
) -> None:
    logs = ft.folder / "logs"
    args = ("--nnodes", "1:2", "--max-restarts", 1, "--rdzv-endpoint", f"127.0.0.1:{free_port}",
            "--rdzv-id", "kept", "--log-dir", logs)  # fmt: skip
    script, gate = ft.script(ROUNDS), ft.folder / "gate"
    os.mkfifo(gate)
    first = ft.start(*args, "--tee", 3, "--duplicate-stdout-filters", "world", script, gate)
    first.expect("hosted here")
    second = ft.start(*args, "-r", 3, script, gate)
    first.expect(r"err of attempt 1")
    written = "*/attempt_1/0/stderr.log"
    ft.wait_until(
        lambda: [bool(f.read_text()) for f in logs.glob(written)] == [True, True],
        "both have written",
    )
    second.send(signal.SIGTERM)  # the others regroup without it
    assert second.wait() == 128 + signal.SIGTERM
    assert first.wait() == 0, first.stderr
    runs = sorted(logs.iterdir(), key=lambda run: len(list(run.iterdir())))
    assert [len(contents(run)) for run in runs] == [2, 3]
    records = [json.loads(line) for line in (runs[1] / "events.jsonl").read_text().splitlines()]
    joined = [record for record in records if record["name"] == "node.joined"]
    assert [(record["host"], record["workers"]) for record in joined] == [(gethostname(), 1)] * 2
    assert "node.leaving" in {record["name"] for record in records}
    assert len({record["node_id"] for record in joined}) == 2
    leaver, stayer = contents(runs[0]), contents(runs[1])
    for attempts in (leaver, stayer):
        for name, files in attempts.items():
            number = name.removeprefix("attempt_")[0]
            world = 1 if name == "attempt_1.1" else 2
            assert files["0/stdout.log"] == f"out of attempt {number} in a world of {world}\n"
            assert files["0/stderr.log"] == f"err of attempt {number}\n"
    assert list(stayer) == ["attempt_0", "attempt_1", "attempt_1.1"]
    for files in stayer.values():
        assert files["filtered_stdout.log"] == "[default0]:" + files["0/stdout.log"]
    assert [name for name, files in stayer.items() if "0/error.json" in files] == ["attempt_0"]


# Attempt 0 writes a hundred lines and fails. Then two streams of numbered lines, each counted in
# a file once it is written, so that a test can tell what must be in the logs.
TALKER = """
import itertools, os, sys
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    for number in range(100):
        print(f"{number:08} the first attempt")
    sys.exit(1)
count = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
for number in itertools.count():
    for stream in (sys.stdout, sys.stderr):
        stream.write(f"{number:08} " + "é" * 20 + "\\n")
        stream.flush()
    os.pwrite(count, b"%08d" % (number + 1), 0)
"""
LINE = re.compile("([0-9]{8}) é{20}\n")


def lines_of(path: Path) -> int:
    """Return how many lines a log has; fail unless they are whole, in order and from 0."""
    whole, newline, torn = path.read_bytes().decode(errors="surrogateescape").rpartition("\n")
    numbers = [int(match[1]) for match in LINE.finditer(whole + newline)]
    assert numbers == list(range(len(numbers)))
    assert len(whole + newline) == 30 * len(numbers), "something else is between the lines"
    # What was cut off is the beginning of the next line.
    following = f"{len(numbers):08} ".encode() + "é".encode() * 20
    assert following.startswith(torn.encode(errors="surrogateescape"))
    return len(numbers)


def kill(ft: "Launcher", command: "Command", victim: str) -> None:
    """SIGKILL some or all of a job's processes."""
    agent = command.pid
    family = {pid: Path(f"/proc/{pid}/comm").read_text().strip() for pid in ft.processes()}
    relay = [pid for pid in children(agent) if family.get(pid) == "ft-run-relay"]
    guard, spawner = guard_of(agent), [spawner_of(agent)]
    workers = [pid for pid in family if pid not in (agent, *relay, guard, *spawner)]
    victims = {
        "agent": [agent],
        "spawner": spawner,
        "relay": relay,
        "worker": workers[:1],
        "all": list(family),
    }
    for pid in victims[victim]:
        with contextlib.suppress(ProcessLookupError):  # the others' end may have ended it
            os.kill(pid, signal.SIGKILL)


def die_while_talking(ft: "Launcher", flag: str, victim: str, after: int) -> None:
    """Kill ``victim`` when the worker of attempt 1 has written so many lines; check the logs."""
    name = f"{flag.strip('-')}-{victim}-{after}"
    logs, count = ft.folder / "logs", ft.folder / f"count-{name}"
    count.touch()
    command = ft.start("--standalone", "--rdzv-id", name, "--max-restarts", 1, flag, 3,
                       "--log-dir", logs, ft.script(TALKER), count)  # fmt: skip
    ft.wait_until(lambda: int(count.read_bytes() or 0) >= after, f"{after} lines")
    kill(ft, command, victim)
    ft.wait_until(lambda: not ft.processes(), "everything is gone")
    command.wait()
    written = int(count.read_bytes() or 0)
    (run,) = logs.glob(f"{name}_*")
    first = "".join(f"{number:08} the first attempt\n" for number in range(100))
    assert (run / "attempt_0/0/stdout.log").read_text() == first
    # A relay that is killed takes with it what it had not yet read, and nothing else.
    least = 0 if flag == "--tee" and victim in ("relay", "all") else written
    for stream in ("stdout", "stderr"):
        assert lines_of(run / f"attempt_1/0/{stream}.log") >= least


SEED = random.SystemRandom().randrange(2**32)
ANY_MOMENT = [
    (flag, victim)
    for flag in ("--tee", "-r")
    for victim in ("agent", "spawner", "relay", "worker", "all")
    if (flag, victim) != ("-r", "relay")
]


@pytest.mark.parametrize(
    ("flag", "victim"),
    [("--tee", "agent"), ("--tee", "relay"), ("-r", "all")],
)
def test_a_kill_leaves_readable_logs(ft: "Launcher", flag: str, victim: str) -> None:
    print("seed", SEED)
    die_while_talking(ft, flag, victim, random.Random(f"{SEED} {flag} {victim}").randrange(1, 500))


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("repeat", range(10))
def test_a_kill_at_many_moments_leaves_readable_logs(ft: "Launcher", repeat: int) -> None:
    print("seed", SEED)
    moments = random.Random(f"{SEED} {repeat}")
    for flag, victim in ANY_MOMENT:
        die_while_talking(ft, flag, victim, round(10 ** moments.uniform(0, 4)))


def test_without_its_relay_a_job_writes_to_the_log_files_alone(ft: "Launcher") -> None:
    script = ft.script(
        "import os, time\n"
        "attempt = os.environ['TORCHELASTIC_RESTART_COUNT']\n"
        "print('attempt', attempt, flush=True)\n"
        "while attempt == '0':\n"
        "    print('more', flush=True)\n"
        "    time.sleep(0.01)\n"
    )
    env = {"TMPDIR": str(ft.folder)}
    command = ft.start("--standalone", "--max-restarts", 1, "--tee", 3, script, env=env)
    command.expect(r"^\[default0\]:attempt 0")
    kill(ft, command, "relay")
    assert command.wait() == 0
    assert "attempt 1" not in command.stdout
    (log,) = ft.folder.glob("torchelastic_*/*/attempt_1/0/stdout.log")  # not removed
    assert log.read_text() == "attempt 1\n"
    assert "later output goes to the log files only" in command.stderr


def test_an_error_file_that_is_a_fifo_does_not_keep_a_failed_job(ft: "Launcher") -> None:
    """Nothing reads the one of the scheduler."""
    fifo = ft.folder / "error.json"
    os.mkfifo(fifo)
    script = ft.script("raise ValueError('a fault of the script')")
    job = ft.start("--standalone", script, env={"TORCHELASTIC_ERROR_FILE": str(fifo)})
    assert job.wait() == 1
    assert "cannot be written" in job.stderr
