"""Imported by the interpreter of an executed worker that is watched, before its script.

It takes the place of the ``sitecustomize`` that the worker would have, if any. It undoes what led
the interpreter here, installs the hook, and imports that one. The worker's interpreter need not
have ft-run: the hook is read by path.
"""

import os
import sys


def _take_off(folder: str) -> "tuple[int, int] | None":
    """Leave environment and path as they would be; return the descriptors, or None."""
    page_fd, stacks_fd, is_empty = os.environ.pop("FT_RUN_HOOK", "::0").split(":")
    path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if folder in path:
        path.remove(folder)
        if path or is_empty == "1":
            os.environ["PYTHONPATH"] = os.pathsep.join(path)
        else:
            del os.environ["PYTHONPATH"]
    if folder in sys.path:
        sys.path.remove(folder)
    sys.path_importer_cache.pop(folder, None)
    return (int(page_fd), int(stacks_fd)) if page_fd else None


def _watch(hook_file: str, descriptors: "tuple[int, int]") -> None:
    with open(hook_file, "rb") as file:
        code = compile(file.read(), hook_file, "exec")
    names: dict[str, object] = {"__name__": "_ft_run_hook", "__file__": hook_file}
    exec(code, names)  # noqa: S102 - a file of this package, in an interpreter that may lack it
    install = names["install_or_say"]
    assert callable(install)
    install(*descriptors)
    for fd in descriptors:
        os.close(fd)


_folder = os.path.dirname(os.path.abspath(__file__))
_descriptors = _take_off(_folder)
if _descriptors is not None:
    _watch(os.path.join(os.path.dirname(_folder), "hook.py"), _descriptors)
del sys.modules["sitecustomize"]
# What it raises, also that there is none, is for the interpreter's `site` as if asked directly.
__import__("sitecustomize")
