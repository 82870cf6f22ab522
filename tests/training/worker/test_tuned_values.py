"""``tuned``: the value of a round, bad arguments, and what the agent learns."""

import json
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from ft_run.launcher.processes.worker_watch import WorkerWatch
from ft_run.rendezvous.protocol.bounds import check
from ft_run.rendezvous.protocol.tuned import Retune, TunedValue
from ft_run.training import tuned
from ft_run.training.worker import start, tuned_values
from ft_run.training.worker.start import Page
from ft_run.training.worker.tuned_values import (
    VARIABLE,
    decoded,
    encoded,
    environ_of,
    is_key,
    is_plain,
    key_of,
)
from ft_run.training.worker.tuning_page import TuningPage


@pytest.fixture(autouse=True)
def undeclared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuned_values, "_declared", {})
    monkeypatch.delenv(VARIABLE, raising=False)


def give(monkeypatch: pytest.MonkeyPatch, **values: Any) -> None:
    """Start as a worker of a round with these values."""
    environ = environ_of({key_of(name): json.dumps(value) for name, value in values.items()})
    monkeypatch.setenv(VARIABLE, environ[VARIABLE])


def test_the_default_holds_without_ft_run() -> None:
    assert tuned("depth", 2, [2, 4]) == 2
    assert tuned("mode", "a", ("b",)) == "a"


def test_the_value_of_the_round_holds_if_the_script_names_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    give(monkeypatch, depth=4, mode="b", share=0.5, fast=True, other=4)
    assert tuned("depth", 2, [2, 4]) == 4
    assert tuned("mode", "a", ["a", "b"]) == "b"
    assert tuned("share", 1.0, [0.5, 1.0]) == 0.5
    assert tuned("fast", False, [True, False]) is True
    assert tuned("other", 2, [2, 3]) == 2  # the script has changed
    assert tuned("depth", True, [True, False]) is True
    monkeypatch.setenv(VARIABLE, "{")
    assert tuned("depth", 2, [2, 4]) == 2


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (("a b", 1, [1]), ValueError, "invalid value 'a b' for name: expected 1 to 64 letters"),
        (("", 1, [1]), ValueError, "for name"),
        ((5, 1, [1]), ValueError, "invalid value 5 for name"),
        (("a", 1, 2), TypeError, "invalid value 2 for values of 'a': expected a list"),
        (("a", 1, "12"), TypeError, "expected a list"),
        (("a", 1, []), ValueError, "expected 1 to 12 different values"),
        (("a", 1, list(range(13))), ValueError, "expected 1 to 12 different values"),
        (("a", 1, [1, True]), ValueError, "different values"),
        (("a", None, [1]), TypeError, r"invalid value None in tuned\('a'\): expected a finite"),
        (("a", 1, [[1]]), TypeError, r"invalid value \[1\] in tuned"),
        (("a", 1, [float("nan")]), TypeError, "expected a finite number"),
        (("a", 1, [1 << 60]), TypeError, "expected a finite number"),
        (("a", "", ["x" * 101]), TypeError, "printable string of at most 100 characters"),
    ],
)
def test_bad_arguments_get_one_error(arguments: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text) as found:
        tuned(*arguments)
    assert "\n" not in str(found.value)


def test_the_agent_learns_names_and_values(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = WorkerWatch()
    page = TuningPage(Page(watch._page))
    monkeypatch.setitem(sys.modules, start.NAME, SimpleNamespace(tuning=page))
    assert watch.declared() == {}
    give(monkeypatch, depth=4)
    tuned("depth", 2, [4, 8])
    tuned("mode", "ä", ["b"])
    assert watch.declared() == {"depth": (4, (2, 4, 8)), "mode": ("ä", ("ä", "b"))}
    tuned("far", "", [one * 100 for one in "àáâãäåæçèéêë"])
    tuned("share", 0.5, [0.5])
    assert list(watch.declared()) == ["depth", "mode", "share"]  # without what does not fit
    page.declare(b'["no", "dictionary"]')
    assert watch.declared() == {}
    Page(watch._page)  # another process
    assert watch.declared() == {}
    watch.close()
    assert watch.declared() == {}


def test_the_variables_of_workers() -> None:
    values = {"OMP_NUM_THREADS": "4", key_of("depth"): "2", key_of("mode"): '"a"'}
    assert environ_of({}) == {}
    assert environ_of(values) == {
        "OMP_NUM_THREADS": "4",
        VARIABLE: '{"tuned(\\"depth\\")": 2, "tuned(\\"mode\\")": "a"}',
    }
    assert decoded({"OMP_NUM_THREADS": "[4]", "a": "{", "b": "true", "c": "[" * 10**5}) == {
        "b": True
    }


@pytest.mark.parametrize("value", ["ä" * 100, '"' * 100, "\U0001f600" * 100, -1e-300, True])
def test_each_value_fits_the_messages(value: Any) -> None:
    assert is_plain(value)
    check(Retune(0, (TunedValue("a", encoded(value)),)))
    assert decoded({"a": encoded(value)}) == {"a": value}


def test_names_of_values() -> None:
    assert is_key('tuned("a.b-c_1")')
    assert not any(map(is_key, ("tuned", 'tuned("")', 'tuned("a b")', "OMP_NUM_THREADS")))
