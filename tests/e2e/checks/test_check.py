"""``ft-run check`` on one node, as a user meets it."""

import json
import os
import signal
import sys
import venv
from importlib import metadata
from pathlib import Path

import pytest


def test_a_healthy_node_as_json_and_as_a_report(ft):
    """Nothing in the present folder is taken for a module, and the agent needs neither library."""
    wrong_ones_in_the_present_folder(ft)
    for folder in ("bin", "library"):
        (ft.folder / folder).mkdir()
    ft.script("print('talks')\n", "library/talks.py")
    # The same entry point, in an interpreter that tells its modules at the end.
    probe = ft.script(
        "import sys\n"
        "from ft_run.launcher.main import main\n"
        "status = main(sys.argv[1:])\n"
        "print('torch' in sys.modules, 'grpc' in sys.modules, file=sys.stderr)\n"
        "sys.exit(status)\n",
        "bin/probe.py",
    )
    args = ("check", "--nproc-per-node", 2, "--json", "--check-report", ft.folder / "report.json")
    command = ft.run(
        *(*args, "--preload", "torch,talks"),
        program=(sys.executable, str(probe)),
        env={"PYTHONPATH": str(ft.folder / "library")},
    )
    assert command.process.returncode == 0, command.stdout + command.stderr
    assert "preload: imported torch, talks in" in command.stderr
    assert command.stderr.splitlines()[-1] == "False False"
    report = json.loads(command.stdout)
    assert report == json.loads((ft.folder / "report.json").read_text())
    (node,) = report["nodes"]
    assert (node["verdict"], node["reason"]) == ("passed", "")
    assert set(node["metrics"]) == {"compute_tflops", "memory_gb_per_s", "intra_gb_per_s"}
    assert node["facts"]["local_world_size"] == 2
    assert report["conclusion"] == "1 of 1 nodes pass"
    assert sorted(path.name for path in ft.folder.glob("*report*")) == ["report.json"]


@pytest.mark.slow
def test_the_full_level_measures_the_same(ft):
    args = ("--nproc-per-node", 2, "--check-level", "full", "--check-timeout", 300, "--json")
    command = ft.run("check", "--accelerator", "cpu", *args)
    assert command.process.returncode == 0
    (node,) = json.loads(command.stdout)["nodes"]
    assert node["verdict"] == "passed"
    assert set(node["metrics"]) == {"compute_tflops", "memory_gb_per_s", "intra_gb_per_s"}


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_a_device_that_fails_is_named_and_the_exit_status_is_30_whatever_becomes_of_the_report(ft):
    # Refused beforehand is only what can be known then: not that a disk is full.
    env = {"FT_RUN_CHECK_FAULT": "fail@phase=solo", "COLUMNS": "80"}
    disk = ft.folder / "disk"
    disk.mkdir()
    report = disk / "report.json"
    # The mount namespace ends with its processes.
    prepare = (
        f"mount -t tmpfs -o size=64k none {disk} && "
        f'{{ cat /dev/zero > {disk}/fill 2>/dev/null; exec "$@"; }}'
    )
    program = ("unshare", "--mount", "sh", "-c", prepare, "sh", *ft.program)
    command = ft.run("check", "--check-report", report, env=env, program=program)
    assert command.process.returncode == 30
    assert "faulty" in command.stdout
    assert "solo: opening the device: the device failed (injected" in command.stdout
    assert "0 of 1 nodes pass; faulty: " in command.stdout.splitlines()[-1]
    assert f"cannot write --check-report '{report}': No space left on device." in command.stderr
    last = command.stderr.splitlines()[-1]
    assert last.startswith("ft-run: error: this node failed the checks: solo: opening the device")


def test_what_misses_a_minimum_twice_is_a_warning(ft):
    args = ("check", "--min-compute-tflops", "1e6", "--strict")
    command = ft.run(*args, env={"COLUMNS": "160"})
    assert command.process.returncode == 10
    assert " ! " in command.stdout
    assert "less than the required 1e+06" in command.stdout


