"""The master's question where the workers are: every node that is there is asked once."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from ft_run.rendezvous.diagnosis.stack_calls import StackCalls, Whereabouts
from ft_run.rendezvous.protocol.stacks import RankStack, RankState, StackOrder, StackReport
from ft_run.rendezvous.protocol.steps import RankSteps, StepsOrder, StepsReport

LONG_S = 100.0
"""For answers that come."""


def stack(rank: int) -> RankStack:
    return RankStack(rank, rank, "h", RankState.ANSWERED)


class Nodes:
    """Streams 1 and 2, and what was said on them."""

    def __init__(self) -> None:
        self.calls = StackCalls(lambda link, order: self.told.append((link, order.number)))
        self.told: list[tuple[int, int]] = []

    async def ask(self, timeout_s: float = LONG_S) -> Whereabouts:
        nodes = {1: "node 0", 2: "node 1"}
        return await self.calls.ask(StackOrder(0), nodes, ("node 2",), timeout_s)

    def answer(self, link: int, number: int) -> None:
        self.calls.take(link, StackReport(number, (stack(link),)))


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    asyncio.run(coroutine)


def test_all_answers_come_together() -> None:
    async def main() -> None:
        nodes = Nodes()
        asking = [asyncio.create_task(nodes.ask()) for _ in range(2)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert nodes.told == [(1, 1), (2, 1)]  # once, although two ask
        nodes.answer(2, 1)
        nodes.answer(3, 1)  # from a stream that was not asked
        nodes.answer(1, 0)  # to a question of another master
        nodes.answer(1, 1)
        for task in asking:
            found = await task
            assert sorted(s.rank for s in found.stacks) == [1, 2]
            assert found.silent == ("node 2",)

    run(main())


def test_an_inquiry_and_a_person_get_the_same_stacks() -> None:
    async def main() -> None:
        nodes = Nodes()
        inquiring = asyncio.create_task(nodes.calls.ask(StackOrder(0, 7), {1: "node 0"}))
        await asyncio.sleep(0)
        asking = asyncio.create_task(nodes.ask())
        for _ in range(3):
            await asyncio.sleep(0)
        assert nodes.told == [(1, 1)]  # a node that collects stacks would not answer a second order
        nodes.answer(1, 1)
        assert await asking == await inquiring

    run(main())


def test_a_node_that_does_not_answer_is_named_and_its_late_answer_is_none() -> None:
    async def main() -> None:
        nodes = Nodes()
        asking = asyncio.create_task(nodes.ask(timeout_s=0.01))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        nodes.answer(1, 1)
        found = await asking
        assert [s.rank for s in found.stacks] == [1]
        assert found.silent == ("node 2", "node 1")
        nodes.answer(2, 1)
        asking = asyncio.create_task(nodes.ask())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        nodes.answer(2, 1)
        nodes.answer(1, 2)
        for _ in range(5):
            await asyncio.sleep(0)
        assert not asking.done()
        nodes.answer(2, 2)
        assert len((await asking).stacks) == 2

    run(main())


def test_a_stream_that_ends_is_not_waited_for() -> None:
    async def main() -> None:
        nodes = Nodes()
        asking = asyncio.create_task(nodes.ask())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        nodes.answer(1, 1)
        nodes.calls.gone(1)  # it has answered
        nodes.calls.gone(2)
        for _ in range(5):
            await asyncio.sleep(0)
        assert asking.done()
        found = await asking
        assert ([s.rank for s in found.stacks], found.silent) == ([1], ("node 2", "node 1"))

    run(main())


def test_one_that_no_longer_asks_takes_the_answer_from_no_other() -> None:
    async def main() -> None:
        nodes = Nodes()
        first, second = (asyncio.create_task(nodes.ask()) for _ in range(2))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        nodes.answer(1, 1)
        nodes.answer(2, 1)
        assert len((await second).stacks) == 2

    run(main())


def test_a_master_without_a_round_asks_nobody() -> None:
    async def main() -> None:
        told: list[object] = []
        calls = StackCalls(lambda link, order: told.append(order))
        assert await calls.ask(StackOrder(0), {}) == Whereabouts((), ())
        assert not told

    run(main())


def test_steps_are_asked_for_in_the_same_way() -> None:
    async def main() -> None:
        told: list[object] = []
        calls = StackCalls(lambda link, order: told.append(order))
        nodes = {1: "node 0", 2: "node 1", 3: "node 2"}
        asking = asyncio.create_task(calls.ask(StepsOrder(0), nodes, timeout_s=LONG_S))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert told == [StepsOrder(1)] * 3
        calls.take(1, StepsReport(1, (RankSteps(0, 7, 1.5, 0.0),), 4, 90.0))
        calls.take(2, StepsReport(1, (), 6, 5.0))  # the newest, whichever node has written it
        calls.take(3, StepsReport(1, ()))
        found = await asking
        assert found == Whereabouts((), (), (RankSteps(0, 7, 1.5, 0.0),), (6, 5.0))

    run(main())
