"""``--tune-file``, and what changes from one round to the next."""

import json
import math
import os
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from ft_run.events.event import Event
from ft_run.launcher.options import LaunchOptions, RendezvousOptions, ScriptMode
from ft_run.launcher.tuning.job_values import Tuning
from ft_run.launcher.tuning.loader_trials import LoaderTrials
from ft_run.launcher.tuning.tune_file import Settings, TunedValues, TuneFile, fingerprint
from ft_run.launcher.workers.smaller_parts import NAME, propose
from ft_run.launcher.workers.worker_command import WorkerCommands
from ft_run.launcher.workers.worker_group import WorkerGroup
from ft_run.rendezvous.protocol.carried import CarriedValue
from ft_run.rendezvous.protocol.claim import Past
from ft_run.rendezvous.protocol.messages import Assignment
from ft_run.tests.harness.scene import worker_failure
from ft_run.training.worker.device_memory import VARIABLE
from msgspec.structs import replace

FIRST = Assignment(0, "m", 0, 0, 2, 0, 2, 0, 2, "n", "127.0.0.1", 1, "", None)
JOB = {"script": "a.py", "arguments": ["--lr", "1"]}


def begin(path: Path, values: TunedValues, **job: Any) -> list[Event]:
    """Keep values in a file; return the events."""
    events: list[Event] = []
    TuneFile(str(path), {**JOB, **job}).keep(values, events.append)
    return events


def test_values_are_those_of_the_same_job(tmp_path: Path) -> None:
    path = tmp_path / "tuned.json"
    assert TuneFile(str(path), JOB).values == TunedValues()
    assert begin(path, TunedValues(8, ("torch", "a.b"))) == []
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["tuned.json"]
    known = TuneFile(str(path), JOB)
    assert known.values == TunedValues(8, ("torch", "a.b"))
    assert known.ignored is None
    assert Tuning(known).carried == (CarriedValue(NAME, 8),)
    other = TuneFile(str(path), {**JOB, "script": "b.py", "torch": "2"})
    assert other.values == TunedValues()
    assert str(other.ignored) == (
        f"--tune-file {path} is ignored: it is of a job with another value for: script, torch"
    )
    assert str(TuneFile(str(path), {"script": "a.py"}).ignored).endswith("for: arguments")


def test_values_that_are_in_the_file_are_not_written_again(tmp_path: Path) -> None:
    path = tmp_path / "tuned.json"
    begin(path, TunedValues(8))
    before = path.stat().st_ino
    begin(path, TunedValues(8))
    assert path.stat().st_ino == before
    begin(path, TunedValues(4))
    assert path.stat().st_ino != before


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "{}", "9" * 5000, "[" * 100_000),
        '{"version": 2, "fingerprint": {}, "values": {}}',
    ],
)
def test_what_is_no_tune_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "tuned.json"
    path.write_text(text)
    found = TuneFile(str(path), JOB)
    assert str(found.ignored).endswith("it is not a tune file of this version")
    found.keep(TunedValues(4), lambda _: None)  # replaces it
    assert TuneFile(str(path), JOB).values == TunedValues(4)


@pytest.mark.parametrize(
    "values",
    [
        *({"micro_batch": -1}, {"micro_batch": "2"}, {"micro_batch": 10**9 + 1}),
        *({"preload": "os"}, {"preload": ["os;x"]}, {"preload": ["os"] * 101}, []),
        *({"settings": {"num_workers": 0}}, {"settings": []}),
        *({"settings": {"num_workers": True}}, {"gain": "1"}, {"gain": math.nan}),
        *({"preload": ["os\n"]}, {"settings": {"num_workers": None}}),
    ],
)
def test_values_that_none_of_us_has_written(tmp_path: Path, values: Any) -> None:
    path = tmp_path / "tuned.json"
    begin(path, TunedValues(4))
    path.write_text(json.dumps({**json.loads(path.read_text()), "values": values}))
    assert TuneFile(str(path), JOB).values == TunedValues()


def test_settings_that_earlier_versions_tuned_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "tuned.json"
    begin(path, TunedValues(4))
    settings = {"OMP_NUM_THREADS": 2, "prefetch_factor": 4, 'tuned("a")': "b"}
    content = json.loads(path.read_text())
    content["values"]["settings"] = settings
    path.write_text(json.dumps(content))
    assert TuneFile(str(path), JOB).values == TunedValues(4, settings=Settings(prefetch_factor=4))


def test_a_file_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    assert "not a file that can be read" in str(TuneFile(str(tmp_path), JOB).ignored)
    (event,) = begin(tmp_path / "none" / "tuned.json", TunedValues(4))
    assert str(event).endswith("No such file or directory")
    (tmp_path / "folder").mkdir()
    (event,) = begin(tmp_path / "folder", TunedValues(4))
    assert str(event).endswith("Is a directory")
    assert os.listdir(tmp_path) == ["folder"]  # no draft is left


