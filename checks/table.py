"""The verdicts on all nodes as text: a table, the reasons, the conclusion."""

import io
from collections.abc import Iterable
from typing import Final, Literal

from msgspec.structs import replace
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .records import METRICS, Phase
from .verdict import NodeVerdict, Standing, Verdicts

_STYLES: Final = {
    Standing.PASSED: "green",
    Standing.SLOW: "yellow",
    Standing.FAULTY: "bold red",
    Standing.UNDECIDED: "red",
    Standing.LEFT_OUT: "red",
    Standing.LOST: "red",
}
_WIDE: Final = 120
"""From this terminal width in columns on, the reasons have their own column."""
_OUTLIER: Final = "!"
_MANY: Final = 32
"""Number of nodes that is more than a person reads one by one before a job starts."""


def print_verdicts(verdicts: Verdicts, console: Console) -> None:
    """Write the table, a line for each reason that does not fit into it, and the conclusion.

    Metrics that no node has are left out. Cells of a straggler's slow metrics are marked by ``!``
    and by color. Text that a person would search for line by line is not wrapped.
    """
    metrics = [name for name in METRICS if any(name in node.metrics for node in verdicts.nodes)]
    has_reasons = any(node.text for node in verdicts.nodes)
    reasons_inside = has_reasons and console.width >= _WIDE
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1))
    table.add_column("NODE", overflow="fold")
    table.add_column("SYSTEM", no_wrap=True)
    for name in metrics:
        title, (_, unit) = name.partition("_")[0].upper(), METRICS[name]
        table.add_column(f"{title}\n{unit}", justify="right", no_wrap=True)
    table.add_column("VERDICT", no_wrap=True)
    if reasons_inside:
        table.add_column("REASON", overflow="fold")
    for node in verdicts.nodes:
        cells = [_text(node.node), _facts(node), *(_metric(node, name) for name in metrics)]
        cells.append(_text(node.standing.value, _STYLES[node.standing]))
        if reasons_inside:
            cells.append(_text(node.text))
        table.add_row(*cells)
    console.print(table)
    if not reasons_inside:
        for line in _reason_lines(verdicts.nodes):
            console.print(_text(line))
    if verdicts.left_out:
        console.print(_text(f"and {verdicts.left_out} more node(s)"))
    console.print(_text(verdicts.sentence, "bold"))


def table_text(verdicts: Verdicts, width: int, *, colour: bool) -> str:
    """Return the output of ``print_verdicts`` for a terminal with this many columns."""
    file = io.StringIO()
    system: Literal["standard"] | None = "standard" if colour else None
    console = Console(
        file=file, width=width, force_terminal=colour, color_system=system, highlight=False
    )
    print_verdicts(verdicts, console)
    return file.getvalue()


def noteworthy_nodes(verdicts: Verdicts) -> Verdicts:
    """Return the verdicts; of many nodes, only those with something to report."""
    if len(verdicts.nodes) <= _MANY:
        return verdicts
    nodes = tuple(filter(has_to_tell, verdicts.nodes))
    left_out = verdicts.left_out + len(verdicts.nodes) - len(nodes)
    return replace(verdicts, nodes=nodes, left_out=left_out)


def has_to_tell(node: NodeVerdict) -> bool:
    """Return whether there is more to report on a node than that it has passed."""
    return node.standing is not Standing.PASSED or bool(node.warnings)


def _reason_lines(nodes: Iterable[NodeVerdict]) -> list[str]:
    return [f"{node.node}: {node.text}" for node in nodes if node.text]


def _facts(node: NodeVerdict) -> Text:
    if node.reason.startswith(f"{Phase.FACTS.title}:"):
        return _text("failed", _STYLES[Standing.FAULTY])
    if node.warnings:
        return _text("warned", "yellow")
    return _text("ok" if node.facts else "-")


def _metric(node: NodeVerdict, name: str) -> Text:
    if name not in node.metrics:
        return _text("-")
    number = format(node.metrics[name], ".3g")
    if "e" in number:
        number = format(node.metrics[name], ".0f")
    return _text(f"{_OUTLIER} {number}", "bold yellow") if name in node.slow else _text(number)


def _text(text: str, style: str = "") -> Text:
    # Names and reasons come from other hosts: their control characters must not reach a terminal.
    return Text("".join(c if c.isprintable() else "?" for c in text), style=style)
