#!/usr/bin/env python3
"""Make the parts of pages that the code knows, and the manual page: ``python docs/generate.py``.

In the pages of ``reference`` they are between two comments: what stands around them is written by
hand. A test compares the files with what this makes.
"""

import ast
import json
import re
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ft_run import defaults
from ft_run.events import schema
from ft_run.events.event import Event
from ft_run.launcher.cli import rdzv_conf
from ft_run.launcher.cli.command_line import CommandLine
from ft_run.launcher.commands.completion import command_lines
from ft_run.launcher.flags.flag import Flag
from ft_run.launcher.history.accounting import Phase
from ft_run.launcher.metrics.catalogue import METRICS
from ft_run.launcher.metrics.job_metrics import STATES
from ft_run.rendezvous.protocol.timeouts import NO_TIMEOUTS_GIVEN, Timeouts

_ROOT = Path(__file__).resolve().parents[1]
_BEGIN = "<!-- made by docs/generate.py -->\n"
_END = "<!-- end -->\n"

_RETRY = {
    "WORKERS_FAILED": "no",
    "USAGE": "no",
    "POLICY_ENDED_JOB": "no",
    "CHECKS_FAILED": "yes",
    "NODE_EXCLUDED": "on another node",
    "RENDEZVOUS_FAILED": "yes",
    "REFUSED": "no",
}

_KEYS = {
    "join_timeout": "How long nodes wait until enough of them are connected, at the start and for a"
    " replacement; then they exit 40.",
    "last_call_timeout": "How long an elastic job waits for more nodes, once, after its minimum is"
    " reached.",
    "node_grace": "How long the connection of a node may be gone before the node is lost.",
    "node_timeout": "How long a node may be silent before it is lost, `node_grace` included.",
    "master_timeout": "How long nodes wait for a master that is gone; then they stop their workers"
    " and exit 40. For `ft-run master`: how long it keeps a round while it reaches no node.",
    "connect_timeout": "How long the first connection to the master may take; then exit 40.",
    "lease": "With several master hosts: how long leadership is valid without renewal.",
    "fence": "With several master hosts: how long workers keep running without a leader.",
    "rescale_delay": "How long a new node waits for more nodes before the world grows"
    " (`--rescale-delay`, which overrides it).",
    "drain_timeout": "How long all ranks may take to save a snapshot before the world grows, where"
    " the script has a `Checkpointer`; then it grows without. 0: it grows at once.",
    "is_host": "Whether this node hosts the master; by default, the host that the endpoint names.",
}

_JSON_WIDTH = 100

_TYPES = {
    "seconds": "seconds, 0 or more",
    "seconds_above_zero": "seconds, above 0",
    "seconds_or_never": "seconds or `never`",
    "boolean": "true or false",
}


def files() -> dict[str, str]:
    """Return the files of this folder that are made here, by their names."""
    parts = {
        "flags.md": _flags,
        "exit-codes.md": _exit_codes,
        "rdzv-conf.md": _rdzv_conf,
        "environment.md": _environment,
        "events.md": _events,
        "metrics.md": _metrics,
    }
    pages = {f"reference/{name}": _page(name, part()) for name, part in parts.items()}
    return pages | {"reference/events.schema.json": _events_schema(), "ft-run.1": _manual()}


def _page(name: str, part: str) -> str:
    """Return a page with the part that is made here."""
    text = (_ROOT / "docs" / "reference" / name).read_text()
    before, begin, rest = text.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    return f"{before}{begin}{part}{end}{after}"


def _documented(body: list[ast.stmt]) -> Iterator[tuple[str, ast.AnnAssign, str]]:
    """Return (name, assignment, docstring) of each annotated name."""
    for statement, following in zip(body, [*body[1:], None], strict=True):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            text = ""
            if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
                text = _plain(str(following.value.value))
            yield statement.target.id, statement, text


def _plain(docstring: str) -> str:
    """Return a docstring as a line of Markdown."""
    return " ".join(docstring.split()).replace("``", "`")


def _exit_codes() -> str:
    rows = [("code", "name in `ft_run.exit_codes`", "meaning", "retry")]
    body = ast.parse((_ROOT / "exit_codes.py").read_text()).body
    for name, assignment, text in _documented(body):
        assert isinstance(assignment.value, ast.Constant)
        status = str(assignment.value.value)
        if name == "SIGNAL_BASE":
            status, text = status + " + n", text.partition(": ")[2].capitalize()
        rows.append((status, f"`{name}`", text, _RETRY.get(name, "")))
    return _table(rows)


