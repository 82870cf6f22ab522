"""Every break of ``break_rules.py`` still breaks its rule, and some are seen to be noticed.

All of them against all tests take an hour: ``python tests/break_rules.py``.
"""

import os
import random
from pathlib import Path

import pytest
from ft_run.tests import break_rules
from ft_run.tests.break_rules import BREAKS, Break, Kind

SEED = int(os.environ.get("FT_RUN_BREAKS_SEED") or random.randrange(1 << 32))
"""Of the sample that the slow test takes, which prints it when it fails."""

BROKEN_IN_CI = {
    "every member is told to stop": "I",
    "a restart is counted": "I3",
    "a new round waits for all to stop": "",
    "a new leader waits before it starts workers": "I10",
}
"""Rules of which a few histories are enough, and the invariant that says so; empty: any."""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the rules and their tests."""
    return break_rules.copy_package(tmp_path_factory.mktemp("broken"))


@pytest.mark.parametrize("broken", BREAKS, ids=lambda broken: broken.rule)
def test_the_text_to_break_is_there_once(broken: Break) -> None:
    assert break_rules.source_of(broken).read_text().count(broken.old) == 1
    assert broken.old != broken.new


def test_rules_have_names_of_their_own() -> None:
    assert len({broken.rule for broken in BREAKS}) == len(BREAKS)


def test_what_is_not_broken_is_not_found(package: Path) -> None:
    assert break_rules.failed_history(package, Kind.GROUP, 20) == ""


@pytest.mark.parametrize("rule", BROKEN_IN_CI)
def test_the_simulation_notices_a_broken_rule(package: Path, rule: str) -> None:
    (broken,) = (b for b in BREAKS if b.rule == rule)
    with break_rules.broken_rule(package, broken):
        found = break_rules.failed_history(package, broken.kind, 200)
    assert f": {BROKEN_IN_CI[rule]}" in found


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_sample_of_broken_rules_is_noticed(package: Path) -> None:
    print(f"FT_RUN_BREAKS_SEED={SEED}")
    for broken in random.Random(SEED).sample(BREAKS, 6):
        with break_rules.broken_rule(package, broken):
            noticed = break_rules.failed_scenario(
                package, broken.kind
            ) or break_rules.failed_history(package, broken.kind)
        assert noticed, broken.rule
