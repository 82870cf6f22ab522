"""A scrape's thread reads values on the loop, and never waits for it without a limit."""

import asyncio
import threading
from collections.abc import Iterator

import pytest
from ft_run.launcher.metrics import on_loop as module
from ft_run.launcher.metrics.on_loop import NotReadyError, on_loop


async def number() -> int:
    return 7


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """Run a loop in a thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    for task in asyncio.all_tasks(loop):  # of a scrape that nobody waits for any more
        loop.run_until_complete(task)
    loop.close()


def test_value_is_read_on_the_loop(loop: asyncio.AbstractEventLoop) -> None:
    async def where() -> int:
        assert asyncio.get_running_loop() is loop
        return threading.get_ident()

    assert on_loop(loop, number) == 7
    assert on_loop(loop, where) != threading.get_ident()


def test_error_of_the_coroutine_is_raised(loop: asyncio.AbstractEventLoop) -> None:
    async def fail() -> int:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        on_loop(loop, fail)


def test_closed_loop_is_an_error() -> None:
    closed = asyncio.new_event_loop()
    closed.close()
    with pytest.raises(NotReadyError, match="this process ends"):
        on_loop(closed, number)


def test_loop_that_does_not_respond_is_an_error(
    loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LOOP_S", 0.05)
    released = threading.Event()
    loop.call_soon_threadsafe(released.wait)
    with pytest.raises(NotReadyError, match="this process is overloaded"):
        on_loop(loop, number)
    released.set()
