"""The fence of a node with its clock: what it tells the process that kills in its place."""

import asyncio

import pytest
from ft_run.rendezvous.lease import fencing
from ft_run.rendezvous.lease.fencing import Fencing
from ft_run.rendezvous.protocol.timeouts import Timeouts


def test_a_process_that_was_held_up_says_at_once_that_workers_may_live_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr(fencing, "now", lambda: now[0])
    told: list[float] = []

    async def test() -> None:
        node = Fencing(Timeouts(fence_s=6.0), lambda _: None, told.append, may_change=True)
        node.found(now[0])
        assert told[-1] > 106.0
        now[0] = 107.0  # the stream has lived on meanwhile
        assert node.is_due("a message")
        for _ in range(20):
            now[0] += 0.5
            is_due = node.is_due("a message")
        assert not is_due
        assert told[-1] > 107.0 + 6.0
        node.close()

    asyncio.run(test())
