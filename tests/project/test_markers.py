"""Every marker that silences a tool says why."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("launcher", "rendezvous", "protos", "checks", "examples", "benchmarks", "tests")
MARKER = re.compile(r"#\s*(noqa|type:\s*ignore|mypy:|ruff:|pragma:)")
WITH_REASON = re.compile(r"# (noqa: [A-Z0-9, ]+ - |type: ignore\[[a-z, -]+\]  # )\w.*$")


def unexplained(text: str) -> list[str]:
    """Return the lines with a marker that names no rule, or gives no reason."""
    lines = [line for line in text.splitlines() if MARKER.search(line)]
    return [line for line in lines if not WITH_REASON.search(line)]


def test_every_marker_says_why() -> None:
    sources = [
        *ROOT.glob("*.py"),
        *(path for name in FOLDERS for path in ROOT.glob(f"{name}/**/*.py")),
    ]
    assert len(sources) > 200
    sources = [
        path for path in sources if not path.stem.endswith("_pb2") and path != Path(__file__)
    ]
    found = {str(path.relative_to(ROOT)): unexplained(path.read_text()) for path in sources}
    assert {name: lines for name, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "line",
    [
        "x = 1  # noqa",
        "x = 1  # noqa: E402",
        "x = 1  # type: ignore",
        "x = 1  # type: ignore[assignment]",
        "# ruff: noqa: E402 - all of it",
    ],
)
def test_a_marker_without_a_reason_is_found(line: str) -> None:
    assert unexplained(line) == [line]