def _rdzv_conf() -> str:
    rows = [("key", "type", "default", "meaning")]
    known = {f"{key}_s": key for key in _KEYS}
    times = {known[name]: getattr(NO_TIMEOUTS_GIVEN, name) for name in Timeouts.__struct_fields__}
    times["rescale_delay"] = defaults.RESCALE_DELAY_S
    for key in rdzv_conf.KEYS:
        default = f"{times[key]:g} s" if key in times else ""
        rows.append((f"`{key}`", _TYPES[rdzv_conf.READERS[key].__name__], default, _KEYS[key]))
    return _table(rows)


def _environment() -> str:
    flags = [flag for flag in command_lines()[""].flags if flag.group != "Help"]
    rows = [(f"`{flag.variables[0]}`", f"`{flag.usage}`") for flag in flags]
    return _table([("variable", "option"), *rows])


def _events() -> str:
    parts = []
    for module in schema.MODULES:
        kinds = [kind for kind in schema.event_classes() if kind.__module__.endswith(f".{module}")]
        rows = [("name", "class", "meaning", "fields", "console line"), *map(_event, kinds)]
        title = "Other" if module == "event" else module.capitalize()
        parts.append(f"\n## {title}\n\n{_table(rows)}")
    return "".join(parts) + "\n"


def _event(kind: type[Event]) -> tuple[str, str, str, str, str]:
    hints = typing.get_type_hints(kind)
    fields = []
    for name, meaning in schema.documented_fields(kind).items():
        about = f": {meaning.rstrip('.')}" if meaning else ""
        fields.append(f"`{name}` ({_type_name(hints[name])}){about}")
    line = f"`{kind.line}`" if kind.line else ""
    text = _plain(kind.__doc__ or "")
    return f"`{kind.name}`", f"`{kind.__name__}`", text, "; ".join(fields), line


def _type_name(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) else re.sub(r"[a-z.]+\.(?=[A-Z])", "", str(hint))


def _metrics() -> str:
    rows = [("metric", "labels", "endpoint", "meaning")]
    for metric in METRICS:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        rows.append((f"`{metric.name}`", labels, metric.source.value, metric.help))
    states = [(f"`{state}`", meaning) for state, meaning in STATES.items()]
    phases = [(f"`{phase.value}`",) for phase in Phase]
    of_nodes = _table([("`state` of a node", "meaning"), *states])
    of_time = _table([("`phase`",), *phases])
    return f"\n{_table(rows)}\n{of_nodes}\n{of_time}\n"


def _events_schema() -> str:
    return _json(schema.json_schema()) + "\n"


def _json(value: Any, indent: int = 0) -> str:
    """Return indented JSON. A value that fits into a line is not split."""
    text = json.dumps(value)
    if indent + len(text) <= _JSON_WIDTH or not isinstance(value, (dict, list)):
        return text
    inside = indent + 1
    if isinstance(value, dict):
        parts = [f"{json.dumps(key)}: {_json(item, inside)}" for key, item in value.items()]
    else:
        parts = [_json(item, inside) for item in value]
    first, last = "{}" if isinstance(value, dict) else "[]"
    lines = f",\n{' ' * inside}".join(parts)
    return f"{first}\n{' ' * inside}{lines}\n{' ' * indent}{last}"


def _flags() -> str:
    parts = []
    for name, line in command_lines().items():
        parts.append(f"\n## {line.name}\n")
        for group in [""] if name else _groups(line):
            parts.append(f"\n### {group}\n\n" if group else "\n")
            flags = [flag for flag in line.flags if group in ("", flag.group)]
            rows = [_row(flag, is_launch=not name) for flag in flags]
            parts.append(_table([("option", "meaning", "also in"), *rows]))
    return "".join(parts) + "\n"


def _row(flag: Flag, *, is_launch: bool) -> tuple[str, str, str]:
    of_torchrun = f"torchrun {flag.since}".rstrip() if is_launch and not flag.ours else ""
    return f"`{flag.usage}`", flag.help, of_torchrun


def _table(rows: Sequence[Sequence[str]]) -> str:
    """Return a table with the first row as its head."""
    head, *body = ([cell.replace("|", "\\|") for cell in row] for row in rows)
    lines = [head, ["---"] * len(head), *body]
    return "".join(f"| {' | '.join(line)} |\n".replace("|  |", "| |") for line in lines)


def _groups(line: CommandLine) -> list[str]:
    return list(dict.fromkeys(flag.group for flag in line.flags))


def _manual() -> str:
    lines = command_lines()
    parts = [
        '.\\" Made by docs/generate.py from the parser.',
        ".TH FT-RUN 1",
        ".SH NAME",
        "ft-run \\- launch PyTorch training on one or more nodes and restart it on failure",
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
        "Every option of ft\\-run has an environment variable, e.g. PET_NNODES=2 or"
        " PET_STANDALONE=1. The command line overrides it.",
        ".SH TIMES",
        "A time is a number of seconds, or has a unit: 90s, 5m (or 5min), 24h, 7d.",
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
        (_ROOT / "docs" / name).write_text(text)


if __name__ == "__main__":
    main()
