"""Files of the present folder with the names of libraries: the workers' business alone."""

import sys
from collections import Counter
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ft_run.tests.e2e.conftest import Launcher

NAMES = ("click", "grpc", "json", "psutil", "random")

# Notes which process imports it, and is not the library.
SHADOW = """
import os
name = "of the present folder"
with open(os.environ["NOTES"], "a") as notes:
    notes.write(f"{__name__} {'worker' if 'RANK' in os.environ else 'launcher'}\\n")
"""

SCRIPT = """
import click, grpc, json, psutil, random, os
names = {module.name for module in (click, grpc, json, psutil, random)}
os.write(1, (" ".join(names) + "\\n").encode())  # whole, beside the other worker
"""

# In another folder, as an installed program is.
PROGRAM = """
import json, random, sys
from ft_run.launcher.api import LaunchConfig, elastic_launch

def work():
    import json, random
    return json.__name__ + random.choice("!")

if __name__ == "__main__":
    config = LaunchConfig(1, 1, 2, max_restarts=0)
    print(elastic_launch(config, work)())
    print(elastic_launch(config, sys.argv[1])())
"""

AGENT = ("ft-run", "--nproc-per-node", "2")
ALONE = (*AGENT, "--standalone")


@pytest.mark.parametrize(
    "words",
    [
        (*AGENT, "--rdzv-endpoint", "127.0.0.1:0", "script.py"),
        (*ALONE, "--tee", "3", "-m", "script"),
        (*ALONE, "--store", "separate", "script.py"),
        (*ALONE, "--preload", "colorsys", "script.py"),
        pytest.param(
            (*ALONE, "--network-check", "--accelerator", "cpu", "script.py"),
            marks=pytest.mark.slow,
        ),
        ("python", "-m", "ft_run", *ALONE[1:], "script.py"),
    ],
    ids=["agent", "relay", "store", "fork-server", "checks", "module"],
)
def test_the_launcher_does_not_import_them_and_workers_do(
    ft: "Launcher", words: tuple[str, ...], free_port: int
) -> None:
    folder = ft.folder / "present"
    notes = _fill(ft, "present")
    ft.script(SCRIPT, "present/script.py")
    program = ft.program if words[0] == "ft-run" else (sys.executable,)
    words = tuple(word.replace(":0", f":{free_port}") for word in words[1:])
    command = ft.run(*words, program=program, cwd=folder, env={"NOTES": notes})
    assert command.process.returncode == 0, command.stderr
    assert command.stdout.count("of the present folder\n") == 2
    assert _imports(notes) == {f"{name} worker": 2 for name in NAMES}


def test_nor_does_the_agent_of_the_python_api(ft: "Launcher") -> None:
    notes = _fill(ft, "present")
    script = ft.script(SCRIPT, "present/script.py")
    command = ft.run(
        ft.script(PROGRAM, "program.py"),
        script,
        program=(sys.executable,),
        cwd=script.parent,
        env={"NOTES": notes},
    )
    assert command.process.returncode == 0, command.stderr
    assert "{0: 'json!', 1: 'json!'}\n" in command.stdout
    assert command.stdout.count("of the present folder\n") == 2
    assert _imports(notes) == {f"{name} worker": 2 for name in NAMES}


def test_that_the_user_has_put_on_the_path_stay_there(ft: "Launcher") -> None:
    """With PYTHONSAFEPATH Python does not put the present folder there; PYTHONPATH may."""
    ft.script("raise SystemExit('that of PYTHONPATH')", "click.py")
    folder = str(ft.folder)
    command = ft.run(
        *("-m", "ft_run", "--help"),
        program=(sys.executable,),
        cwd=folder,
        env={"PYTHONPATH": folder, "PYTHONSAFEPATH": "1"},
    )
    assert (command.process.returncode, command.stdout) == (1, "")
    assert command.stderr == "that of PYTHONPATH\n"


def _fill(ft: "Launcher", name: str) -> str:
    """Put files with the names of libraries into a new folder; return where imports are noted."""
    (ft.folder / name).mkdir()
    for module in NAMES:
        ft.script(SHADOW, f"{name}/{module}.py")
    return str(ft.folder / "notes")


def _imports(notes: str) -> Counter[str]:
    with open(notes) as file:
        return Counter(line.strip() for line in file)
