"""``--events``: what jobs report as lines of JSON, and where their time went."""

import json
import os
import re
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest
from ft_run.events import schema

if TYPE_CHECKING:
    from ft_run.tests.e2e.conftest import Launcher

VALIDATOR = jsonschema.Draft202012Validator(schema.json_schema())
TOLERANCE_S = 0.3
"""The time from what a worker does to its event, on a loaded machine."""

# Does 20 steps in 2 s, fails, goes back to step 10 and does another 10.
STEPS = """
import os, sys, time
from ft_run.training import activity, progress
attempt, rank = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), os.environ["RANK"]
time.sleep(0.5)
first, last = ((0, 20), (10, 20))[attempt]
for step in range(first, last):
    progress(step + 1)
    time.sleep(0.1)
with activity("evaluate"):
    time.sleep(0.3)
    with activity("saving"):
        time.sleep(0.2)
open(f"{sys.argv[1]}/{attempt}.{rank}", "w").close()
if attempt == 0:
    while not os.path.exists(f"{sys.argv[1]}/0.{1 - int(rank)}"):
        time.sleep(0.001)
    os.kill(os.getpid(), 9) if rank == "1" else time.sleep(1000)
"""


def lines_of(lines: Iterable[bytes]) -> list[dict[str, Any]]:
    """Return the records of whole, valid lines."""
    records = []
    for line in lines:
        assert line.endswith(b"\n")
        records.append(json.loads(line))
        VALIDATOR.validate(records[-1])
    return records


def test_the_events_of_a_job_say_where_its_time_went(ft: "Launcher") -> None:
    logs, file = ft.folder / "logs", ft.folder / "e.jsonl"
    times = ft.folder / "times"
    times.mkdir()
    job = ft.run(
        *("--standalone", "--nproc-per-node", 2, "--max-restarts", 1, "--watch-workers"),
        *("--events", file, "--log-dir", logs, ft.script(STEPS), times),
    )
    assert job.process.returncode == 0, job.stderr
    records = lines_of(file.read_bytes().splitlines(keepends=True))
    (folder,) = logs.iterdir()
    assert (folder / "events.jsonl").read_bytes() == file.read_bytes()
    own = [line for line in job.stderr.splitlines(keepends=True) if " ft-run " in line]
    assert (folder / "agent.log").read_text() == "".join(own)
    shown = [record["text"] for record in records if record["severity"] != "debug"]
    assert shown == [line.partition(" ft-run ")[2].rstrip("\n") for line in own]

    names = Counter(record["name"] for record in records)
    once = {
        *("agent.started", "node.joined", "worker.failed", "restart.decided", "job.finished"),
        *("workers.succeeded", "time.accounted", "job.ended"),
    }
    twice = ("round.formed", "round.started", "workers.started", "training.started", "round.ended")
    # Once at the first step and once at the end of each round.
    assert names.pop("round.progressed") == 4
    resumed = [r["text"] for r in records if r["name"] == "training.started" and r["down_s"]]
    assert len(resumed) == 1
    assert re.fullmatch(
        r"round=1 node_rank=0 training resumed after \d\.\d s \(step 11\)", resumed[0]
    )
    assert resumed[0] in job.stderr
    del names["workers.stopping"]  # if the order of the master arrives before their end
    assert names == {
        **dict.fromkeys(once, 1),
        **dict.fromkeys(twice, 2),
        "worker.exited": 4,
    }
    killed = next(r for r in records if r["name"] == "worker.exited" and r["rank"] == 1)
    assert (killed["exit_code"], killed["after_stop"], killed["round"]) == (-9, False, 0)
    joined = next(record for record in records if record["name"] == "node.joined")
    assert (joined["host"], joined["workers"]) == (os.uname().nodename, 2)
    ended = [record["steps"] for record in records if record["name"] == "round.ended"]
    assert ended == [20, 20]

    accounted = next(record for record in records if record["name"] == "time.accounted")
    assert accounted["phases"]["evaluate"] == pytest.approx(0.6, abs=TOLERANCE_S)
    assert accounted["phases"]["saving"] == pytest.approx(0.4, abs=TOLERANCE_S)
    assert sum(accounted["phases"].values()) == pytest.approx(accounted["seconds"], abs=1e-3)
    assert accounted["restarts"] == {"worker": 1}
    assert accounted["lost"]["worker"] == pytest.approx(1.0, abs=TOLERANCE_S)
    assert accounted["text"] in job.stderr


# Fails until the third restart. The first time it fills the disk, the last time it frees it.
FILLS = """
import os, sys
attempt, fill = os.environ["TORCHELASTIC_RESTART_COUNT"], sys.argv[1]
if attempt == "0":
    try:
        with open(fill, "wb", buffering=0) as file:
            while file.write(bytes(4096)): pass
    except OSError:
        pass
if attempt == "3":
    os.unlink(fill)
else:
    raise ValueError(attempt * 4000)
"""


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_what_a_full_disk_loses_is_counted(ft: "Launcher") -> None:
    disk, copy = ft.folder / "disk", ft.folder / "copy.jsonl"
    disk.mkdir()
    # A mount namespace of its own ends with its processes: nothing to clean up.
    prepare = f'mount -t tmpfs -o size=64k none {disk} && "$@" && cp {disk}/e.jsonl {copy}'
    program = ("unshare", "--mount", "sh", "-c", prepare, "sh", *ft.program)
    job = ft.run(
        *("--standalone", "--max-restarts", 3, "--events", disk / "e.jsonl"),
        *(ft.script(FILLS), disk / "fill"),
        program=program,
    )
    assert job.process.returncode == 0, job.stderr
    assert f"cannot write to {disk}/e.jsonl: No space left on device" in job.stderr
    records = lines_of(copy.read_bytes().splitlines(keepends=True))
    lost = [record for record in records if record["name"] == "events.lost"]
    assert {record["reason"] for record in lost} == {"No space left on device"}
    every = ("agent.started", "round.started", "round.ended", "job.ended")
    counted = [record["name"] for record in records if record["name"] in every]
    # 1 start, 4 rounds and 1 end; those that are missing are among the lost ones.
    missing = 1 + 4 + 4 + 1 - len(counted)
    assert 0 < missing <= sum(record["lines"] for record in lost)


def test_events_on_standard_output_are_whole_lines_beside_those_of_workers(ft: "Launcher") -> None:
    script = ft.script("import os\nfor n in range(2000): os.write(1, b'worker %d\\n' % n)")
    job = ft.run("--standalone", "--nproc-per-node", 2, "--events", "-", script)
    assert job.process.returncode == 0
    lines = job.stdout.splitlines(keepends=True)
    own = [line.encode() for line in lines if line.startswith("{")]
    assert lines_of(own)[-1]["name"] == "job.ended"
    assert sum(line.startswith("worker ") for line in lines) == 4000