@pytest.mark.parametrize("mode", [ScriptMode.SCRIPT, ScriptMode.RUN_PATH])
def test_the_fingerprint_changes_with_the_script(tmp_path: Path, mode: ScriptMode) -> None:
    script = tmp_path / "train.py"
    script.write_text("pass")
    options = LaunchOptions(str(script), RendezvousOptions(), ("1",), mode=mode)
    found = fingerprint(options, 2)
    assert json.loads(json.dumps(found)) == found
    script.write_text("pass  # other")
    assert fingerprint(options, 2) != found
    script.write_text("pass")
    assert fingerprint(options, 2) == found
    assert fingerprint(options, 3) != found


def test_a_change_is_reported_once_and_kept_by_rank_0(tmp_path: Path) -> None:
    path, events = tmp_path / "tuned.json", list[str]()
    tuning = Tuning(TuneFile(str(path), JOB))
    tuning.listen(lambda event: events.append(str(event)))
    cause = worker_failure(1, proposal=propose(8, ()))
    four = Past(carried=(CarriedValue(NAME, 4, 1, 8),))
    two = Past(carried=(CarriedValue(NAME, 2, 2, 4),))
    smaller = replace(FIRST, round=1, past=four, cause=cause)
    other = replace(FIRST, round=2, past=four, cause=worker_failure(1))
    again = replace(FIRST, round=3, past=two, cause=cause)
    for assignment in (FIRST, replace(smaller, node_rank=1)):
        tuning.begin(assignment)
        assert not path.exists()
    for assignment in (other, again):
        tuning.begin(assignment)
    assert events == [
        "round=1 node_rank=1 micro_batch 8 -> 4 on all ranks: the samples of each step stay the"
        " same; BatchNorm, dropout and losses across the samples of a batch see smaller parts",
        "round=3 node_rank=0 micro_batch 4 -> 2 on all ranks",
    ]
    assert TuneFile(str(path), JOB).values == TunedValues(2)
    assert tuning.carried == two.carried
    assert Tuning(TuneFile(str(path), JOB)).carried == (CarriedValue(NAME, 2),)


def test_an_ignored_file_is_reported_and_no_value_of_it_is_used(tmp_path: Path) -> None:
    path, events = tmp_path / "tuned.json", list[Event]()
    begin(path, TunedValues(4, ("torch",)), script="b.py")
    tuning = Tuning(file := TuneFile(str(path), JOB))
    tuning.listen(events.append)
    assert events == [file.ignored]
    assert (tuning.carried, tuning.preload) == ((), ())


@pytest.mark.parametrize("auto_tune", ["off", "advise", "on"])
def test_each_value_of_auto_tune_has_its_reports(auto_tune: str) -> None:
    events: list[Event] = []
    tuning = Tuning.of(LaunchOptions("a.py", RendezvousOptions(), auto_tune=auto_tune), 2, {})
    tuning.listen(events.append)
    tuning.begin(FIRST)
    tuning.progressed(cast(WorkerGroup, SimpleNamespace(assignment=FIRST, watches=[None])), 5.0, 3)
    tuning.close()
    expected = {"off": [], "advise": ["tuning.measured"], "on": ["tuning.ended"]}
    assert [event.name for event in events] == expected[auto_tune]


def test_settings_of_a_file_are_offered_only_with_auto_tune(tmp_path: Path) -> None:
    path = tmp_path / "tuned.json"
    begin(path, TunedValues(4, settings=Settings(num_workers=2)))
    file = TuneFile(str(path), JOB)
    assert Tuning(file).carried == (CarriedValue(NAME, 4),)
    offered = Tuning(file, trials=LoaderTrials(2, 1, file)).carried
    assert offered == (CarriedValue(NAME, 4), CarriedValue("num_workers", 2))


def test_what_is_preloaded_is_kept_by_rank_0_beside_the_other_values(tmp_path: Path) -> None:
    path = tmp_path / "tuned.json"
    TuneFile(str(path), JOB).keep(TunedValues(4), lambda _: None)
    tuning = Tuning(TuneFile(str(path), JOB))
    tuning.keep_preload(("torch",))
    tuning.begin(replace(FIRST, node_rank=1))
    tuning.keep_preload(("torch",))
    assert TuneFile(str(path), JOB).values == TunedValues(4)
    tuning.begin(FIRST)
    tuning.keep_preload(("torch", "numpy"))
    assert TuneFile(str(path), JOB).values == TunedValues(4, ("torch", "numpy"))


def test_workers_find_it_in_their_environment() -> None:
    commands = WorkerCommands(LaunchOptions("a.py", RendezvousOptions()), 2, {})
    assert VARIABLE not in commands.env(FIRST, 0, "")
    given = Past(carried=(CarriedValue(NAME, 4),))
    assert commands.env(replace(FIRST, past=given), 0, "")[VARIABLE] == "4"
