"""Patches of modules when they are imported."""

import inspect
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from ft_run.training.worker.patching import take_name, when_loaded


def test_a_module_is_patched_once_and_nothing_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "patched_here.py").write_text("value = 1")
    monkeypatch.syspath_prepend(tmp_path)
    finders, changed = list(sys.meta_path), list[ModuleType]()
    when_loaded({"patched_here": changed.append})
    patched_here = import_module("patched_here")

    assert changed == [patched_here]
    assert sys.meta_path == finders
    assert patched_here.__spec__ is not None
    assert "exec_module" not in vars(patched_here.__spec__.loader)
    del sys.modules["patched_here"]


def test_a_replacement_has_the_signature_of_what_it_replaces() -> None:
    def original(backend: str, *, rank: int = 0) -> None:
        """Join."""

    def replacement(*arguments: Any) -> None:
        pass

    take_name(replacement, original)
    assert inspect.signature(replacement) == inspect.signature(original)
    assert (replacement.__name__, replacement.__doc__) == ("original", "Join.")
