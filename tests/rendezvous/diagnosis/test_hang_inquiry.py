"""The master looks some times where the workers are before it takes them to hang."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from ft_run.rendezvous.diagnosis.hang_inquiry import LOOKS, HangInquiry
from ft_run.rendezvous.diagnosis.stack_calls import Whereabouts
from ft_run.rendezvous.group.events import Hung
from ft_run.rendezvous.protocol.messages import HangSpec, MasterMessage
from ft_run.rendezvous.protocol.stacks import Frame, NoHang, RankStack, RankState, Suspicion
from ft_run.tests.harness.scene import Scene, running
from msgspec.structs import replace

HANG = HangSpec(60.0, 1800.0)


def at(rank: int, line: int) -> RankStack:
    return RankStack(
        rank, rank, "h", RankState.ANSWERED, (Frame("train.py", line, "main"),), ticks=3
    )


def both(line: int, *silent: str) -> Whereabouts:
    return Whereabouts((at(0, line), at(1, 7)), silent)


class Inquiry:
    """A group of two nodes, of which the answers are given, and what the master did."""

    def __init__(self, scene: Scene, answers: Iterator[Whereabouts]) -> None:
        self.scene, self.asked = scene, 0
        self.numbers: list[int] = []
        self.said: list[tuple[int, MasterMessage]] = []
        self.hung: list[Hung] = []
        self._answers = answers
        self.inquiry = HangInquiry(
            scene.group, self._ask, lambda *said: self.said.append(said), self.hung.append, 0.0
        )

    async def _ask(self, inquiry: int) -> Whereabouts:
        self.asked += 1
        self.numbers.append(inquiry)
        return next(self._answers)

    def suspect(self, name: str, *ranks: int, number: int | None = None, trial: str = "") -> None:
        number = self.scene.group.round if number is None else number
        self.inquiry.suspect(self.scene.links[name], Suspicion(number, ranks, 61.0, trial))

    async def over(self) -> None:
        if self.inquiry._task is not None:
            await asyncio.wait([self.inquiry._task])
            await asyncio.sleep(0)  # what is to be done when it is over is done


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 60.0))


def test_what_does_not_move_from_look_to_look_is_a_hang() -> None:
    async def test() -> None:
        node = Inquiry(running(2, hang=HANG), iter([both(5)] * LOOKS))
        node.suspect("a", 0)
        node.suspect("b", 1)
        await node.over()
        (hung,) = node.hung
        assert (node.asked, hung.round, hung.is_alone, node.said) == (LOOKS, 0, False, [])
        assert len(set(node.numbers)) == 1 <= min(node.numbers), "one request for records of NCCL"
        assert "no step for 61 s" in hung.failure.summary()
        assert hung.stacks.startswith("rank 0 on node 0 (h)\n  train.py:5 main")
        node.inquiry.close()

    run(test)


def test_a_hang_of_a_trial_is_known_as_such() -> None:
    async def test() -> None:
        node = Inquiry(running(2, hang=HANG), iter([both(5)] * (2 * LOOKS)))
        node.suspect("a", 0, trial="num_workers=4")
        node.suspect("b", 1)
        await node.over()
        node.suspect("a", 0)
        await node.over()
        assert [hung.failure.trial for hung in node.hung] == ["num_workers=4", ""]

    run(test)


def test_of_what_moves_all_nodes_of_the_round_are_told() -> None:
    async def test() -> None:
        scene = running(2, hang=HANG)
        scene.attend("c")  # a spare
        node = Inquiry(scene, iter([both(5)] * (LOOKS - 1) + [both(6)]))
        node.suspect("a", 0)
        await node.over()
        answer = NoHang(0, "no step for 61 s, but rank 0 is making progress: train.py:6")
        assert node.said == [(scene.links["a"], answer), (scene.links["b"], answer)]
        assert not node.hung

    run(test)


def test_looks_count_only_if_all_nodes_have_answered() -> None:
    async def test() -> None:
        looks = [*[both(5)] * (LOOKS - 1), both(5, "node 1"), *[both(5)] * LOOKS]
        node = Inquiry(running(2, hang=HANG), iter(looks))
        node.suspect("a", 0)
        await node.over()
        assert (node.asked, len(node.hung)) == (2 * LOOKS, 1)

    run(test)


def test_a_job_that_looks_for_no_hangs_has_none() -> None:
    async def test() -> None:
        node = Inquiry(running(2), iter([]))
        node.suspect("a", 0)
        await node.over()
        assert node.asked == 0

    run(test)


@pytest.mark.parametrize(
    "suspect",
    [
        pytest.param(lambda node: node.suspect("a", 0, number=7), id="of another round"),
        pytest.param(lambda node: node.inquiry.suspect(99, Suspicion(0, (0,), 1.0)), id="stranger"),
    ],
)
def test_what_is_not_of_the_round_is_not_looked_into(suspect: Callable[[Inquiry], None]) -> None:
    async def test() -> None:
        node = Inquiry(running(2, hang=HANG), iter([]))
        suspect(node)
        await node.over()
        assert node.asked == 0

    run(test)


def test_a_node_suspects_its_own_workers_only() -> None:
    async def test() -> None:
        node = Inquiry(running(2, hang=HANG), iter([both(5)] * LOOKS))
        node.suspect("a", 1)  # of node b
        await node.over()
        assert not node.hung
        assert {message for _, message in node.said} == {NoHang(0, "")}

    run(test)


@pytest.mark.parametrize("after", [1, LOOKS - 1])
def test_it_is_given_up_when_the_round_ends(after: int) -> None:
    async def test() -> None:
        scene = running(2, hang=HANG)

        def looks() -> Iterator[Whereabouts]:
            yield from [both(5)] * after
            scene.fail("a")
            yield both(5)

        node = Inquiry(scene, looks())
        node.suspect("a", 0)
        await node.over()
        assert (node.asked, node.hung, node.said) == (after + 1, [], [])

    run(test)


def test_a_suspicion_of_the_next_round_is_not_lost_with_the_last_round() -> None:
    """A node tells it once. The inquiry into the round before only sleeps until it looks again."""

    async def test() -> None:
        scene = running(2, hang=HANG)
        node = Inquiry(scene, iter([both(5)] * (LOOKS + 1)))
        node.suspect("b", 1)
        await asyncio.sleep(0)
        for name in "ab":
            scene.fail(name)
            scene.stopped(name)
        assert scene.group.round == 1
        node.suspect("a", 0)
        await node.over()
        (hung,) = node.hung
        assert (node.asked, hung.round, hung.failure.rank) == (LOOKS + 1, 1, 0)

    run(test)


def gets_on(rank: int) -> list[Whereabouts]:
    """Six looks at two ranks, of which one does a step."""
    stays, steps = at(1 - rank, 5), at(rank, 5)
    looks = [Whereabouts((stays, steps), ())] * (LOOKS - 1)
    return [*looks, Whereabouts((stays, replace(steps, steps=1, ticks=4)), ())]


def test_what_is_said_late_of_an_earlier_round_does_not_count() -> None:
    async def test() -> None:
        node = Inquiry(running(2, hang=HANG), iter(gets_on(0)))
        node.suspect("a", 0)
        node.suspect("b", 1, number=7)
        await node.over()
        assert {message for _, message in node.said} == {NoHang(0, "")}

    run(test)


def test_what_was_suspected_before_is_forgotten() -> None:
    async def test() -> None:
        node = Inquiry(running(2, hang=HANG), iter([*gets_on(0), *gets_on(1)]))
        node.suspect("a", 0)
        await node.over()
        node.suspect("b", 1)
        await node.over()
        assert not node.hung
        assert [message for _, message in node.said] == [NoHang(0, "")] * 4

    run(test)


def test_a_later_suspicion_is_looked_into_anew() -> None:
    async def test() -> None:
        moved = replace(at(0, 5), ticks=4)
        looks = [*[both(5)] * (LOOKS - 1), Whereabouts((moved, at(1, 7)), ()), *[both(5)] * LOOKS]
        node = Inquiry(running(2, hang=HANG), iter(looks))
        for _ in range(2):
            node.suspect("a", 0)
            await node.over()
        assert [message for _, message in node.said] == [NoHang(0, "")] * 2
        assert len(node.hung) == 1

    run(test)
