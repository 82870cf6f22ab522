"""Runs a module of the launcher in its own process: ``python run_module.py MODULE [ARGS]...``.

``python -m ft_run.launcher.MODULE`` would put the working directory first on ``sys.path``, where a
user's ``json.py`` or ``click.py`` would replace the library. This script always runs this package,
even if the path has another ``ft_run``.
"""

import sys

# Not in a process that a worker spawns with multiprocessing, which runs the main file again under
# another name, with the path of the worker.
if __name__ == "__main__" and not getattr(sys.flags, "safe_path", False):
    del sys.path[0]  # this file's directory: its modules would hide others of the same name

import importlib.util
import os


def main(name: str, arguments: list[str]) -> int:
    """Run ``main`` of a module of ``ft_run.launcher``; return its exit code."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    spec = importlib.util.spec_from_file_location(
        "ft_run", os.path.join(root, "__init__.py"), submodule_search_locations=[root]
    )
    assert spec is not None
    assert spec.loader is not None
    sys.modules["ft_run"] = package = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(package)
    status: int = importlib.import_module(f"ft_run.launcher.{name}").main(arguments)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
