"""Answers of an agent or ``ft-run master`` on its local socket."""

import os
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from ...rendezvous.diagnosis.hang import group_stacks
from ...rendezvous.master.master import Master
from ...rendezvous.master.status import job_status
from ...rendezvous.protocol.endpoint import Endpoint
from ..reporting.stack_answer import stacks_answer
from ..reporting.status_answer import status_dict
from ..version import VERSION


class Request(Struct, frozen=True):
    """A request of ``ft-run status`` or ``ft-run stacks``."""

    ask: str = ""
    """``job``, ``status`` or ``stacks``."""
    ranks: tuple[int, ...] = ()
    """Ranks for ``stacks``; empty for all."""


class LocalAnswers:
    """Answers about the job if its master is in this process, otherwise about this node."""

    def __init__(
        self,
        about: Callable[[], dict[str, Any]],
        endpoints: Sequence[Endpoint],
        master: Callable[[], Master | None],
        report: Callable[[], str],
        is_over: Callable[[], bool],
    ) -> None:
        """``about`` returns ``LiveStatus.summary`` and ``node_id``, as JSON values.

        ``master`` returns None if the master is in another process; ``endpoints`` is where other
        nodes connect to it, if they may. ``report`` returns ``StatusReply.report``.
        """
        self._about, self._endpoints = about, endpoints
        self._master, self._report, self._is_over = master, report, is_over

    async def answer(self, request: Request) -> dict[str, Any]:
        """Return the answer to a request."""
        master = self._master()
        match request.ask:
            case "job":
                return {"job": self._job()}
            case "status" if master is not None:
                return {"status": await self._status(master)}
            case "stacks" if master is not None:
                return {"stacks": await _stacks(master, request.ranks)}
            case "status" | "stacks":
                return {"error": "the master of this job is in another process"}
        return {"error": f"invalid value {request.ask!r} for ask: expected job"}

    async def last(self) -> dict[str, Any] | None:
        """Return the final answer for clients that are connected when the job ends."""
        master = self._master()
        if master is None or not self._is_over():
            return None
        return {"status": await self._status(master)}

    def _job(self) -> dict[str, Any]:
        return self._about() | {
            "pid": os.getpid(),
            "endpoints": [str(endpoint) for endpoint in self._endpoints],
            "hosts_master": self._master() is not None,
        }

    async def _status(self, master: Master) -> dict[str, Any]:
        return status_dict(await job_status(master, VERSION, self._report()))


async def _stacks(master: Master, ranks: Sequence[int]) -> dict[str, Any]:
    found = await master.whereabouts()
    stacks = [stack for stack in found.stacks if not ranks or stack.rank in ranks]
    groups = [(group.ranks, group.stack) for group in group_stacks(stacks)]
    return stacks_answer(master.group.round, groups, found.silent)
