"""The words of the product: nodes and processes are things, and a fork server is called one."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLACES = (
    "__init__.py",
    "__main__.py",
    "defaults.py",
    "errors.py",
    "events.py",
    "exit_codes.py",
    "printable.py",
    "values.py",
    "checks",
    "launcher",
    "protos/rendezvous.proto",
    "rendezvous",
    "training",
    "examples",
    ".ci",
    "pyproject.toml",
    "setup.cfg",
    "README.md",
    "CONTRIBUTING.md",
    "docs",
)
PERSONS = re.compile(
    r"\b(who|whom|whoever|nobody|(some|any|every)(body|one))\b",
    re.IGNORECASE,
)
MADE = {"__pycache__", "work"}
"""Folders of files that tools have made."""
QUOTED: dict[str, tuple[str, ...]] = {
    # path: texts of others that have such a word, as they stand there
}


def files() -> Iterator[Path]:
    """Return the texts of the product, in a fixed order."""
    for place in PLACES:
        path = ROOT / place
        assert path.exists(), f"{place} has moved: correct this list"
        found = sorted(path.rglob("*")) if path.is_dir() else [path]
        yield from (p for p in found if p.is_file() and MADE.isdisjoint(p.relative_to(ROOT).parts))


def of_persons(text: str) -> list[str]:
    """Return the lines that speak of a person."""
    return [line.strip() for line in text.splitlines() if PERSONS.search(line)]


@pytest.mark.parametrize("text", ["Who waits", "nobody reads it", "to everyone", "for somebody"])
def test_a_word_for_a_person_is_seen(text: str) -> None:
    assert of_persons(f"a node that waits\n{text}\nwhose link is cut\n") == [text]


def test_no_node_and_no_process_is_a_person() -> None:
    found = {}
    for path in files():
        text = path.read_text(encoding="utf-8")
        for quotation in QUOTED.get(str(path.relative_to(ROOT)), ()):
            assert quotation in text, f"{quotation!r} is not quoted any more: correct this list"
            text = text.replace(quotation, "")
        if lines := of_persons(text):
            found[str(path.relative_to(ROOT))] = lines
    assert not found, "a node or a process is: which, that, it, a node"


def test_an_image_is_a_containers() -> None:
    for path in (ROOT / "launcher").rglob("*.py"):
        assert not re.search(r"image", path.read_text(), re.IGNORECASE), f"{path}: a fork server"
