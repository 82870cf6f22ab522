"""The task in which an agent waits for notices of its cloud."""

import asyncio
from collections.abc import Callable

import pytest
from ft_run.tests.launcher.preflight.test_session import Node, node  # noqa: F401 - a fixture


def test_its_error_is_shown_when_it_comes(
    node: Callable[..., None],  # noqa: F811 - the fixture
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("ft_run.launcher.preemption.watch.watch", broken)
    shown: list[object] = []

    async def test(here: Node) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: shown.append(type(context["exception"])))
        here.agent._watch_for_notices("file:/notice", loop)
        for _ in range(3):
            await asyncio.sleep(0)
        assert shown == [ZeroDivisionError]

    node(test, only=False)
