"""What an agent answers on its local socket."""

import os
from collections.abc import Callable, Mapping
from typing import Any

from ..options import RendezvousOptions
from ..version import VERSION
from .agent import Agent
from .hosting import Hosting
from .identity import NodeIdentity


class LocalAnswers:
    """Answers for the job, if its master is in this process; else for this node."""

    def __init__(
        self,
        agent: Agent,
        hosting: Hosting,
        identity: NodeIdentity,
        options: RendezvousOptions,
        report: Callable[[], str],
    ) -> None:
        """Create the answers of one agent.

        Args:
            agent: the source of this node's status.
            hosting: has the master, if it is hosted here.
            identity: of this node.
            options: has the address of the master, if it is hosted elsewhere.
            report: returns ``StatusReply.report``.
        """
        self._agent, self._hosting, self._identity = agent, hosting, identity
        self._options, self._report = options, report

    async def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to a request: ``{"ask": "job"}``, ``status`` or ``stacks``."""
        match request.get("ask"):
            case "job":
                return {"job": self._job()}
            case "status" if self._hosting.master is not None:
                return {"status": await self._status()}
            case "stacks" if self._hosting.master is not None:
                return {"stacks": await self._stacks(request.get("ranks"))}
            case "status" | "stacks":
                return {"error": "the master of this job is in another process"}
        return {"error": f"invalid value {request.get('ask')!r} for ask: expected job"}

    async def last(self) -> dict[str, Any] | None:
        """Return the answer for those that are connected when the job has ended."""
        has_ended = self._agent.verdict is not None and self._hosting.master is not None
        return {"status": await self._status()} if has_ended else None

    def _job(self) -> dict[str, Any]:
        options = self._options
        endpoints = options.endpoints or ((options.endpoint,) if options.endpoint else ())
        return self._agent.status.summary() | {
            "node_id": self._identity.node_id,
            "pid": os.getpid(),
            "endpoints": [str(endpoint) for endpoint in endpoints],
            "hosts_master": self._hosting.master is not None,
        }

    async def _status(self) -> dict[str, Any]:
        from ...rendezvous.master.status import job_status
        from ..reporting.status_answer import status_dict

        master = self._hosting.master
        assert master is not None
        return status_dict(await job_status(master, VERSION, self._report()))

    async def _stacks(self, ranks: object) -> dict[str, Any]:
        from ...rendezvous.diagnosis.hang import group_stacks
        from ..reporting.stack_answer import stacks_dict, stacks_lines

        master = self._hosting.master
        assert master is not None
        found = await master.whereabouts()
        wanted = set(ranks) if isinstance(ranks, list) else set()
        stacks = [stack for stack in found.stacks if not wanted or stack.rank in wanted]
        groups = [(group.ranks, group.stack) for group in group_stacks(stacks)]
        answer = stacks_dict(master.group.round, groups, found.silent)
        return answer | {"lines": list(stacks_lines(groups, found.silent))}
