"""Signals of a node: the default action is never in effect between two handlers."""

import asyncio
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from ft_run.launcher.agent.signals import hear, hurry_on, unless_asked

LEAVE = (signal.SIGTERM, signal.SIGINT)


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in LEAVE}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_no_moment_has_the_default_action(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal at such a moment would end the process, if it has a second thread."""
    given: list[tuple[int, Any]] = []
    set_handler = signal.signal

    def record(number: int, handler: Any) -> Any:
        given.append((number, handler))
        return set_handler(number, handler)

    monkeypatch.setattr(signal, "signal", record)
    asked: list[int] = []
    hurried: list[bool] = []

    async def work() -> None:
        loop, is_asked = asyncio.get_running_loop(), asyncio.Event()

        def signalled(number: int) -> None:
            asked.append(number)
            is_asked.set()

        hear(loop, LEAVE, signalled, signalled)
        os.kill(os.getpid(), signal.SIGTERM)
        await is_asked.wait()
        os.kill(os.getpid(), signal.SIGINT)  # just before the wait begins
        assert await unless_asked(asyncio.Event().wait(), LEAVE, timeout_s=30)
        hurry_on(LEAVE, lambda: hurried.append(True))

    asyncio.run(work())
    os.kill(os.getpid(), signal.SIGTERM)  # after the loop was closed
    assert (asked, hurried) == ([signal.SIGTERM], [True])
    of_signals = [handler for number, handler in given if number in LEAVE]
    assert len(of_signals) >= 6
    assert signal.SIG_DFL not in of_signals
    assert signal.default_int_handler not in of_signals


def test_first_signal_does_not_end_a_wait_for_two() -> None:
    async def wait() -> None:
        async def work() -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(0)  # its handler runs in the next turn of the loop
            await asyncio.get_running_loop().run_in_executor(None, lambda: None)
            done.append("work")

        assert not await unless_asked(work(), LEAVE, timeout_s=30, times=2)
        os.kill(os.getpid(), signal.SIGTERM)

        async def more() -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.Event().wait()

        assert await unless_asked(more(), LEAVE, timeout_s=30, times=2)

    done: list[str] = []
    asyncio.run(wait())
    assert done == ["work"]
