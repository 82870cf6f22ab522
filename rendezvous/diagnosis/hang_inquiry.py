"""Confirms or rejects a suspected hang by the stacks of all workers."""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence

from msgspec.structs import replace

from ...tasks import show_bug
from ..group.events import Hung
from ..group.group import Group
from ..group.phases import GroupPhase
from ..protocol.bounds import COUNT_MAX
from ..protocol.messages import MasterMessage
from ..protocol.stacks import NoHang, RankStack, Suspicion
from .stack_calls import Whereabouts
from .suspicion import Finding, compare, failure_of, stacks_text

LOOK_AGAIN_S = 2.0
LOOKS = 6
"""Over 10 s. More than two, because a short loop can be at the same line twice by chance."""


class HangInquiry:
    """One inquiry at a time, which includes later suspicions."""

    def __init__(
        self,
        group: Group,
        ask: Callable[[int], Awaitable[Whereabouts]],
        say: Callable[[int, MasterMessage], None],
        hung: Callable[[Hung], None],
        look_again_s: float = LOOK_AGAIN_S,
    ) -> None:
        """``ask`` requests all stacks and NCCL's records; its argument is the inquiry's number."""
        self._group, self._ask, self._send, self._hung = group, ask, say, hung
        self._look_again_s = look_again_s
        self._seen_at: dict[int, float] = {}
        """When each suspected rank last made progress, by this host's clock."""
        self._trial = ""
        """Settings that ``--auto-tune on`` was trying on the suspected ranks."""
        self._task: asyncio.Task[None] | None = None
        self._number = -1
        """Round that is examined."""

    def suspect(self, link: int, suspicion: Suspicion) -> None:
        """Process the suspicion of the node on a stream."""
        node, job, number = self._group.roster.by_link(link), self._group.job, suspicion.round
        if node is None or job is None or job.hang is None:
            return
        if node.round != number or not self._is_running(number):
            return
        if number != self._number:
            self.close()  # an inquiry into an earlier round
            self._number = number
        at = time.monotonic() - suspicion.idle_s
        self._trial = suspicion.trial or self._trial
        self._seen_at.update((rank, at) for rank in suspicion.ranks if node.has_rank(rank))
        if self._task is None:
            self._task = asyncio.create_task(self._inquire(number, job.hang.start_s))
            self._task.add_done_callback(self._done)

    def close(self) -> None:
        """Cancel the inquiry, and forget all suspicions."""
        task, self._task = self._task, None
        self._seen_at.clear()
        self._trial = ""
        if task is not None:
            task.cancel()

    def _done(self, task: "asyncio.Task[None]") -> None:
        if task is self._task:
            self.close()
        show_bug("an inquiry into a hang", task)

    def _is_running(self, number: int) -> bool:
        return self._group.round == number and self._group.phase is GroupPhase.RUNNING

    async def _inquire(self, number: int, start_s: float) -> None:
        looks: list[tuple[RankStack, ...]] = []
        inquiry = 1 + secrets.randbelow(COUNT_MAX)  # must differ from another master's
        while self._is_running(number):
            found = await self._ask(inquiry)
            # A node that does not respond will soon be lost or reconnect.
            looks = [] if found.silent else [*looks, found.stacks]
            if len(looks) == LOOKS:
                if self._is_running(number):
                    self._conclude(number, looks, start_s)
                return
            await asyncio.sleep(self._look_again_s)

    def _conclude(
        self, number: int, looks: Sequence[tuple[RankStack, ...]], start_s: float
    ) -> None:
        now = time.monotonic()
        idle_s = {rank: now - at for rank, at in self._seen_at.items()}
        found, after = compare(looks, idle_s, start_s), looks[-1]
        if found.verdict is None:
            self._dismiss(number, found)
            return
        failure = replace(failure_of(found.verdict, after), trial=self._trial)
        stacks = stacks_text(found.verdict, after)
        self._hung(Hung(number, failure, stacks, found.is_alone))

    def _dismiss(self, number: int, found: Finding) -> None:
        answer = NoHang(number, found.words)  # one for all nodes: encoded once
        for node in self._group.roster:
            if node.round == number and node.rank is not None and node.link is not None:
                self._send(node.link, answer)
