# Run by path, as `python -u forkserver_main.py FD`: the fork server, and later the worker that was
# forked from it. The names that a bare interpreter holds at this point are the ones that a script
# finds. Therefore this file has no docstring, and nothing is imported before they are recorded.
_bare = (
    frozenset(__import__("sys").modules),
    frozenset(__import__("sys").path_importer_cache),
    dict(globals()),
)

import importlib.util  # noqa: E402 - after the names are recorded above
import os  # noqa: E402 - after the names are recorded above
import sys  # noqa: E402 - after the names are recorded above

if not getattr(sys.flags, "safe_path", False):
    del sys.path[0]  # the directory of this file
# The package that this file belongs to, regardless of any other ft_run on PYTHONPATH.
_root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_spec = importlib.util.spec_from_file_location(
    "ft_run", os.path.join(_root, "__init__.py"), submodule_search_locations=[_root]
)
assert _spec is not None
sys.modules["ft_run"] = importlib.util.module_from_spec(_spec)
from ft_run.launcher.spawner.forkserver import Bare, serve  # noqa: E402 - from that package

_program = serve(int(sys.argv[1]), Bare(*_bare))
# From here on this process is a worker: this frame is the only one below its program's.
_program.end(_program.function(*_program.arguments))
