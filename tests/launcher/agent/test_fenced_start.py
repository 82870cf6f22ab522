"""A start that comes while it looks as if the node had no leader."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from ft_run.launcher.agent.agent import Agent
from ft_run.rendezvous.lease.fencing import FenceTick
from ft_run.rendezvous.master.link import LinkDown, LinkUp
from ft_run.rendezvous.protocol.messages import Assignment, Start, Stop
from ft_run.tests.launcher.preflight.test_session import Node, node  # noqa: F401 - a fixture


class Started(Exception):  # noqa: N818 - not an error
    """Workers would be started."""


def given(monkeypatch: pytest.MonkeyPatch) -> tuple[Start, list[bool]]:
    """A start, and whether the node is fenced; no worker is started."""
    fenced, started = [True], Start(cast(Assignment, SimpleNamespace(round=3)))

    async def start(_: Agent, assignment: object) -> None:
        assert assignment == started.assignment
        raise Started

    monkeypatch.setattr(Agent, "_start", start)
    return started, fenced


def test_it_is_followed_when_the_stream_has_outlived_the_doubt(
    node: Callable[..., None],  # noqa: F811 - the fixture
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start, fenced = given(monkeypatch)

    async def test(here: Node) -> None:
        monkeypatch.setattr(here.agent._fencing, "is_due", lambda _: fenced[0])
        await here.hear(start, cast(Any, FenceTick()))
        fenced[0] = False
        with pytest.raises(Started):
            await here.hear(cast(Any, FenceTick()))

    node(test)


@pytest.mark.parametrize("event", [Stop(3, ""), LinkDown("cut"), LinkUp(again=True)], ids=str)
def test_it_is_forgotten_with_its_round_or_its_stream(
    node: Callable[..., None],  # noqa: F811 - the fixture
    monkeypatch: pytest.MonkeyPatch,
    event: Any,
) -> None:
    start, fenced = given(monkeypatch)

    async def test(here: Node) -> None:
        monkeypatch.setattr(here.agent._fencing, "is_due", lambda _: fenced[0])
        await here.hear(start)
        fenced[0] = False
        await here.hear(event, cast(Any, FenceTick()))

    node(test)


def test_the_fence_learns_when_the_stream_was_opened(
    node: Callable[..., None],  # noqa: F811 - the fixture
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A leader that has answered on a stream from before a freeze may have been replaced."""

    async def test(here: Node) -> None:
        opened: list[float] = []
        monkeypatch.setattr(here.agent._fencing, "found", opened.append)
        await here.hear(LinkUp(again=True, opened_s=5.0))
        assert opened == [5.0]

    node(test)
