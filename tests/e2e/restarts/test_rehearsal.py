"""``ft-run rehearse`` finds what a script loses, and nothing in scripts that lose nothing."""

import re
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from ft_run.tests.e2e.restarts.rehearsed_scripts import SCRIPTS

if TYPE_CHECKING:
    from ft_run.tests.e2e.conftest import Command, Launcher

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
_LONG_S = 1200
_FORKED = ("--preload", "torch,torch._dynamo,numpy")

PHASES = """
import torch
from ft_run.training import Checkpointer

for fold in range(2):
    torch.manual_seed(fold)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for phase in ("pretrain", "tune"):
        state = {"model": model, "optimizer": optimizer}
        for step in Checkpointer(f"fold{fold}/{phase}", state, seed=1).steps(4):
            optimizer.zero_grad()
            model(torch.ones(3, 4) * step).square().mean().backward()
            optimizer.step()
"""
FREE = """
import os, time
print(os.environ["TORCHELASTIC_RESTART_COUNT"], file=open("starts", "a"))
time.sleep(1)  # its training
"""
FAILS = "raise ValueError('no data')\n"
HANGS = """
import threading
import torch
from ft_run.training import Checkpointer

model = torch.nn.Linear(1, 1)
for step in Checkpointer("checkpoints", {"model": model}).steps(9):
    if step == 3:
        open("hangs", "w").close()
        threading.Event().wait()
"""
DATED = """
import time
import torch
from ft_run.training import Checkpointer

model = torch.nn.Linear(1, 1)
for step in Checkpointer(f"runs/{time.time()}", {"model": model}).steps(9):
    pass
"""


def rehearse(ft: "Launcher", script: Any, *options: Any, workers: int = 1) -> "Command":
    """Rehearse a script and wait for the end, which takes several starts of it."""
    command = ft.start("rehearse", "--nproc-per-node", workers, *options, script)
    command.process.wait(_LONG_S)
    command.wait()
    return command


def rows_of(command: "Command") -> list[str]:
    """Return the rows without those of the undisturbed run, and the last line."""
    lines = command.stdout.splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("undisturbed"))
    return lines[first + 1 :]


def test_variable_outside_the_state_is_named(ft: "Launcher") -> None:
    script = ft.script(SCRIPTS["closure"].text(is_right=False))
    command = rehearse(ft, script, "--steps", 6, *_FORKED, "--only", "worker")
    again, worker, sizes = rows_of(command)
    assert re.fullmatch(r"again +the same bits", again)
    assert worker.startswith("worker killed         after step 2, step 5     DIFFERS")
    assert re.search(r"step \d: model\['weight'\] on rank 0: the state was restored as", worker)
    assert worker.endswith("takes part in steps: rate.count")
    assert re.match(r"snapshots (?!0 )\S+ MB of \S+ GB · checkpoint ", sizes)
    assert command.process.returncode == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.parametrize("is_right", [False, True], ids=["fault", "right"])
def test_faults_are_found_and_nothing_else(ft: "Launcher", name: str, *, is_right: bool) -> None:
    script = ft.script(SCRIPTS[name].text(is_right=is_right))
    command = rehearse(ft, script, "--steps", 8, *_FORKED, "--only", "worker")
    assert command.process.returncode == (0 if is_right else 1), command.stdout
    if is_right:
        assert [line.split()[-3:] for line in rows_of(command)[:1]] == [["the", "same", "bits"]]
    else:
        assert SCRIPTS[name].named in command.stdout


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [1, 2])
def test_digits_example_is_exact_in_all_rows(ft: "Launcher", nodes: int) -> None:
    script = EXAMPLES / "train_digits_snapshots.py"
    command = rehearse(ft, script, "--steps", 12, "--nodes", nodes, workers=3 - nodes)
    assert command.process.returncode == 0, command.stdout
    expected = ["again", "worker killed", "job stopped, new job", "job killed, new job"]
    expected += ["3 workers"] if nodes == 1 else ["node killed, spare", "4 workers"]
    rows = rows_of(command)[:-1]
    assert [row[:22].rstrip() for row in rows] == expected
    assert all("the same " in row for row in rows)
    assert "· checkpoint 0" in rows_of(command)[-1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lightning", "transformers"])
def test_examples_of_libraries_are_exact(ft: "Launcher", name: str) -> None:
    pytest.importorskip(name)
    script = EXAMPLES / f"{name}_snapshots.py"
    command = ft.start("rehearse", "--nproc-per-node", 2, "--steps", 12, script, "checkpoints")
    command.process.wait(_LONG_S)
    assert command.wait() == 0, command.stdout


@pytest.mark.slow
def test_phases_and_folds_count_as_one_training(ft: "Launcher") -> None:
    command = rehearse(ft, ft.script(PHASES), "--steps", 14, *_FORKED)
    assert command.process.returncode == 0, command.stdout
    assert command.stdout.startswith("undisturbed           14 steps")
    assert "after step 2, before tune the same bits" in command.stdout


@pytest.mark.slow
def test_other_directory_in_each_start_is_a_difference(ft: "Launcher") -> None:
    command = rehearse(ft, ft.script(DATED), "--steps", 6, *_FORKED, "--only", "worker")
    assert command.process.returncode == 1
    assert "is this directory the same in each start?" in command.stdout


def test_script_without_a_checkpointer_is_only_restarted(ft: "Launcher") -> None:
    command = rehearse(ft, ft.script(FREE))
    row, line = command.stdout.splitlines()
    assert re.fullmatch(r"worker killed +after \S+ s +the job ended with 0", row)
    assert line.startswith("restarts alone were tried: without a Checkpointer")
    assert (ft.folder / "starts").read_text().split()[-1] == "1"  # of the restart
    assert command.process.returncode == 2


def test_script_that_fails_undisturbed_is_reported(ft: "Launcher") -> None:
    command = rehearse(ft, ft.script(FAILS))
    assert command.process.returncode == 3
    assert "ValueError: no data" in command.stdout
    assert re.search("FAILED +the job ended with exit code 1", command.stdout)


@pytest.mark.slow
def test_script_that_hangs_is_ended(ft: "Launcher") -> None:
    command = rehearse(ft, ft.script(HANGS), "--hang-timeout", 5)
    assert command.process.returncode == 3
    assert "rank 0 on node 0" in command.stdout
    assert re.search("undisturbed +3 steps.*FAILED +the job ended", command.stdout)


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_signal_leaves_neither_process_nor_directory(ft: "Launcher", number: int) -> None:
    command = ft.start("rehearse", "--nproc-per-node", 1, ft.script(HANGS))
    ft.wait_until((ft.folder / "hangs").exists, "the script hangs in its row", 120)
    assert list(ft.temporary.iterdir())
    command.send(number)
    assert command.wait() == 128 + number
    assert list(ft.temporary.iterdir()) == []
    assert ft.processes() == {}
