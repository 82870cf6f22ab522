"""What workers write arrives whole, in order, and where it was asked for."""

import contextlib
import json
import os
import re
import subprocess
import sys

import pytest

TIMEOUT_S = 120.0

WORKERS, LINES = 8, 3_000

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


# Becomes a program whose standard error has no reader.
UNREAD = """
import os, sys
read_from, write_to = os.pipe()
os.close(read_from)
os.dup2(write_to, 2)
os.execv(sys.argv[1], sys.argv[1:])
"""


def test_a_standard_error_without_a_reader_ends_no_job(ft):
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


def unread_console() -> tuple[int, int]:
    """Return both ends of a pipe that is full."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"x" * 4096)
    os.set_blocking(writer, True)
    return reader, writer


def start_unread(ft, writer: int, *args: object) -> "subprocess.Popen[bytes]":
    command = (*ft.program, *map(str, args))
    return subprocess.Popen(
        command, stdout=writer, stderr=writer, env=ft.environment(), cwd=ft.folder
    )


@pytest.mark.slow
def test_a_console_that_nothing_reads_does_not_hold_the_end(ft) -> None:
    reader, writer = unread_console()
    script = ft.script("print('y' * 200_000)\nraise SystemExit(7)\n")
    # Both ends stay open here: nothing reads, but something could.
    process = start_unread(ft, writer, "--standalone", "--tee", 3, "--log-dir", ft.folder, script)
    assert process.wait(TIMEOUT_S) == 1
    ft.wait_until(lambda: not ft.processes(), "everything is gone")
    os.close(reader)
    os.close(writer)


def test_a_quiet_job_shows_failures_only_and_json_is_json(ft):
    script = ft.script("import sys; sys.exit(int(sys.argv[1]))")
    quiet = ft.run("--standalone", "-q", script, 0)
    assert (quiet.process.returncode, quiet.stdout, quiet.stderr) == (0, "", "")
    failed = ft.run("--standalone", "-q", "--log-dir", ft.folder / "logs", script, 3)
    first, *_, last = failed.stderr.splitlines()
    assert "exited with 3" in first
    assert "job FAILED" in last
    assert "Root cause: rank 0" in failed.stderr
    loud = ft.run("--standalone", "--log-format=json", "--log-dir", ft.folder / "logs", script, 3)
    records = [json.loads(line) for line in loud.stderr.splitlines()]
    assert records[0]["name"] == "agent.started"
    assert records[-1]["name"] == "job.ended"
    assert records[-1]["verdict"]["exit_code"] == loud.process.returncode == 1
    refused = ft.run("--standalone", "--log-format=json", "--nproc-per-node=gpu", script, 0)
    assert refused.process.returncode == 2
    assert json.loads(refused.stderr)["severity"] == "error"
