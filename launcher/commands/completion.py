"""Completion in a shell: click's own scripts, with the flags of every command."""

import re
from typing import Final

from click import Command
from click.shell_completion import CompletionItem, ShellComplete, get_completion_class

from ...errors import UsageError
from ..cli.check_command import check_command
from ..cli.command_line import CommandLine
from ..cli.hosts_flags import hosts_command
from ..cli.launch_flags import CompletionOptions, launch_command
from ..cli.master_flags import master_command, stacks_command, status_command
from ..cli.policy_flags import policy_command
from ..cli.rehearse_flags import rehearse_command
from ..cli.report_flags import report_command
from ..cli.security_flags import token_command
from ..flags.flag import Flag

_VARIABLE: Final = "_FT_RUN_COMPLETE"
_WORDS: Final = re.compile(r"[a-z0-9]+(\|[a-z0-9]+)+")
"""A metavar that lists words to choose from: ``all|rank0``."""


def command_lines() -> dict[str, CommandLine]:
    """Return every command by its name; ``ft-run`` itself is first, with an empty name."""
    return {
        "": launch_command(),
        "hosts": hosts_command(),
        "master": master_command(),
        "status": status_command(),
        "stacks": stacks_command(),
        "report": report_command(),
        "check": check_command(),
        "policy": policy_command(),
        "token": token_command(),
        "rehearse": rehearse_command(),
    }


def complete(instruction: str) -> int:
    """Print the answer to ``bash_source``, ``zsh_complete`` etc., as in click's scripts."""
    shell, _, question = instruction.partition("_")
    found = get_completion_class(shell)
    if found is None or question not in ("source", "complete"):
        raise UsageError(
            f"invalid value {instruction!r} for {_VARIABLE}: expected bash_source, zsh_source or"
            " fish_source."
        )
    answer = _completing(found)
    print(answer.source() if question == "source" else answer.complete(), flush=True)
    return 0


def print_script(options: CompletionOptions) -> int:
    """Print the script of ``--print-completion``; return the exit code."""
    return complete(f"{options.shell}_source")


def _completing(shell: type[ShellComplete]) -> ShellComplete:
    class Completing(shell):  # type: ignore[valid-type,misc]  # a class that click has for a shell
        def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem]:
            return completions(args, incomplete)

    return Completing(Command("ft-run"), {}, "ft-run", _VARIABLE)


def completions(args: list[str], incomplete: str) -> list[CompletionItem]:
    """Return the completions of a word; ``args`` are the words before it, after ``ft-run``."""
    lines = command_lines()
    name = args[0] if args and args[0] in lines else ""
    line = lines[name]
    # bash splits --tee=3 into three words.
    words = [word for word in args[1 if name else 0 :] if word != "="]
    incomplete = incomplete.removeprefix("=")
    flags = {spelling: flag for flag in line.flags for spelling in flag.opts}
    while words:
        word = words.pop(0)
        if word == "--" or not word.startswith("-"):
            return [CompletionItem(incomplete, type="file")]  # the script's own, or the script
        spelling, equals, _ = word.partition("=")
        flag = flags.get(spelling.replace("_", "-"))
        if flag is not None and flag.takes_value and not equals:
            if not words:
                return _values(flag, incomplete)
            words.pop(0)
    if incomplete.startswith("-"):
        wanted = incomplete.replace("_", "-")
        return [
            CompletionItem(flag.spelling, help=flag.help)
            for flag in line.flags
            if flag.spelling.startswith(wanted)
        ]
    known = [] if args else [word for word in lines if word and word.startswith(incomplete)]
    return [*map(CompletionItem, known), CompletionItem(incomplete, type="file")]


def _values(flag: Flag, incomplete: str) -> list[CompletionItem]:
    metavar = flag.metavar or ""
    if _WORDS.fullmatch(metavar):
        return [CompletionItem(w) for w in metavar.split("|") if w.startswith(incomplete)]
    kind = {"FILE": "file", "DIR": "dir", "PATH": "file"}.get(metavar, "plain")
    return [CompletionItem(incomplete, type=kind)] if kind != "plain" else []