def test_a_log_folder_that_cannot_be_used_is_wrong_usage_and_no_fault_of_the_node(ft):
    file = ft.script("", "file")
    for nodes in ((), ("--nnodes", 2, "--rdzv-endpoint", "127.0.0.1:1")):
        command = ft.run("check", "--log-dir", file / "logs", *nodes)
        assert command.process.returncode == 2
        assert "there is a file in its place; name a directory with --log-dir" in command.stderr
        assert command.stdout == ""


# An environment that has torch and psutil but neither ft-run nor what else ft-run needs; it notes
# each program that it runs.
OTHER_SITE = """
import os, sys
with open(os.environ["NOTES"], "a") as file:
    file.write(sys.argv[0] + "\\n")
"""


def test_the_interpreter_of_the_workers_checks_too(ft):
    other = ft.folder / "other"
    venv.create(other, symlinks=True, with_pip=False)
    (site,) = other.glob("lib/python*/site-packages")
    (site / "noting.py").write_text(OTHER_SITE)
    torch = metadata.distribution("torch").locate_file("")
    # No sitecustomize: Debian's Python has one of its own, which comes first.
    (site / "other.pth").write_text(f"{torch}\nimport noting\n")
    python, notes = other / "bin" / "python", ft.folder / "notes"
    env = {"PYTHON_EXEC": str(python), "NOTES": str(notes)}
    command = ft.run("check", "--json", "--preload", "torch", "--accelerator", "cpu", env=env)
    assert command.process.returncode == 0, command.stdout + command.stderr
    (node,) = json.loads(command.stdout)["nodes"]
    assert "compute_tflops" in node["metrics"]
    (program,) = notes.read_text().splitlines()
    assert Path(program).name == "run_module.py"
    assert command.stderr.count(f"PYTHON_EXEC={python} is another interpreter") == 1
    command = ft.run("check", env={"PYTHON_EXEC": "/no/such/python"})
    assert command.process.returncode == 2
    assert "PYTHON_EXEC was given '/no/such/python'" in command.stderr


def test_a_check_that_has_no_time_is_worth_retrying(ft):
    (ft.folder / "hangs.py").write_text("import threading; threading.Event().wait()")
    command = ft.run(
        *("check", "--check-timeout", 1, "--preload", "hangs"),
        env={"PYTHONPATH": str(ft.folder)},
    )
    assert command.process.returncode == 20
    assert "the check could not run" in command.stdout


def wrong_ones_in_the_present_folder(ft):
    (ft.folder / "ft_run").mkdir()
    for name in ("torch.py", "psutil.py", "talks.py", "ft_run/__init__.py"):
        ft.script("raise SystemExit('the wrong one')", name)


def test_a_preload_that_fails_is_told(ft):
    """The check goes on, and the node passes."""
    command = ft.run("check", "--preload", "no_such_module", "--accelerator", "cpu")
    assert command.process.returncode == 2
    assert "--preload was given 'no_such_module', but Python finds no module" in command.stderr
    command = ft.run("check", "--preload", "json.no_such", "--accelerator", "cpu")
    assert command.process.returncode == 0
    assert "1 of 1 nodes pass" in command.stdout
    told = command.stderr
    assert "there is no module 'json.no_such'; falling back to normal check worker start" in told


def test_a_script_called_check_still_runs(ft):
    ft.script("print('mine')\n", "check")
    assert ft.run("./check").stdout == "mine\n"


# Notes every interpreter of a check worker.
STARTED = """
import sys
if "preflight.worker_main" in sys.orig_argv:
    open({!r}, "a").write("started\\n")
"""


def test_a_signal_ends_checks_before_training_and_nothing_is_started_after_it(ft):
    noted = ft.folder / "noted"
    ft.script(STARTED.format(str(noted)), "sitecustomize.py")
    hang = {"FT_RUN_CHECK_FAULT": "hang@phase=solo", "LOGLEVEL": "DEBUG"}
    command = ft.start(
        *("--standalone", "--nproc-per-node", 2, "--network-check", "--accelerator", "cpu"),
        ft.script("print('ran')"),
        env={"PYTHONPATH": str(ft.folder), **hang},
    )
    command.expect("checks: .*solo")
    command.send(signal.SIGTERM)
    assert command.wait() == 128 + signal.SIGTERM
    assert not ft.processes()
    assert command.stdout == ""
    assert noted.read_text() == "started\n" * 2
