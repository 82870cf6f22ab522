#!/usr/bin/env python3
"""Make flags.md and ft-run.1, the manual page, from the parser: ``python docs/generate.py``.

A test compares both files with what this makes.
"""

import re
from pathlib import Path

from ft_run.launcher.cli.command_line import CommandLine
from ft_run.launcher.commands.completion import command_lines
from ft_run.launcher.flags.flag import Flag

_INTRODUCTION = """\
# Flags

<!-- Made by docs/generate.py from the parser; a change goes there. -->

Every flag of `ft-run` can be set by a variable too, `PET_` and its name: `PET_NNODES=2`. The
command line beats it. Underscores may stand for dashes, and a name may be cut short while it is
unambiguous. Every time is a number of seconds, or has a unit: `90s`, `5m` (or `5min`), `24h`, `7d`.
*torchrun* marks the flags that torchrun has as well, with the first version where it is a new one.
"""


def files() -> dict[str, str]:
    """Return the files of this folder that are made here, by their names."""
    return {"flags.md": _markdown(), "ft-run.1": _manual()}


def _markdown() -> str:
    parts = [_INTRODUCTION]
    for name, line in command_lines().items():
        parts.append(f"## {line.name}\n")
        for group in _groups(line):
            parts += [f"### {group}\n"] * (not name)
            parts.append("| flag | | |\n| --- | --- | --- |")
            parts += [_row(flag, is_launch=not name) for flag in line.flags if flag.group == group]
            parts.append("")
    return "\n".join(parts)


def _groups(line: CommandLine) -> list[str]:
    return list(dict.fromkeys(flag.group for flag in line.flags))


def _row(flag: Flag, *, is_launch: bool) -> str:
    spelling = flag.usage.replace("|", "\\|")
    of_torchrun = f"torchrun {flag.since}".rstrip() if is_launch and not flag.ours else ""
    return f"| `{spelling}` | {flag.help.replace('|', chr(92) + '|')} | {of_torchrun} |"


def _manual() -> str:
    lines = command_lines()
    parts = [
        '.\\" Made by docs/generate.py from the parser.',
        ".TH FT-RUN 1",
        ".SH NAME",
        "ft-run \\- start training on every node, and restart it when it fails",
        ".SH SYNOPSIS",
    ]
    for line in lines.values():
        usages = re.findall(r"^(?:Usage:|      ) (ft-run.*)$", line.text.before, re.MULTILINE)
        parts += [f".B {roff(usage)}\n.br" for usage in usages]
    parts += [".SH DESCRIPTION", roff(_description(lines[""])), ".SH OPTIONS"]
    for name, line in lines.items():
        parts += [".SH " + line.name.upper(), roff(_description(line))] if name else []
        for group in _groups(line):
            parts += [f".SS {group}"] if not name else []
            for flag in line.flags:
                if flag.group == group:
                    parts += [".TP", f".B {roff(flag.usage)}", roff(flag.help)]
    parts += [
        ".SH ENVIRONMENT",
        "Every option of ft\\-run can be set by a variable, such as PET_NNODES=2 or"
        " PET_STANDALONE=1. The command line beats it.",
        ".SH TIMES",
        "Every time is a number of seconds, or has a unit: 90s, 5m (or 5min), 24h, 7d.",
        ".SH EXIT STATUS",
    ]
    for status, meaning in re.findall(r"^  (\S+) +(.*)$", lines[""].text.after, re.MULTILINE):
        parts += [".TP", f".B {roff(status)}", roff(meaning)]
    return "\n".join(parts) + "\n"


def _description(line: CommandLine) -> str:
    """Return the paragraph between the usage and the examples."""
    _, text, *_ = line.text.before.split("\n\n")
    return text


def roff(text: str) -> str:
    """Return text for the formatter of manual pages: no dash breaks, nothing is a request."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^([.'])", r"\\&\1", escaped, flags=re.MULTILINE)


def main() -> None:
    """Write the files."""
    for name, text in files().items():
        Path(__file__).with_name(name).write_text(text)


if __name__ == "__main__":
    main()
