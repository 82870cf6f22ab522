"""Medians, ratios, tables and system information for benchmarks."""

import argparse
import importlib.metadata
import math
import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Summary:
    """Statistics of one launcher's samples of one metric, in the metric's unit."""

    count: int
    median: float
    minimum: float


@dataclass(frozen=True, slots=True)
class Target:
    """The upper limit of a metric: a fraction of the reference's median, or an absolute value."""

    limit: float
    is_ratio: bool

    def text(self) -> str:
        """Return it as shown in tables."""
        return f"<= {self.limit:g} x" if self.is_ratio else f"<= {self.limit:g}"

    def is_met(self, ours: Summary | None, reference: Summary | None) -> bool | None:
        """Return whether it is met; None: a sample is missing."""
        if ours is None:
            return None
        if not self.is_ratio:
            return ours.median <= self.limit
        fraction = ratio(ours, reference)
        return None if fraction is None else fraction <= self.limit


def summarize(values: Sequence[float]) -> Summary | None:
    """Return the summary of samples; None when there are none."""
    if not values:
        return None
    return Summary(len(values), statistics.median(values), min(values))


def ratio(ours: Summary | None, reference: Summary | None) -> float | None:
    """Return our median divided by the reference's; None: one is missing or zero."""
    if ours is None or reference is None or reference.median == 0:
        return None
    return ours.median / reference.median


def number(value: float | None, digits: int = 3) -> str:
    """Return a value with that many significant digits, never in exponent form."""
    if value is None:
        return "-"
    if value == 0:
        return "0"
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:.{places}f}"


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows, the first of them the heading, as a Markdown table with aligned columns.

    The first column is aligned to the left, the others to the right.
    """
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]

    def line(row: Sequence[str]) -> str:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        return f"| {' | '.join(cells)} |"

    rule = "|".join(["-" * (widths[0] + 2), *("-" * (width + 1) + ":" for width in widths[1:])])
    return "\n".join([line(rows[0]), f"|{rule}|", *map(line, rows[1:])])


def counts(text: str) -> list[int]:
    """Parse the numbers of ``1,2,8``, for argparse."""
    found = [int(part) for part in text.split(",")]
    if min(found) < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return found


def machine_facts() -> dict[str, object]:
    """Return system information."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "load_1_min": round(os.getloadavg()[0], 2),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "packages": {
            name: _version(name) for name in ("torch", "grpcio", "protobuf", "click", "ft-run")
        },
    }


def facts_line(facts: dict[str, object]) -> str:
    """Return system information as one line."""
    packages = facts["packages"]
    assert isinstance(packages, dict)
    versions = ", ".join(f"{name} {version}" for name, version in packages.items())
    return (
        f"{facts['cores']} cores, load {facts['load_1_min']}, Linux {facts['kernel']} "
        f"{facts['machine']}, Python {facts['python']}, {versions}"
    )


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
