"""Calls in threads, and what becomes of them if no thread can be started."""

import asyncio
import threading

import pytest
from ft_run.tasks import NoThreadError, in_daemon_thread, in_thread


@pytest.fixture
def no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)


def test_call_is_in_another_thread() -> None:
    assert asyncio.run(in_thread(threading.get_ident)) != threading.get_ident()


@pytest.mark.usefixtures("no_thread")
def test_short_call_is_on_the_event_loop_without_a_thread() -> None:
    assert asyncio.run(in_thread(threading.get_ident)) == threading.get_ident()


@pytest.mark.usefixtures("no_thread")
def test_call_that_may_take_long_fails_without_a_thread() -> None:
    async def ident() -> int:
        return await in_daemon_thread(threading.get_ident)

    with pytest.raises(NoThreadError):
        asyncio.run(ident())


def test_error_of_the_call_is_raised() -> None:
    def fail() -> None:
        raise FileNotFoundError("none")

    with pytest.raises(FileNotFoundError, match="none"):
        asyncio.run(in_thread(fail))
