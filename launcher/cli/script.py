"""Checks that the script exists, and suggests a correction otherwise."""

import os
import shutil
from collections.abc import Mapping, Sequence
from typing import Final

from ...errors import UsageError
from ..flags.values import BadValue, nearest, refuse, shown
from ..options import ScriptMode

COMMANDS: Final = (
    *("master", "status", "stacks", "check", "policy", "hosts"),
    *("token", "report", "rehearse"),
)


def as_flag(argv: Sequence[str]) -> Sequence[str]:
    """Return ``help``, ``help COMMAND`` or ``version`` as the equivalent flag.

    A script of that name in the working directory takes precedence.
    """
    word, *more = argv or ("",)
    is_script = os.path.isfile(word) or os.path.isfile(os.path.join(word, "__main__.py"))
    if word not in ("help", "version") or is_script:
        return argv
    if word == "version":
        return argv if more else ["--version"]
    if not more or more[0] == "help" or more[0].startswith("-"):
        return ["--help"]
    if more[0] in COMMANDS:
        return [more[0], "--help"]
    guess = nearest(more[0], [*COMMANDS])
    advice = f"did you mean {guess}?" if guess else f"the commands are {', '.join(COMMANDS)}."
    raise UsageError(f"there is no command {shown(more[0])}; {advice}")


def refuse_missing(script: str, mode: ScriptMode, environ: Mapping[str, str]) -> None:
    """Raise ``UsageError`` for a script that no worker could start: every node would fail later."""
    # "-" is the standard input; ${local_rank} is filled in for each worker.
    if script == "-" or "${local_rank}" in script:
        return
    if mode is ScriptMode.MODULE:
        _refuse_file_as_module(script)
    elif mode is ScriptMode.COMMAND:
        _refuse_missing_program(script, environ)
    elif not os.path.exists(script):
        raise UsageError(f"no script {shown(script)} in {_working_directory()};{_advice(script)}")
    elif os.path.isdir(script) and not os.path.exists(os.path.join(script, "__main__.py")):
        raise UsageError(
            f"the script {shown(script)} is a directory without a __main__.py; expected the"
            " path of a Python file."
        )


def _refuse_file_as_module(module: str) -> None:
    if module.endswith(".py") and os.path.isfile(module):
        name = module[:-3].replace(os.sep, ".")
        raise refuse("-m", module, BadValue(f"-m {name}, or {module} without -m", "it is a file"))


def _refuse_missing_program(program: str, environ: Mapping[str, str]) -> None:
    try:
        found = shutil.which(program, path=environ.get("PATH", os.defpath))
    except ValueError:  # a NUL character
        found = None
    if found is None:
        right = "a program on the PATH, or the path of an executable file, e.g. ./train.sh"
        raise refuse("--no-python", program, BadValue(right))


def _advice(script: str) -> str:
    if os.path.isfile(f"{script}.py"):
        return f" did you mean {script}.py?"
    if os.path.basename(script).startswith("python"):
        return " ft-run starts Python by itself: omit it, or use --no-python for a program."
    if os.path.isfile(script.replace(".", os.sep) + ".py"):
        return f" did you mean -m {script}?"
    folder, name = os.path.split(script)
    if (guess := nearest(name, _programs(folder))) is not None:
        return f" did you mean {os.path.join(folder, guess)}?"
    command = nearest(script, [*COMMANDS, "help", "version"])
    if command is not None:
        return f" did you mean the command ft-run {command}?"
    return " expected the path of a Python file, -m MODULE, or --no-python PROGRAM."


def _programs(folder: str) -> list[str]:
    try:
        return [name for name in os.listdir(folder or os.curdir) if name.endswith(".py")]
    except (OSError, ValueError):
        return []


def _working_directory() -> str:
    try:
        return os.getcwd()
    except OSError:
        return "a working directory that is gone"
