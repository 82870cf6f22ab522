"""What workers write arrives whole, in order, and where it was asked for."""

import re
import sys
from pathlib import Path

WORKERS, LINES = 8, 20_000

CHATTER = f"""
import os, sys
rank = os.environ["RANK"]
for number in range({LINES}):
    sys.stdout.write(f"{{rank}} {{number:06}} " + "x" * 80 + "\\n")
    sys.stdout.flush()
if rank == "0":
    sys.stdout.write("y" * 10_000_000)
"""


def test_tee_of_eight_loud_workers_loses_and_tears_nothing(ft):
    logs = ft.folder / "logs"
    command = ft.run(
        "--standalone", "--nproc-per-node", WORKERS, "--tee", 3, "--log-dir", logs,
        ft.script(CHATTER),
    )  # fmt: skip
    assert command.process.returncode == 0
    seen: dict[int, list[int]] = {rank: [] for rank in range(WORKERS)}
    long_line = 0
    for line in command.stdout.splitlines():
        match = re.fullmatch(r"\[default(\d)\]:(\d) (\d{6}) x{80}", line)
        if match:
            assert match[1] == match[2]
            seen[int(match[1])].append(int(match[3]))
        else:
            assert re.fullmatch(r"\[default0\]:y+", line)
            long_line += line.count("y")
    assert all(numbers == list(range(LINES)) for numbers in seen.values())
    assert long_line == 10_000_000
    (files,) = logs.glob("*/attempt_0")
    for rank in range(WORKERS):
        text = (files / str(rank) / "stdout.log").read_text()
        assert text.count("\n") == LINES
        assert len(text) == LINES * 90 + (10_000_000 if rank == 0 else 0)


def test_log_files_survive_every_restart(ft):
    script = ft.script(
        "import os\n"
        "count = os.environ['TORCHELASTIC_RESTART_COUNT']\n"
        "print('attempt', count, flush=True)\n"
        "raise SystemExit(int(count) < 2)\n"
    )
    logs = ft.folder / "logs"
    command = ft.run("--standalone", "--max-restarts", 2, "-r", 3, "--log-dir", logs, script)
    assert command.process.returncode == 0
    assert command.stdout == ""
    (run,) = logs.iterdir()
    assert [(run / f"attempt_{n}/0/stdout.log").read_text() for n in range(3)] == [
        f"attempt {n}\n" for n in range(3)
    ]


def test_the_last_words_of_a_worker_are_in_the_report(ft):
    script = ft.script("raise ValueError('the learning rate is a fish')\n")
    command = ft.run("--standalone", "--tee", 2, script)
    assert command.process.returncode == 1
    first = command.stderr[command.stderr.index("Root cause:") :].splitlines()[0]
    assert "rank 0 on node 0" in first
    assert first.endswith("exited with 1: ValueError: the learning rate is a fish")


def test_the_report_begins_a_line_of_its_own_when_a_worker_was_stopped_in_one(ft):
    script = ft.script(
        "import os, pathlib, signal, sys, time\n"
        "ready = pathlib.Path(sys.argv[1])\n"
        "def stop(*_):  # after the agent has said whose failure it is\n"
        "    os.write(2, b'half a li')\n"
        "    os._exit(1)\n"
        "if os.environ['RANK'] == '1':\n"
        "    signal.signal(signal.SIGTERM, stop)\n"
        "    ready.touch()\n"
        "    time.sleep(600)\n"
        "while not ready.exists():\n"
        "    time.sleep(0.01)\n"
        "raise SystemExit(3)\n"
    )
    command = ft.run("--standalone", "--nproc-per-node", 2, script, ft.folder / "ready")
    assert command.process.returncode == 1
    lines = command.stderr.splitlines()
    assert lines[lines.index("half a li") + 1].startswith("Root cause: ")


def test_the_recorded_traceback_is_in_the_report_and_passed_on(ft):
    script = ft.script(
        "import json, os, time\n"
        "error = {'message': {'message': 'KeyError: fish', 'extraInfo': {\n"
        "    'py_callstack': 'Traceback (most recent call last):\\n  in the pond\\nKeyError',\n"
        "    'timestamp': '1700000000'}}}\n"
        "json.dump(error, open(os.environ['TORCHELASTIC_ERROR_FILE'], 'w'))\n"
        "raise SystemExit(1)\n"
    )
    passed_on = ft.folder / "error.json"
    command = ft.run("--standalone", script, env={"TORCHELASTIC_ERROR_FILE": str(passed_on)})
    assert command.process.returncode == 1
    assert "  traceback : Traceback (most recent call last):\n    in the pond" in command.stderr
    assert "KeyError: fish" in passed_on.read_text()


def test_an_out_of_memory_kill_is_called_one(ft):
    import os

    import pytest

    memory = Path("/sys/fs/cgroup/memory")
    if os.geteuid() != 0 or not (memory / "memory.limit_in_bytes").exists():
        pytest.skip("needs root and the v1 memory controller")
    group = memory / f"ft-run-test-{os.getpid()}"
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(200 * 1024 * 1024))
        script = ft.script("data = [bytes(b'x' * 1024 * 1024) for _ in range(1024)]\n")
        enter = f'echo $$ > {group}/cgroup.procs; exec "$@"'
        command = ft.run("--standalone", script, program=("bash", "-c", enter, "bash", *ft.program))
        assert command.process.returncode == 1
        assert "rank 0 on node 0" in command.stderr
        assert "was killed by the kernel's OOM killer (out of memory)" in command.stderr
    finally:
        group.rmdir()


# Becomes a program that has a standard error which nobody will ever read.
UNREAD = """
import os, sys
read_from, write_to = os.pipe()
os.close(read_from)
os.dup2(write_to, 2)
os.execv(sys.argv[1], sys.argv[1:])
"""


def test_a_standard_error_that_nobody_reads_ends_no_job(ft):
    script = ft.script(
        "import os, sys\n"
        "attempt = os.environ['TORCHELASTIC_RESTART_COUNT']\n"
        "print('attempt', attempt, flush=True)\n"
        "sys.exit(attempt == '0')\n"
    )
    command = ft.run(
        *("--standalone", "--max-restarts", 1, "--event-log-handler", "console", script),
        program=(sys.executable, ft.script(UNREAD, "unread.py"), *ft.program),
    )
    assert command.process.returncode == 0
    assert command.stdout == "attempt 0\nattempt 1\n"
