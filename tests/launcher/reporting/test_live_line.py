"""The live line, where its text cannot be told."""

import asyncio
from typing import cast

from ft_run.launcher.reporting.display import Display
from ft_run.launcher.reporting.live_line import live_line
from ft_run.launcher.spawner.client import SpawnerClient


class Terminal:
    """A display on a terminal that is never drawn on."""

    live = True

    def open(self, _: object) -> None:
        pass

    def status(self, _: str) -> None:
        pass

    resized = refresh = suspend = lambda _: None


def test_an_error_of_the_live_line_is_shown_and_does_not_change_the_outcome() -> None:
    def text() -> str:
        raise ZeroDivisionError

    shown: list[object] = []

    async def test() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: shown.append(type(context["exception"])))
        spawner = cast(SpawnerClient, type("Spawner", (), {"set_last_words": None}))
        async with live_line(cast(Display, Terminal()), text, spawner):
            for _ in range(3):
                await asyncio.sleep(0)
            assert shown == [ZeroDivisionError]

    asyncio.run(test())
