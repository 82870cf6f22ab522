"""Event files of several nodes: found, merged, and what in them is no event."""

import json
import os
import resource
from pathlib import Path
from typing import Any

import pytest
from ft_run.errors import UsageError
from ft_run.events.record import Record
from ft_run.launcher.report.reading import Reading, event_files, merged


def line(
    second: float = 1.0, node: str = "a/0", name: str = "master.connected", **more: Any
) -> str:
    record = {
        "time": f"2026-11-25T10:00:{second:09.6f}Z",
        "uptime_s": second,
        "name": name,
        "version": 1,
        "severity": "info",
        "job": "j",
        "attempt": 0,
        "node": node,
        "round": None,
        "text": "",
        "is_again": False,
    }
    return json.dumps(record | more) + "\n"


def read(*paths: Path, job: str | None = None) -> tuple[list[Record], Reading]:
    found = Reading()
    return list(merged(event_files([str(path) for path in paths]), found, job)), found


def write(path: Path, *lines: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(lines))
    return path


def test_the_files_of_all_nodes_are_merged_by_time(tmp_path: Path) -> None:
    first = write(tmp_path / "a", *(line(second, "a/0") for second in (1, 4, 5)))
    other = write(tmp_path / "b", *(line(second, "b/0") for second in (2, 3, 6)))
    records, found = read(first, other)
    assert [record["uptime_s"] for record in records] == [1, 2, 3, 4, 5, 6]
    assert found.events == 6
    assert found.files == {"a/0": {str(first)}, "b/0": {str(other)}}
    assert not found.note


def test_there_may_be_more_files_than_the_soft_limit(tmp_path: Path) -> None:
    files = [write(tmp_path / f"{number}", line(number)) for number in range(50)]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (40, hard))
        records, _ = read(*files)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(records) == 50


def test_a_folder_stands_for_its_event_files_with_the_rotated_ones_first(tmp_path: Path) -> None:
    old = write(tmp_path / "x/run/events.jsonl.1", line(1))
    new = write(tmp_path / "x/run/events.jsonl", line(2))
    other = write(tmp_path / "x/events-b.jsonl", line(3))
    write(tmp_path / "x/run/agent.log", "no event")
    assert event_files([str(tmp_path / "x")]) == [str(other), str(old), str(new)]
    assert event_files([str(new)]) == [str(old), str(new)]


def test_an_event_that_two_files_have_is_one(tmp_path: Path) -> None:
    twice = write(tmp_path / "a", line(1), line(2)), write(tmp_path / "b", line(1), line(2))
    assert len(read(*twice)[0]) == 2


def test_incomplete_lines_are_counted(tmp_path: Path) -> None:
    torn = write(
        tmp_path / "a", line(1), line(2)[:50], "\n", '{"time": 5}\n', "[1]\n", line(3)[:-9]
    )
    records, found = read(torn)
    assert [record["uptime_s"] for record in records] == [1]
    assert found.note == "4 incomplete or invalid line(s) skipped"


def test_events_with_fields_of_other_types_are_counted(tmp_path: Path) -> None:
    progress: dict[str, Any] = {"name": "round.progressed", "round": 1, "node_rank": 0, "steps": 1}
    progress |= {"steps_per_s": 1.0, "idle_s": 0}
    failure: dict[str, Any] = {
        "kind": "meteor",
        "rank": 0,
        "local_rank": 0,
        "node_rank": 0,
        "host": "h",
    }
    failed: dict[str, Any] = {"name": "worker.failed", "round": 1, "node_rank": 0}
    failure |= {"pid": 1, "exit_code": 1, "time_s": 1}
    limit: dict[str, Any] = {"name": "workers.fenced", "limit_s": None}  # was infinite
    good = [progress, limit, failed | {"failure": failure | {"crater": 3}}]
    bad: list[dict[str, Any]] = [
        {"is_again": 1},
        *({"uptime_s": -1}, {"uptime_s": 1e12}, {"time": "yesterday"}),
        {"time": "2026-02-30T01:02:03.000000Z"},
        *(progress | {"steps": "1"}, progress | {"idle_s": None}, progress | {"node_rank": True}),
        *({**limit, "limit_s": "1"}, {"name": "round.progressed"}),
        *(failed | {"failure": one} for one in (None, {}, failure | {"host": 7})),
        {"name": "workers.outlived_kill", "pids": ["1"], "after_s": 1, "with_gpus_s": 2},
        {"name": "gpu.memory_held", "held": {"GPU-1": "much"}},
    ]
    lines = [line(second, **more) for second, more in enumerate([*good, *bad])]
    records, found = read(write(tmp_path / "a", *lines))
    assert [record["uptime_s"] for record in records] == [0, 1, 2]
    assert found.torn == len(bad)


def test_events_of_a_later_release_are_counted(tmp_path: Path) -> None:
    later = write(
        tmp_path / "a",
        *(line(1), line(2, name="worker.levitated"), line(3, version=2)),
        line(4, name="events.lost", lines=7, reason="disk full"),
    )
    records, found = read(later)
    assert [record["uptime_s"] for record in records] == [1, 4]
    assert found.note == (
        "2 event(s) of a later release skipped; "
        "7 event(s) that could not be written when they happened"
    )


