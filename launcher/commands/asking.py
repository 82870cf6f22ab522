"""Requests to a master by gRPC."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import grpc.aio
from google.protobuf.message import DecodeError

from ...errors import RefusedError, RendezvousError, UsageError
from ...protos import rendezvous_pb2 as pb
from ...rendezvous.protocol.bounds import OutOfBounds, check
from ...rendezvous.protocol.endpoint import Endpoint
from ...rendezvous.protocol.stacks import RankStack
from ...rendezvous.protocol.status import StatusReply
from ...rendezvous.transport.channel_options import SERVICE, client_options
from ...rendezvous.transport.codec import WireError, from_part
from ...rendezvous.transport.grpc_errors import in_words, is_foreign
from ...rendezvous.trust.handshake_errors import handshake_error
from ...rendezvous.trust.source import TrustOptions, read_trust
from ...rendezvous.trust.wire import open_channel
from ..reporting.stack_answer import stacks_answer
from ..reporting.status_answer import status_dict

_LEADER_S: Final = 2.0
"""Time limit for the leader if another host was queried; then that host's own answer is used."""


class MasterCalls:
    """A connection to a master; use it with ``async with``.

    Its methods raise ``RendezvousError`` if no master answers at the endpoint, and ``RefusedError``
    if the master does not trust this process, or this process does not trust the master.
    """

    def __init__(self, endpoint: Endpoint, trust: TrustOptions | None, timeout_s: float) -> None:
        """``endpoint`` may list several hosts that may lead."""
        self._given = (Endpoint(endpoint.host, endpoint.port), *endpoint.others)
        self._trust = read_trust(trust)
        self._timeout_s = timeout_s
        self._channel: Any = None
        self._next = list(self._given)
        self._connect(self._next.pop(0))

    def _connect(self, endpoint: Endpoint) -> None:
        """Open a channel; it connects with the first request."""
        self.endpoint = endpoint
        self._channel = open_channel(endpoint, client_options(self._timeout_s), self._trust)

    async def _switch_to(self, endpoint: Endpoint) -> None:
        await self._channel.close()
        self._connect(endpoint)

    async def __aenter__(self) -> "MasterCalls":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()

    async def status(self) -> dict[str, Any]:
        """Return the status of the job, like ``status_dict``, from the leader if it answers.

        Otherwise it is the status of the queried host, which names the leader.
        """
        status = await self._status(until_end=False)
        leader = leader_elsewhere(status)
        if leader is None:
            return status
        here = self.endpoint
        await self._switch_to(leader)
        try:
            return await self._status(until_end=False, timeout_s=min(self._timeout_s, _LEADER_S))
        except (RendezvousError, RefusedError):
            await self._switch_to(here)
            return status

    async def ended(self) -> dict[str, Any]:
        """Wait for the end of the job; return the last status."""
        return await self._status(until_end=True)

    async def _status(self, *, until_end: bool, timeout_s: float | None = None) -> dict[str, Any]:
        request = pb.StatusRequest(until_end=until_end)
        limit_s = math.inf if until_end else timeout_s
        reply = await self._ask("Status", request, pb.StatusReply, limit_s)
        with self._reading():
            return as_status(reply)

    async def stacks(self, ranks: Sequence[int]) -> dict[str, Any]:
        """Return the stacks of the given ranks, or of all if empty, with ``lines``."""
        request = pb.StacksRequest(ranks=ranks)
        try:
            reply = await self._ask_here("Stacks", request, pb.StacksReply, None)
        except RendezvousError:
            # The host may not lead. If queried first, the status would wait for nodes that do not
            # answer, as the stacks do.
            await self.status()
            reply = await self._ask("Stacks", request, pb.StacksReply)
        with self._reading():
            groups = [(tuple(one.ranks), from_part(RankStack, one.stack)) for one in reply.groups]
            for _, stack in groups:
                check(stack)
        silent = list(reply.silent)
        return stacks_answer(reply.round, groups, silent)

    async def _ask(
        self, method: str, request: Any, reply: Any, limit_s: float | None = None
    ) -> Any:
        """Return the answer of the first host that answers, each within ``limit_s`` seconds.

        None is the usual limit.
        """
        try:
            return await self._ask_here(method, request, reply, limit_s)
        except RendezvousError:
            is_last = not self._next
            self._next = self._next or list(self._given)  # all of them for the next request
            await self._switch_to(self._next.pop(0))
            if is_last:
                raise
        return await self._ask(method, request, reply, limit_s)

    async def _ask_here(self, method: str, request: Any, reply: Any, limit_s: float | None) -> Any:
        endpoint = self.endpoint
        ask: Any = self._channel.unary_unary(
            f"/{SERVICE}/{method}",
            request_serializer=type(request).SerializeToString,
        )
        try:
            timeout_s = self._timeout_s if limit_s is None else limit_s
            data = await ask(request, timeout=timeout_s if timeout_s < math.inf else None)
        except grpc.aio.AioRpcError as error:
            why = await handshake_error(error.details() or "", endpoint, self._trust)
            if why is not None:
                raise RefusedError(why.sentence(endpoint)) from error
            if is_foreign(error):
                raise RendezvousError(
                    f"the server at {endpoint} is not an ft-run master; expected the "
                    "--rdzv-endpoint of the job."
                ) from error
            raise RendezvousError(
                f"no ft-run master answers at {endpoint} ({in_words(error)}); check the "
                "endpoint, and that the job is still running."
            ) from error
        with self._reading():
            return reply.FromString(data)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Convert errors of reading an answer to ``RendezvousError``."""
        try:
            yield
        except (DecodeError, OutOfBounds, WireError) as error:
            raise RendezvousError(
                f"the answer of the server at {self.endpoint} is invalid: {error}".rstrip(".")
                + "; expected the ft-run master of the job, of the same version."
            ) from error


def leader_elsewhere(status: Mapping[str, Any]) -> Endpoint | None:
    """Return the leader that an answer names, if it is another host; otherwise None."""
    if not status.get("hosts") or status["lease_s"] > 0 or not status["leader"]:
        return None
    try:
        return Endpoint.parse(status["leader"])
    except UsageError:  # the server is not an ft-run master
        return None


def as_status(reply: Any) -> dict[str, Any]:
    """Return a ``StatusReply`` of protobuf as JSON values, with all fields.

    Raises:
        OutOfBounds: If a value is not within its bounds.
        WireError: If the reply is invalid.
    """
    status = from_part(StatusReply, reply)
    check(status)
    return status_dict(status)
