"""Timers that workers set themselves, for ``torch.distributed.elastic.timer``."""

import os
from pathlib import Path

import pytest
from ft_run import exit_codes

ENABLED = {"TORCHELASTIC_ENABLE_FILE_TIMER": "1"}
HEAD = """
import json, os, time
fifo = os.environ["TORCHELASTIC_TIMER_FILE"]
def ask(after, scope="train.py#7", **more):
    when = after if after < 0 else time.time() + after
    request = {"version": 1, "pid": os.getpid(), "scope_id": scope, "expiration_time": when}
    with open(fifo, "w") as file:
        file.write(json.dumps(request | {"signal": 9} | more) + "\\n")
"""


def test_a_worker_whose_timer_expires_is_killed_and_the_timer_is_the_cause(ft):
    script = ft.script(HEAD + "ask(0.1) if os.environ['RANK'] == '1' else None\ntime.sleep(600)\n")
    command = ft.start("--standalone", "--nproc-per-node", 2, script, env=ENABLED)
    assert command.wait() == exit_codes.WORKERS_FAILED
    assert "Root cause: rank 1 on node 0" in command.stderr
    assert "its timer 'train.py#7' expired" in command.stderr.split("Root cause: ")[1]


def test_what_is_taken_back_or_is_no_request_of_a_worker_changes_nothing(ft):
    script = ft.script(
        HEAD + "os.write(os.open(fifo, os.O_WRONLY), b'{\\n[]\\n' + b'[' * 3000 + b'\\n5\\n')\n"
        "ask(2)\nask(-1)\n"
        "ask(0, pid=os.getppid())\nask(0, 'no signal', signal=0)\nask(0, 'bad', signal=99999)\n"
        "ask(0, pid=float('inf'))\nask(float('nan'), 'when')\nask(float('inf'), 'never')\n"
        "time.sleep(2.2)\nprint(oct(os.stat(fifo).st_mode & 0o777), fifo)\n"
    )
    command = ft.start("--standalone", script, env=ENABLED)
    assert command.wait() == 0, command.stderr
    assert "expired" not in command.stderr
    assert "Traceback" not in command.stderr
    mode, fifo = command.stdout.split()
    assert mode == "0o600"
    assert not Path(fifo).exists()


def test_a_round_that_is_over_has_no_timers(ft):
    script = ft.script(
        HEAD + "if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n"
        "    ask(0.3)\n    raise SystemExit(3)\n"
        "time.sleep(0.6)\n"
    )
    command = ft.start("--standalone", "--max-restarts", 1, script, env=ENABLED)
    assert command.wait() == 0, command.stderr


def test_the_fifo_is_where_the_user_wants_it_and_takes_the_place_of_an_old_one(ft):
    path = ft.folder / "timers"
    os.mkfifo(path)
    script = ft.script(HEAD + "print(fifo)\n")
    env = ENABLED | {"TORCHELASTIC_TIMER_FILE": str(path)}
    command = ft.start("--standalone", script, env=env)
    assert command.wait() == 0, command.stderr
    assert command.stdout == f"{path}\n"
    path.write_text("of another")
    command = ft.start("--standalone", script, env=env)
    assert command.wait() == exit_codes.USAGE
    assert "(File exists); expected a path that does not exist" in command.stderr
    assert path.read_text() == "of another"


def test_torchs_own_client(ft):
    pytest.importorskip("torch")
    script = ft.script(
        "import os, time\nimport torch.distributed.elastic.timer as timer\n"
        "timer.configure(timer.FileTimerClient(os.environ['TORCHELASTIC_TIMER_FILE']))\n"
        "with timer.expires(after=60):\n    print('in time')\n"
        "with timer.expires(after=0.1, scope='too slow'):\n    time.sleep(600)\n"
    )
    command = ft.start("--standalone", script, env=ENABLED)
    assert command.wait() == exit_codes.WORKERS_FAILED
    assert command.stdout == "in time\n"
    assert "its timer 'too slow' expired" in command.stderr