def test_a_node_that_the_master_has_renamed_has_one_name(tmp_path: Path) -> None:
    renamed = line(3, "vm/1", "agent.renamed", proposed="vm/0", given="vm/1")
    other = write(tmp_path / "b", line(2, "vm/0"), renamed, line(4, "vm/1"))
    records, _ = read(write(tmp_path / "a", line(1, "vm/0")), other)
    assert [record["node"] for record in records] == ["vm/0", "vm/1", "vm/1", "vm/1"]
    earlier = line(2, "vm/0", uptime_s=50.0)  # of an ft-run before it, in the same file
    records, _ = read(write(tmp_path / "c", earlier, renamed))
    assert [record["node"] for record in records] == ["vm/0", "vm/1"]


def test_what_comes_before_a_node_has_its_name_is_of_that_node(tmp_path: Path) -> None:
    starts = [line(1, ""), line(2, "a/0"), line(3, ""), line(4, "a/1"), line(5, "")]
    records, found = read(write(tmp_path / "a", *starts))
    assert [record["node"] for record in records] == ["a/0", "a/0", "a/1", "a/1", ""]
    assert [*found.files] == ["a/0", "a/1", ""]
    many = [line(second / 1000, "") for second in range(150)]
    records, _ = read(write(tmp_path / "b", *many, line(2, "a/0")))
    assert [record["node"] for record in records].count("") == 100


def test_one_of_several_jobs(tmp_path: Path) -> None:
    both = write(tmp_path / "a", line(1), line(2, job="k"))
    with pytest.raises(UsageError, match="events of several jobs, 'j' and 'k': expected those of"):
        read(both)
    assert [record["job"] for record in read(both, job="k")[0]] == ["k"]
    with pytest.raises(UsageError, match="no events of job 'm' in"):
        read(both, job="m")


def test_what_is_no_event_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read events from .*: no such file; expected"):
        read(tmp_path / "none")
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError, match=r"no event files in .*folder'"):
        read(tmp_path / "folder")
    with pytest.raises(UsageError, match=r"no events in .*empty"):
        read(write(tmp_path / "empty", ""))
    with pytest.raises(UsageError, match=r"no line of .*train.log' is an event in JSON: expected"):
        read(write(tmp_path / "train.log", "step 1\nstep 2\n"))


@pytest.mark.parametrize(
    "number",
    [
        *("NaN", "Infinity", "-Infinity", "1e400", "1.7e308", "1.7E+308", "-2e20"),
        *("9" * 19, "9" * 400, "-" + "9" * 5000, f"{'9' * 400}.5"),
    ],
)
def test_a_line_with_a_number_that_is_not_finite_or_too_large_is_skipped(
    tmp_path: Path, number: str
) -> None:
    """Nothing can be calculated with it, or written to a page."""
    odd = line(2.0, seconds=[0.5]).replace("[0.5]", number)
    records, found = read(write(tmp_path / "events.jsonl", line(), odd, line(3.0)))
    assert [record["uptime_s"] for record in records] == [1.0, 3.0]
    assert found.torn == 1


@pytest.mark.parametrize("number", ["1e3", "1.5e-300", "0.30000000000000004", "9" * 18, "-7E2"])
def test_other_numbers_are_read(tmp_path: Path, number: str) -> None:
    odd = line(2.0, seconds=[0.5]).replace("[0.5]", number)
    ((record,), _) = read(write(tmp_path / "events.jsonl", odd))
    assert record["seconds"] == json.loads(number)


def test_half_a_surrogate_pair_is_replaced_and_a_whole_one_is_not(tmp_path: Path) -> None:
    lines = line(job="a\ud800b"), line(2.0, job="a\ud800b", node="\ud83d\ude00")
    records, found = read(write(tmp_path / "events.jsonl", *lines))
    assert [record["job"] for record in records] == ["a?b", "a?b"]
    assert records[1]["node"] == "\U0001f600"
    assert not found.torn


def test_a_fifo_is_refused(tmp_path: Path) -> None:
    """To open it would wait for ever."""
    write(tmp_path / "events-1.jsonl", line())
    os.mkfifo(path := tmp_path / "events.jsonl")
    with pytest.raises(UsageError, match=f"{path}'?: it is not a regular file"):
        read(tmp_path)


def progress(minute: int, **fields: Any) -> dict[str, Any]:
    """Return a report of progress, one per minute."""
    return {
        "time": f"2031-01-{1 + minute // 1440:02d}T{minute // 60 % 24:02d}:{minute % 60:02d}:00Z",
        "uptime_s": 60.0 * minute,
        "name": "round.progressed",
        "version": 1,
        "job": "j",
        "severity": "debug",
        "attempt": 0,
        "node": "a",
        "round": 1,
        "text": "",
        "node_rank": 0,
        "steps": minute,
        "steps_per_s": 0.1,
        "idle_s": 0.0,
        "doing": "training",
        **fields,
    }


def test_many_reports_of_progress_are_read_thinned_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    reports = [progress(minute) for minute in range(12_000)]
    reports[6_000] |= {"doing": "saving"}
    reports[7_000] |= {"steps_per_s": "much"}
    path.write_text("".join(json.dumps(one) + "\n" for one in reports))
    reading = Reading()
    records = list(merged([str(path)], reading))
    assert (reading.events, reading.torn) == (11_999, 1)
    assert len(records) < 4_000
    steps = [record["steps"] for record in records]
    assert steps == sorted(steps)
    assert {0, 5_999, 6_000, 6_001, 6_999, 7_001, 11_999} <= {*steps}
    assert sum(record.get("reports", 1) for record in records) == 11_999
