"""``constraints.txt`` has one version of everything for each Python that is supported.

That they fit together is seen by ``.ci/pythons``, which asks the package index.
"""

import configparser
import importlib.metadata
import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PYTHONS = re.findall(
    r"\d\.\d+", re.findall(r"^pythons=\((.*)\)", (ROOT / ".ci/pythons").read_text(), re.M)[0]
)
"""As ``.ci/pythons`` lists them."""

PINS = [
    Requirement(line)
    for line in (ROOT / "constraints.txt").read_text().splitlines()
    if line and not line.startswith("#")
]


def holds(requirement: Requirement, python: str) -> bool:
    """Return whether a requirement applies to a Python."""
    environment = {"python_version": python, "python_full_version": f"{python}.0", "extra": ""}
    return requirement.marker is None or requirement.marker.evaluate(environment)


def requirements() -> list[Requirement]:
    """Return what ``ft-run`` and its extras need, less torch's own needs."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    sections = [setup["options"]["install_requires"], *setup["options.extras_require"].values()]
    return [Requirement(line) for text in sections for line in text.strip().splitlines()]


def test_the_oldest_python_is_the_one_that_the_package_asks_for() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    assert setup["options"]["python_requires"] == f">={PYTHONS[0]}"


@pytest.mark.parametrize("python", PYTHONS)
def test_each_requirement_has_one_version(python: str) -> None:
    pinned = [canonicalize_name(pin.name) for pin in PINS if holds(pin, python)]
    assert len(pinned) == len({*pinned})
    wanted = {canonicalize_name(need.name) for need in requirements() if holds(need, python)}
    assert not wanted - {*pinned}


def test_versions_are_those_of_pythons_that_they_support() -> None:
    """Of what is installed here, as pinned, the metadata says so."""
    wrong = []
    seen = 0
    for pin in PINS:
        try:
            found = importlib.metadata.metadata(pin.name)
        except importlib.metadata.PackageNotFoundError:
            continue
        if not pin.specifier.contains(found["Version"]):
            continue
        seen += 1
        supported = Requirement(f"python {found['Requires-Python'] or ''}").specifier
        wrong += [
            f"{pin} on {python}"
            for python in PYTHONS
            if holds(pin, python) and not supported.contains(f"{python}.99")
        ]
    assert seen > 20
    assert not wrong
