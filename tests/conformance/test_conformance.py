"""The same command line under torchrun and ft-run: a user can tell no difference that is not meant.

``rows.py`` has the cases, ``differences.py`` what is meant to differ.
"""

import inspect
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from ft_run import exit_codes
from ft_run.tests.conformance import recordings
from ft_run.tests.conformance.differences import ALWAYS, DIFFERENCES, TABLE
from ft_run.tests.conformance.launchers import Launcher
from ft_run.tests.conformance.observation import PROBE, Observation, observe
from ft_run.tests.conformance.points import POINTS
from ft_run.tests.conformance.row import Row
from ft_run.tests.conformance.rows import REQUIRED, ROWS

NUMACTL = """
import os, sys
_, cpus, *command = sys.argv
numbers = set()
for part in cpus.removeprefix("--physcpubind=").split(","):
    low, _, high = part.partition("-")
    numbers.update(range(int(low), int(high or low) + 1))
os.sched_setaffinity(0, numbers)
os.execvp(command[0], command)
"""
"""The part of numactl that torchrun needs."""


def prepare(launcher: Launcher, row: Row) -> None:
    """Write the files of a run: the same script in all forms in which it can be started."""
    folder = launcher.folder
    (folder / "probe").mkdir()
    text = PROBE + row.script
    launcher.script(text)
    (folder / "package").mkdir()
    for name in ("__init__.py", "__main__.py", "inner.py"):
        (folder / "package" / name).write_text("" if name == "__init__.py" else text)
    (folder / "program").write_text(f"#!{sys.executable}\n{text}")
    python = f'#!/bin/sh\nSTARTED_BY=python exec {sys.executable} "$@"\n'
    (folder / "python").write_text(python)
    (folder / "input").write_text("from the agent's standard input\n")
    (folder / "bin").mkdir()
    (folder / "bin" / "numactl").write_text(f"#!{sys.executable}\n{NUMACTL}")
    (folder / "cgroup").mkdir()
    for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us"):
        (folder / "cgroup" / name).write_text("100000\n")
    (folder / "cgroup" / "cpu.max").write_text("100000 100000\n")
    # Two nodes, of which the first has one CPU, and a GPU on each, the first GPU on the second.
    first, *others = sorted(os.sched_getaffinity(0))
    cpus = {0: [first], 1: others or [first]}
    for node, of_node in cpus.items():
        (folder / "numa" / "node" / f"node{node}").mkdir(parents=True)
        cpulist = ",".join(map(str, of_node))
        (folder / "numa" / "node" / f"node{node}" / "cpulist").write_text(cpulist + "\n")
        device = folder / "numa" / "pci" / f"0000:{2 - node:02}:00.0"
        device.mkdir(parents=True)
        (device / "numa_node").write_text(f"{node}\n")
    for name in ("program", "python", "bin/numactl"):
        (folder / name).chmod(0o755)


def start(launcher: Launcher, row: Row) -> None:
    """Start all agents of a row."""
    prepare(launcher, row)
    places = {
        "{script}": str(launcher.folder / "script.py"),
        "{dir}": str(launcher.folder),
        "{logs}": str(launcher.folder / "logs"),
        "{port}": str(launcher.port),
    }

    def filled(text: str) -> str:
        for name, value in places.items():
            text = text.replace(name, value)
        return text

    env = {"OMP_NUM_THREADS": "1", "PROBE_DIR": str(launcher.folder / "probe")}
    env |= {name: filled(value) for name, value in row.env.items()}
    for further in row.agents:
        words = [*row.args.split(), *further.split(), *row.words]
        launcher.launch(
            *map(filled, words),
            env=env,
            surroundings=row.surroundings,
            stdin=str(launcher.folder / "input"),
        )


def finish(launcher: Launcher, row: Row) -> Observation:
    """Do to the job what the row says, wait for its end, and look at it."""
    if row.act is not None:
        row.act(launcher, launcher.commands)
    for command in launcher.commands:
        command.wait()
    return observe(launcher, launcher.commands, row.job_id)


def of(row: Row) -> str:
    """Return what names a recording of this row."""
    return recordings.of_row(row, inspect.getsource(prepare), inspect.getsource(start), NUMACTL)


BY_CHANCE = re.compile(r"agent \d: traceback of the launcher")
"""If the agent that hosts the store leaves torchrun's exit barrier first, others that still wait
there log a traceback (``SimpleElasticAgent._exit_barrier``)."""


