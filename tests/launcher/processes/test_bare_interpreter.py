"""Processes of interpreters that may lack the dependencies of ft-run need no other package."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
LOAD = """
import importlib, importlib.util, sys
spec = importlib.util.spec_from_file_location(
    "ft_run", f"{sys.argv[1]}/__init__.py", submodule_search_locations=[sys.argv[1]]
)
sys.modules["ft_run"] = package = importlib.util.module_from_spec(spec)
spec.loader.exec_module(package)
importlib.import_module(f"ft_run.{sys.argv[2]}")
"""


@pytest.mark.parametrize(
    "module", ["launcher.logs.relay", "launcher.spawner.forkserver", "checks.worker"]
)
def test_it_imports_no_other_package(module: str) -> None:
    command = [sys.executable, "-I", "-S", "-c", LOAD, str(ROOT), module]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
