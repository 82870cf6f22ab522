"""Imports in the background pause in proportion to their CPU time."""

import sys
from types import SimpleNamespace

import pytest
from ft_run.launcher.spawner import unhurried


def test_each_import_pauses_three_times_as_long_as_the_one_before_it_computed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    used = [0.0]
    pauses: list[float] = []
    clock = SimpleNamespace(process_time=lambda: used[0], sleep=pauses.append)
    monkeypatch.setattr(unhurried, "time", clock)
    before = list(sys.meta_path)
    with unhurried.unhurried():
        for name in ("no_such_module_1", "no_such_module_2", "no_such_module_3"):
            with pytest.raises(ModuleNotFoundError):
                __import__(name)
            used[0] += 0.5
    assert pauses == [0.0, 1.5, 1.5]
    assert sys.meta_path == before


def test_a_module_that_replaces_the_finders_is_no_obstacle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with unhurried.unhurried():
        monkeypatch.setattr(sys, "meta_path", sys.meta_path[1:])
