"""``ft-run master``, without nodes."""

import asyncio
import math
from types import SimpleNamespace
from typing import Any

from ft_run.launcher.agent.local_answers import Request
from ft_run.launcher.commands.master import _LoneMaster
from ft_run.launcher.history.recorder import Recorder
from ft_run.launcher.reporting.display import Display
from ft_run.rendezvous.group.ending import Ending
from ft_run.rendezvous.group.events import GroupSettings
from ft_run.rendezvous.protocol.endpoint import Endpoint
from ft_run.rendezvous.protocol.messages import Outcome, Verdict
from ft_run.rendezvous.protocol.timeouts import Timeouts

VERDICT = Verdict(Outcome.SUCCEEDED, 0, "job finished", 0, 1, None, (), 0)


def test_those_that_watch_receive_the_end_of_the_job_and_nothing_of_an_earlier_term() -> None:
    async def ask() -> tuple[Any, Any]:
        options: Any = SimpleNamespace(endpoints=(), endpoint=Endpoint("vm", 29400))
        lone = _LoneMaster(options, None, Display(live=False), Recorder(""), None)
        master = lone._new_master(GroupSettings.of(Timeouts(), rescale_delay_s=30.0))
        answers = lone._answers()
        master.group.state.phase = Ending(VERDICT, math.inf, {})
        master.close()  # as the server does before it stops
        earlier = await answers.last(), await answers.answer(Request("status"))
        lone._verdict = VERDICT
        return earlier, await answers.last()

    (last, answer), end = asyncio.run(ask())
    assert (last, set(answer)) == (None, {"error"})
    assert (end["status"]["exit_code"], end["status"]["ended"]) == (0, "job finished")
