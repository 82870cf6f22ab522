"""The recipes for systemd and GitHub Actions, as they stand."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from ft_run import exit_codes
from ft_run.launcher.cli.parse import parse
from ft_run.launcher.options import LaunchOptions
from ft_run.tests.e2e.conftest import EXAMPLES, FT_RUN, Launcher

UNIT = EXAMPLES / "systemd" / "ft-run@.service"
WORKFLOW = EXAMPLES / "github" / "smoke.yml"


def unit(key: str) -> list[str]:
    """Return the values of a key of the unit."""
    return re.findall(rf"^{key}=(.*)$", UNIT.read_text(), re.MULTILINE)


def environment() -> dict[str, str]:
    """Return the variables of the file that the unit reads."""
    lines = UNIT.with_name("train.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("Debian's systemd is not installed: there is no systemd-analyze")
    done = subprocess.run([program, "verify", "--man=no", UNIT], capture_output=True, text=True)
    said = [line for line in done.stderr.splitlines() if UNIT.name in line]
    assert (done.returncode, said) == (0, []), done.stderr
    wrong = tmp_path / UNIT.name
    wrong.write_text(UNIT.read_text().replace("KillMode=mixed", "KillMode=some"))
    done = subprocess.run([program, "verify", "--man=no", wrong], capture_output=True, text=True)
    assert "Failed to parse kill mode specification" in done.stderr


def test_what_the_unit_says_is_a_job_of_this_version(tmp_path: Path) -> None:
    """Its command, with the variables of its file, as systemd expands them."""
    values = environment()
    (command,) = unit("ExecStart")
    words = command.replace("$SCRIPT", values["SCRIPT"]).split()
    assert words[:3] == ["/usr/bin/env", "--", "ft-run"]
    script = tmp_path / "train.py"
    script.touch()
    token = next(word for word in unit("Environment")[0].split() if "TOKEN" in word)
    name, _, path = token.partition("=")
    assert path == "%d/token"
    assert unit("LoadCredential") == ["token:/etc/ft-run/%i.token"]
    options = parse([str(script), *words[4:]], values | {name: "/run/token"})
    assert isinstance(options, LaunchOptions)
    assert len(options.rendezvous.endpoints) == 3
    assert options.rendezvous.trust is not None
    assert options.hang is not None
    assert options.checks is not None
    assert options.preload == ("torch",)
    assert options.script_args == ("--checkpoint-dir", "/mnt/checkpoints")


def test_the_unit_is_started_again_only_where_that_may_help() -> None:
    final = {*map(int, unit("RestartPreventExitStatus")[0].split())}
    assert final == {
        exit_codes.WORKERS_FAILED,
        exit_codes.USAGE,
        exit_codes.POLICY_ENDED_JOB,
        exit_codes.NODE_EXCLUDED,
        exit_codes.REFUSED,
    }
    assert unit("SuccessExitStatus") == ["143"]
    assert int(unit("TimeoutStopSec")[0]) > 30  # --shutdown-timeout


def test_the_unit_stops_in_order(ft: Launcher) -> None:
    """As by ``KillMode=mixed``: SIGTERM to the process that the unit has started alone."""
    script = ft.script(
        "import signal, sys, threading\n"
        "def save(*_): print('saved', flush=True); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, save)\n"
        "print('ready', flush=True)\n"
        "threading.Event().wait()\n"
    )
    (command,) = unit("ExecStart")
    words = shlex.split(command.replace("$SCRIPT", str(script)))
    job = ft.start(
        *words[1:], program=words[:1], env={"PATH": f"{Path(FT_RUN).parent}:/usr/bin:/bin"}
    )
    job.expect("ready")
    job.send(15)
    assert str(job.wait()) in unit("SuccessExitStatus")
    job.expect("saved")
    assert not ft.processes()


def workflow() -> list[dict[str, Any]]:
    """Return the steps of the workflow."""
    jobs = yaml.safe_load(WORKFLOW.read_text())["jobs"]
    (job,) = jobs.values()
    return list(job["steps"])


def test_the_steps_of_the_workflow_are_commands_of_this_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "examples").symlink_to(EXAMPLES)
    monkeypatch.chdir(tmp_path)
    started = []
    for step in workflow():
        text = step.get("run", "")
        subprocess.run(["bash", "-n", "-c", text], check=True)
        prefix = re.findall(r'^train="ft-run (.*)"$', text, re.MULTILINE)
        for line in text.replace("$train", f"ft-run {' '.join(prefix)}").splitlines():
            if line.startswith("ft-run "):
                parse(shlex.split(line)[1:], {})
                started.append(line)
    assert len(started) == 3


@pytest.mark.slow
def test_the_steps_of_the_workflow_run(tmp_path: Path) -> None:
    """All that are commands, in a checkout. What is to be installed is here: ``pip`` says so."""
    (tmp_path / "bin").mkdir()
    pip = tmp_path / "bin" / "pip"
    pip.write_text('#!/bin/sh\necho "$@" >> "$CALLS"\n')
    pip.chmod(0o755)
    (tmp_path / "examples").symlink_to(EXAMPLES)
    calls = tmp_path / "calls"
    path = f"{pip.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    for step in workflow():
        if "run" in step:
            shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
            done = subprocess.run(
                shell, cwd=tmp_path, env=os.environ | {"PATH": path, "CALLS": str(calls)},
                capture_output=True, text=True,
            )  # fmt: skip
            assert done.returncode == 0, f"{step['name']}: {done.stdout}{done.stderr}"
    assert calls.read_text().splitlines()[1] == "install .[examples]"
    assert (tmp_path / "killed").read_bytes() == (tmp_path / "undisturbed").read_bytes()


@pytest.mark.slow  # .ci/run trains by README's command, and all commands of the guide are parsed
@pytest.mark.timeout(400)
@pytest.mark.parametrize("has_token", [False, True], ids=["open", "token"])
def test_the_two_nodes_of_the_guide_train(ft: Launcher, free_port: int, has_token: bool) -> None:
    """By the command of the guide, and with what it says of a token."""
    guide = (EXAMPLES / "README.md").read_text().partition("## Two nodes")[2].partition("\n## ")[0]
    (block,) = re.findall(r"```bash\n(.*?)```", guide, re.DOTALL)
    (ft.folder / "examples").symlink_to(EXAMPLES)
    command = block.replace("\\\n", " ").replace("HOST:29400", f"localhost:{free_port}")
    words = shlex.split(command)
    assert words.pop(0) == "ft-run"
    if has_token:
        for command in ("`ft-run token job.token`", "`--token-file job.token`"):
            assert command in guide
        assert ft.run("token", "job.token").process.returncode == 0
        words[:0] = ["--token-file", "job.token"]
    nodes = ft.start_two(*words)
    assert [node.wait() for node in nodes] == [0, 0], nodes[0].stderr + nodes[1].stderr
    told = nodes[0].stdout + nodes[1].stdout
    assert "rank 1 sends itself SIGKILL in epoch 3" in told
    assert "epoch 10/10" in told
    assert float(re.findall(r"^test accuracy: (.*)$", told, re.MULTILINE)[0]) > 0.95
    for node in nodes:
        assert node.stderr.count("job succeeded: all workers succeeded (1 of 2 restarts used)") == 1
    assert not (ft.folder / "digits-checkpoints-demo").exists()
