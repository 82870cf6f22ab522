"""The rooms of the house: which imports which, and that all are installed.

A room is a package, or a module that stands in none (``launcher/options.py``). Imports run down
through ``FLOORS`` only, and within a room in no circle.
"""

import ast
import configparser
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

FLOORS = (
    ("__main__",),
    ("launcher.main", "launcher.api"),
    ("launcher.commands",),
    ("launcher.agent",),
    ("launcher.tuning",),
    ("launcher.workers",),
    (
        *("launcher.preflight", "launcher.preemption", "launcher.metrics", "launcher.cli"),
        "launcher.report",
    ),
    ("launcher.reporting",),
    ("launcher.history",),
    ("launcher.spawner", "launcher.logs", "launcher.saver", "launcher.stacks"),
    ("launcher.options", "launcher.environments"),
    ("launcher.log_options", "launcher.hosts_options"),
    ("launcher.flags",),
    ("launcher.processes", "launcher.startup"),
    ("checks",),
    ("launcher.machine", "launcher.version"),
    ("rendezvous.transport",),
    ("rendezvous.lease", "rendezvous.trust"),
    ("rendezvous.master",),
    ("rendezvous.diagnosis",),
    ("rendezvous.group", "rendezvous.work"),
    ("rendezvous.policy",),
    ("events",),
    ("rendezvous.protocol",),
    ("protos", "errors", "printable"),
    ("defaults", "exit_codes", "tasks", "training"),
    ("training.checkpoints",),
    ("training.data",),
    ("training.worker", "training.activities", "training.ranks", "training.random_numbers"),
    ("training.gloo",),
)
"""From the top down. Rooms of one floor do not import each other."""

SEPARATE = ("launcher.processes.store_process",)
"""Run by the workers' interpreter, which need not have ft-run: imports nothing of it."""


def modules() -> dict[str, Path]:
    """Return the files of the package by module name, less ``ft_run``."""
    found = {}
    for top in ("launcher", "checks", "rendezvous", "events", "protos", "training"):
        for path in (ROOT / top).rglob("*.py"):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            found[name.removesuffix(".__init__")] = path
    for path in ROOT.glob("*.py"):
        if path.stem != "__init__":
            found[path.stem] = path
    return found


MODULES = modules()


def room(module: str) -> str:
    """Return the room that a module is in: the innermost that ``FLOORS`` lists."""
    while module not in ROOMS:
        module, _, _ = module.rpartition(".")
        assert module
    return module


ROOMS = {name: floor for floor, names in enumerate(FLOORS) for name in names}


def imports(name: str) -> Iterator[str]:
    """Yield the modules of this package that a module imports, also inside functions."""
    path = MODULES[name]
    package = ("ft_run", *name.split("."))
    if path.stem != "__init__":
        package = package[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            whole = ".".join(filter(None, (base, node.module)))
            targets = [f"{whole}.{alias.name}" for alias in node.names]
        else:
            continue
        for target in targets:
            if target == "ft_run" or target.startswith("ft_run."):
                found = target.removeprefix("ft_run").removeprefix(".")
                while found and found not in MODULES:
                    found, _, _ = found.rpartition(".")
                if found:  # else it is the package itself: a docstring
                    yield found


@pytest.mark.parametrize("name", sorted(MODULES))
def test_a_module_imports_only_what_is_below_it(name: str) -> None:
    if name in ("launcher", "rendezvous") or name in SEPARATE:
        assert not list(imports(name))
        return
    own = room(name)
    for target in imports(name):
        assert target not in SEPARATE
        other = room(target)
        assert own == other or ROOMS[own] < ROOMS[other], f"{name} imports {target}, which is above"


@pytest.mark.parametrize("name", ROOMS)
def test_no_circle_within_a_room(name: str) -> None:
    inside = {module for module in MODULES if module not in ("launcher", "rendezvous")}
    inside = {module for module in inside if room(module) == name}
    waiting = {
        module: {target for target in imports(module) if target in inside} - {module, name}
        for module in inside
    }
    while free := [module for module, targets in waiting.items() if not targets]:
        for module in free:
            del waiting[module]
        for targets in waiting.values():
            targets.difference_update(free)
    assert not waiting, f"these import each other in a circle: {sorted(waiting)}"


def test_every_package_is_installed() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    listed = setup["options"]["packages"].split()
    packages = {f"ft_run.{name}" for name, path in MODULES.items() if path.stem == "__init__"}
    assert sorted(listed) == sorted({"ft_run", *packages})


def test_every_package_says_what_it_is_for() -> None:
    for name, path in MODULES.items():
        if path.stem == "__init__":
            assert ast.get_docstring(ast.parse(path.read_text())), f"{name} has no docstring"


def test_an_import_in_a_function_states_its_reason() -> None:
    for name, path in MODULES.items():
        text = path.read_text()
        lines = text.splitlines()
        for outer in ast.walk(ast.parse(text)):
            if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef):
                for node in ast.walk(outer):
                    if isinstance(node, ast.Import | ast.ImportFrom):
                        assert "  # " in lines[node.lineno - 1], f"{name}, line {node.lineno}"