def by_torchrun(row: Row, request: pytest.FixtureRequest) -> Observation:
    """Return what is to be seen of torchrun: as recorded, or run here, compared or recorded."""
    mode = recordings.mode(request, row.since)
    recorded = None
    if mode in ("recorded", "live"):
        recorded = recordings.replayed(recordings.load(row.name, of(row), row.since))
        if mode == "recorded":
            return recorded
    torchrun = request.getfixturevalue("torchrun")
    start(torchrun, row)
    seen = finish(torchrun, row)
    if mode == "record":
        recordings.save(row.name, of(row), recordings.recorded_form(seen), row.since)
    elif recorded is not None:
        found = seen.differences(recorded)
        found = {fact: both for fact, both in found.items() if not BY_CHANCE.fullmatch(fact)}
        assert found == {}, "torchrun is not as recorded"
        return recorded
    return seen


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_row(
    row: Row,
    ft_run: Launcher,
    request: pytest.FixtureRequest,
    record_property: Callable[[str, object], None],
) -> None:
    if row.needs_root and os.geteuid() != 0:
        pytest.skip("needs root")
    start(ft_run, row)
    theirs, ours = by_torchrun(row, request), finish(ft_run, row)
    met: set[str] = set()
    unexplained = []
    for fact, (there, here) in theirs.differences(ours).items():
        for name in (*row.differs, *ALWAYS):
            if DIFFERENCES[name].explains(fact, there, here):
                met.add(name)
                break
        else:
            unexplained.append(f"{fact}\n    torchrun: {there!r}\n    ft-run:   {here!r}")
    assert not unexplained, "\n".join(unexplained)
    assert not set(row.differs) - met, "differences that are not met any more"
    if row.differs:
        assert_one_sentence(ft_run)
    record_property("conformance", verdict(met))


def assert_one_sentence(launcher: Launcher) -> None:
    """Assert that ft-run, where it refuses, says why in one sentence."""
    command = launcher.commands[0]
    if command.process.returncode == exit_codes.USAGE:
        assert command.stderr.startswith("ft-run: error: ")
        assert command.stderr.count("\n") == 1


def verdict(met: set[str]) -> str:
    """Return what the summary counts."""
    met -= {*ALWAYS}
    if not met:
        return "same"
    return "better" if any(DIFFERENCES[name].is_better for name in met) else "different on purpose"


def test_what_was_recorded_of_something_else_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recordings, "FOLDER", tmp_path)
    row = Row("a row", "", "--standalone")
    worker = {"worker 0 attempt 0 start 0": "started", "worker 0 attempt 0 start 0: nice": 7}
    seen = Observation({"agent: exit status": 0, "file <dir>/logs": "folder", **worker})
    recordings.save(row.name, of(row), recordings.recorded_form(seen))
    assert recordings.replayed(recordings.load(row.name, of(row))) == seen
    changed = [Row("a row", "", "--nnodes 1"), Row("a row", "", "--standalone", script="pass")]
    for other in (*changed, Row("another row", "", "--standalone")):
        with pytest.raises(pytest.fail.Exception, match="--torchrun=record"):
            recordings.load(other.name, of(other))


def test_nothing_else_is_recorded() -> None:
    names = [row.name for row in ROWS] + [f"point {point.name}" for point in POINTS]
    files = {recordings.path_of(name).name for name in names}
    assert len(files) == len(names)
    newer = {recordings.path_of(row.name, row.since) for row in ROWS if row.since}
    assert newer == {*Path(__file__).with_name("recorded").glob("since-*/*")}
    for folder in Path(__file__).with_name("recorded").iterdir():
        assert {path.name for path in folder.iterdir()} <= files


def test_every_row_of_the_contract_is_covered() -> None:
    from torch.distributed.run import get_args_parser

    actions = get_args_parser()._actions
    flags = {action.dest.replace("_", "-") for action in actions if action.option_strings}
    covered = {item for row in ROWS for item in row.covers.split()}
    assert not {*flags, *REQUIRED} - {"help"} - covered


def table_of(page: Path) -> list[str]:
    text = page.read_text()
    return text[text.index("| | torchrun") :].split("\n\n")[0].splitlines()[2:]


def test_every_difference_is_documented() -> None:
    root = Path(__file__).parents[2]
    rows = [f"| {what} | {a} | {b} |" for what, (a, b) in TABLE.items()]
    assert table_of(root / "docs" / "reference" / "torchrun-differences.md") == rows
    chosen = table_of(root / "README.md")
    assert len(chosen) == 10
    assert chosen == [row for row in rows if row in chosen]
    seen = {difference.entry for difference in DIFFERENCES.values()}
    assert seen | {point.entry for point in POINTS} == {*TABLE}
