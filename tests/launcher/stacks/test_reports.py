"""Where the workers are, as a node reports it."""

import asyncio

from ft_run.launcher.stacks.reports import StackReports
from ft_run.rendezvous.protocol.stacks import StackReport


def test_an_error_is_shown_when_it_comes() -> None:
    """The master only sees a node that does not answer."""
    shown: list[object] = []

    def broken(_: StackReport) -> None:
        raise ZeroDivisionError

    async def test() -> None:
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: shown.append((context["message"], type(context["exception"])))
        )
        reports = StackReports("h", broken)
        reports.report(1, 0, ())
        assert reports._task is not None
        await asyncio.wait([reports._task])
        await asyncio.sleep(0)
        told = "a report of stacks failed, which is a bug of ft-run"
        assert shown == [(told, ZeroDivisionError)]

    asyncio.run(test())
