"""The screen of ``ft-run status --watch`` as lines. No I/O, no clock.

Nodes that need attention are listed first: disconnected nodes, then nodes without a step for long,
nodes that are behind, slow nodes.
"""

from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import Any, Final

from rich.cells import cell_len
from rich.text import Text

from ...printable import printable
from ..history.steps import is_late
from .live_status import duration
from .status_lines import Status, data_waits, furthest, is_spare, pace, ranks, status_lines

_TITLES: Final = ("NODE", "HOST", "RANKS", "PHASE", "STEP", "STEPS/S", "LAST STEP")
_HOST: Final = _TITLES.index("HOST")
_HOST_MIN: Final = 8
_GAP: Final = "  "
_EVENTS_SHARE: Final = 4
"""Events get at most one in this number of rows."""
_NODES_MIN: Final = 3
"""Number of nodes that take precedence over events."""
_BEHIND: Final = 1
"""Ranks that train together differ by this number of steps."""


def view(status: Status, link: str, clock: str, width: int, height: int) -> list[Text]:
    """Return exactly ``height`` lines of at most ``width`` cells.

    ``link`` describes a problem of the connection; ``clock`` is the time of day.
    """
    title, *answers = status_lines(status)
    lines = [_header(title, link, clock, width)]
    for answer in answers:
        lines += _wrapped(answer, width)
    lines.append(Text())
    table = min(len(status["nodes"]), _NODES_MIN) + 1
    for_events = min(height // _EVENTS_SHARE, height - len(lines) - table - 1)
    events = _events(status, for_events) if for_events > 0 else []
    room = height - len(lines) - len(events) - bool(events)
    if room > 0:
        lines += _table(status, room, width)
    lines += [Text()] * (height - len(lines) - len(events)) + events
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return lines[:height]


def _wrapped(text: str, width: int) -> list[Text]:
    lines = wrap(printable(text), width, subsequent_indent="  ", max_lines=2, placeholder=" …")
    return [Text(line) for line in lines]


def _header(title: str, link: str, clock: str, width: int) -> Text:
    end = f" {link or clock} "
    line = Text(f" {printable(title)}", style="reverse")
    line.truncate(max(1, width - cell_len(end)), overflow="ellipsis", pad=True)
    return line.append(printable(end), style="bold red" if link else "")


def _events(status: Status, most: int) -> list[Text]:
    styles = {"warning": "yellow", "error": "red"}
    return [
        Text(
            printable(f"{event['time'][11:19]} {event['text']}"),
            style=styles.get(event["severity"], ""),
        )
        for event in status["events"][-most:]
    ]


def _table(status: Status, height: int, width: int) -> list[Text]:
    """Return the titles and a line for each node, at most ``height`` in total."""
    nodes = in_order(status)
    shown = len(nodes) if len(nodes) < height else max(0, height - 2)  # the last: how many more
    rows = [_cells(node, status) for node in nodes[:shown]]
    titles: tuple[str, ...] = _TITLES
    if waits := data_waits(nodes[:shown]):
        titles = (*_TITLES, "DATA")
        rows = [(*row, wait) for row, wait in zip(rows, waits, strict=True)]
    widths = [max(map(cell_len, column)) for column in zip(titles, *rows, strict=True)]
    spare = width - sum(widths) - len(_GAP) * (len(widths) - 1)
    widths[_HOST] = max(_HOST_MIN, widths[_HOST] + min(0, spare))
    lines = [_row(titles, widths, "bold")]
    lines += [
        _row(row, widths, _style(node, status)) for row, node in zip(rows, nodes, strict=False)
    ]
    if shown < len(nodes):
        lines.append(Text(f"… {len(nodes) - shown} more nodes", style="dim"))
    return lines


def _row(cells: Sequence[str], widths: Sequence[int], style: str) -> Text:
    line = Text(style=style)
    for cell, width in zip(cells, widths, strict=True):
        text = Text(printable(cell))
        text.truncate(width, overflow="ellipsis", pad=True)
        line.append_text(text).append(_GAP)
    line.rstrip()
    return line


def in_order(status: Status) -> list[Mapping[str, Any]]:
    """Return the nodes; nodes that need attention come first."""
    nodes = status["nodes"]
    workers = [furthest(node["workers"]) for node in nodes]
    steps = max((worker["steps"] for worker in workers if worker), default=0)
    rates = sorted(worker["steps_per_s"] for worker in workers if worker)
    usual = rates[len(rates) // 2] if rates else 0.0

    def key(node: Mapping[str, Any]) -> tuple[Any, ...]:
        worker = furthest(node["workers"])
        if not worker:
            return node["attached"], is_spare(node, status), 0.0, 0, 0.0, node["node_rank"]
        late_s = worker["idle_s"] if _is_late(worker) else 0.0
        behind = steps - worker["steps"]
        # In tenths, so that nodes of about the same speed keep their place.
        speed = round(worker["steps_per_s"] / usual, 1) if usual else 0.0
        return (
            node["attached"],
            False,
            -late_s,
            -behind if behind > _BEHIND else 0,
            speed,
            node["node_rank"],
        )

    return sorted(nodes, key=key)


def _cells(node: Mapping[str, Any], status: Status) -> tuple[str, ...]:
    worker = furthest(node["workers"])
    phase = "spare" if is_spare(node, status) else node["phase"]
    return (
        "-" if node["node_rank"] < 0 else str(node["node_rank"]),
        node["host"],
        ranks(node),
        phase if node["attached"] else "disconnected",
        str(worker["steps"]) if worker else "-",
        ("-" if _is_late(worker) else pace(worker)) if worker else "-",
        _ago(worker["idle_s"]) if worker else "-",
    )


def _is_late(worker: Mapping[str, Any]) -> bool:
    return is_late(worker["steps_per_s"], worker["idle_s"])


def _style(node: Mapping[str, Any], status: Status) -> str:
    if not node["attached"]:
        return "red"
    if is_spare(node, status):
        return "dim"
    worker = furthest(node["workers"])
    return "yellow" if worker and _is_late(worker) else ""


def _ago(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 60 else duration(seconds)
