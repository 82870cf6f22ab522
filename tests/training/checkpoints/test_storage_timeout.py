"""How long is waited for a storage, by a clock that the test moves."""

import threading
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from ft_run.training.checkpoints import storage
from ft_run.training.checkpoints.storage import (
    StorageThread,
    StorageTimeout,
    StorageTimeoutError,
    format_duration,
    log_while_waiting,
)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    return now


def over_at(clock: list[float], end: float) -> Callable[[float], bool]:
    def is_over(limit_s: float) -> bool:
        clock[0] += limit_s
        return clock[0] >= end

    return is_over


@pytest.mark.parametrize(
    ("limit_s", "every_s", "end"),
    [(600, 500, 10_000), (600, 10_000, 650), (None, 10**6, 10_000)],
    ids=["it gets on", "it ends in time", "no limit"],
)
def test_a_storage_may_take_as_long_as_it_gets_on(
    clock: list[float], limit_s: float | None, every_s: int, end: float
) -> None:
    StorageTimeout(limit_s).wait(over_at(clock, end), lambda: int(clock[0]) // every_s)
    assert clock[0] >= end


def test_one_that_does_not_get_on_is_given_up(clock: list[float]) -> None:
    with pytest.raises(StorageTimeoutError, match=r"^no response from the storage for 10 min$"):
        StorageTimeout(600).wait(over_at(clock, 10_000), lambda: min(int(clock[0]), 1000))
    assert 1600 <= clock[0] <= 1601


def test_what_was_left_behind_is_done_before_the_next() -> None:
    may_end, done = threading.Event(), list[str]()

    def hang() -> None:
        may_end.wait()
        done.append("what hung")

    thread = StorageThread(StorageTimeout(0.1))
    for action in (hang, lambda: done.append("what was not begun")):
        with pytest.raises(StorageTimeoutError):
            thread.run(action)
        assert thread.is_stuck
    may_end.set()
    thread.run(lambda: done.append("the next"))
    assert (done, thread.is_stuck) == (["what hung", "the next"], False)


def test_an_error_is_the_caller_s() -> None:
    thread = StorageThread(StorageTimeout(None))
    with pytest.raises(ZeroDivisionError):
        thread.run(lambda: 1 / 0)
    assert not thread.is_stuck


@pytest.mark.parametrize("limit_s", [600, None])
def test_what_is_waited_for_is_said_now_and_then(
    monkeypatch: pytest.MonkeyPatch, limit_s: float | None
) -> None:
    said: list[str] = []
    is_said = threading.Event()
    asked: list[float] = []

    class Clock(threading.Event):
        """The time between lines, without waiting."""

        def wait(self, timeout: float | None = None) -> bool:
            asked.append(timeout or 0.0)
            if len(asked) > 3:
                is_said.set()
                return super().wait()
            return False

    monkeypatch.setattr(storage, "log", said.append)
    given = SimpleNamespace(Event=Clock, Thread=threading.Thread)
    monkeypatch.setattr(storage, "threading", given)
    clock = SimpleNamespace(monotonic=lambda: float(sum(asked)))
    monkeypatch.setattr(storage, "time", clock)
    with log_while_waiting("the checkpoint of step 3", limit_s, is_enabled=True):
        is_said.wait()
    assert asked == [30, 60, 60, 60]
    until = ", gives up after 10 min without progress" if limit_s else ""
    times = ("30 s", "1 min 30 s", "2 min 30 s")
    assert said == [
        f"waiting for the checkpoint of step 3 ({so_far} so far{until})" for so_far in times
    ]
    with log_while_waiting("the checkpoint of step 3", limit_s, is_enabled=False):
        assert len(said) == 3


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.2, "0.2 s"), (30.4, "30 s"), (90, "1 min 30 s"), (600, "10 min"), (0, "0 s")],
)
def test_times_in_words(seconds: float, words: str) -> None:
    assert format_duration(seconds) == words
