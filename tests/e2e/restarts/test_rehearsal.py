"""``ft-run rehearse`` finds what a script loses, and nothing in scripts that lose nothing."""

import json
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
FREE = "import time\nprint('done')\n"
FAILS = "raise ValueError('no data')\n"
HANGS = """
import threading
import torch
import torch.distributed as dist
from ft_run.training import Checkpointer

dist.init_process_group("gloo")
model = torch.nn.Linear(1, 1)
for step in Checkpointer("checkpoints", {"model": model}).steps(9):
    if step == 3:
        open("hangs", "w").close()
        threading.Event().wait()
"""


def rehearse(ft: "Launcher", script: Any, *options: Any, workers: int = 1) -> "Command":
    """Rehearse a script and wait for the end, which takes several starts of it."""
    command = ft.start("rehearse", "--nproc-per-node", workers, *options, script)
    command.process.wait(_LONG_S)
    command.wait()
    return command


def rehearse_json(ft: "Launcher", script: Any, *options: Any, **more: Any) -> tuple[int, Any]:
    command = rehearse(ft, script, "--json", *options, **more)
    return command.process.returncode, json.loads(command.stdout)["rows"]


@pytest.mark.long
def test_listed_rows_of_a_right_script_are_the_same(ft: "Launcher") -> None:
    script = ft.script(SCRIPTS["average of weights"].text(is_right=True))
    status, rows = rehearse_json(ft, script, "--steps", 8, *_FORKED, "--only", "again,worker")
    assert [row["result"] for row in rows[1:]] == ["the same bits"] * 3
    assert status == 0


@pytest.mark.long
def test_variable_outside_the_state_is_named(ft: "Launcher") -> None:
    script = ft.script(SCRIPTS["closure"].text(is_right=False))
    status, rows = rehearse_json(ft, script, "--steps", 8, *_FORKED, "--only", "worker")
    assert status == 1
    assert [row["result"] for row in rows[1:]] == ["DIFFERS"] * 2
    assert all("takes part in steps: rate.count" in row["note"] for row in rows[1:])


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.parametrize("is_right", [False, True], ids=["fault", "right"])
def test_faults_are_found_and_nothing_else(ft: "Launcher", name: str, *, is_right: bool) -> None:
    script = ft.script(SCRIPTS[name].text(is_right=is_right))
    command = rehearse(ft, script, "--steps", 8, *_FORKED, "--only", "again,worker")
    assert command.process.returncode == (0 if is_right else 1), command.stdout
    assert is_right or SCRIPTS[name].named in command.stdout


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [1, 2])
def test_digits_example_is_exact_in_all_rows(ft: "Launcher", nodes: int) -> None:
    script = EXAMPLES / "train_digits_snapshots.py"
    status, rows = rehearse_json(ft, script, "--steps", 12, "--nodes", nodes, workers=3 - nodes)
    assert status == 0, rows
    expected = ["worker killed"] * 2 + ["job stopped, new job", "job killed, new job"]
    last = ["3 workers"] if nodes == 1 else ["4 workers", "node killed, spare"]
    assert [row["row"] for row in rows] == ["undisturbed", "again", *expected, *last]


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
    status, rows = rehearse_json(ft, ft.script(PHASES), "--steps", 14, *_FORKED)
    assert status == 0, rows
    assert rows[0]["where"].startswith("14 steps")


def test_script_without_a_checkpointer_is_refused(ft: "Launcher") -> None:
    command = rehearse(ft, ft.script(FREE))
    assert command.process.returncode == 2
    assert "uses no Checkpointer" in command.stdout


def test_script_that_fails_undisturbed_is_reported(ft: "Launcher") -> None:
    command = rehearse(ft, ft.script(FAILS))
    assert command.process.returncode == 3
    assert "ValueError: no data" in command.stdout
    assert "ended with exit code 1" in command.stdout


@pytest.mark.slow
def test_script_that_hangs_is_ended(ft: "Launcher") -> None:
    command = rehearse(ft, ft.script(HANGS), "--timeout", 60)
    assert command.process.returncode == 3
    assert "no step was completed for 60 s" in command.stdout


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_leaves_neither_process_nor_directory(ft: "Launcher", number: int) -> None:
    command = ft.start("rehearse", "--nproc-per-node", 2, ft.script(HANGS))
    ft.wait_until((ft.folder / "hangs").exists, "the script hangs in its row", 120)
    assert list(ft.temporary.iterdir())
    command.send(number)
    assert command.wait() == 128 + number
    assert list(ft.temporary.iterdir()) == []
    assert ft.processes() == {}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--nnodes", "2"), "--nnodes has no effect, because a rehearsal runs on this machine"),
        (("--nodes", "3"), "invalid value 3 for --nodes: expected 1 or 2"),
        (("--steps", "2"), "expected a whole number >= 6"),
        (("--only", "all"), "expected some of again, worker, stop, kill, workers, node"),
        (("--max-restarts", "x"), "invalid value"),
    ],
)
def test_bad_options_are_refused(ft: "Launcher", arguments: tuple[str, ...], said: str) -> None:
    command = ft.run("rehearse", *arguments, ft.script(FREE))
    assert command.process.returncode == 2
    assert said in command.stderr


def test_missing_script_is_refused(ft: "Launcher") -> None:
    command = ft.run("rehearse", "no-such-file.py")
    assert command.process.returncode == 2
    assert "no script" in command.stderr
