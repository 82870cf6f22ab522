"""Requests to a master by gRPC."""

from collections.abc import Sequence
from typing import Any

from ...errors import RefusedError, RendezvousError
from ...rendezvous.protocol.endpoint import Endpoint
from ...rendezvous.trust.source import TrustOptions, read_trust
from ..reporting.status_answer import status_dict


class MasterCalls:
    """A connection to a master; use it with ``async with``.

    Its methods raise ``RendezvousError`` if no master answers at the endpoint, and ``RefusedError``
    if the master does not trust this process, or this process the master.
    """

    def __init__(self, endpoint: Endpoint, trust: TrustOptions | None, timeout_s: float) -> None:
        """Take where the master is.

        Raises:
            UsageError: the token or a certificate cannot be used.
        """
        from ...rendezvous.transport.channel_options import client_options
        from ...rendezvous.trust.wire import open_channel

        self.endpoint = endpoint
        self._trust = read_trust(trust)
        self._timeout_s = timeout_s
        self._channel = open_channel(endpoint, client_options(timeout_s), self._trust)

    async def __aenter__(self) -> "MasterCalls":
        """Connect when the first request is sent."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Disconnect."""
        await self._channel.close()

    async def status(self) -> dict[str, Any]:
        """Return the status of the job, as ``status_dict`` does."""
        return await self._status(until_end=False)

    async def ended(self) -> dict[str, Any]:
        """Wait for the end of the job; return the last status."""
        return await self._status(until_end=True)

    async def _status(self, *, until_end: bool) -> dict[str, Any]:
        from ...protos import rendezvous_pb2 as pb

        request = pb.StatusRequest(until_end=until_end)
        return as_status(await self._ask("Status", request, pb.StatusReply, is_patient=until_end))

    async def stacks(self, ranks: Sequence[int]) -> dict[str, Any]:
        """Return the stacks of ranks, of all if none is named, with ``lines``."""
        from ...protos import rendezvous_pb2 as pb
        from ...rendezvous.protocol.stacks import RankStack
        from ...rendezvous.transport.codec import from_part
        from ..reporting.stack_answer import stacks_answer

        reply = await self._ask("Stacks", pb.StacksRequest(ranks=ranks), pb.StacksReply)
        groups = [(tuple(one.ranks), from_part(RankStack, one.stack)) for one in reply.groups]
        silent = list(reply.silent)
        return stacks_answer(reply.round, groups, silent)

    async def _ask(self, method: str, request: Any, reply: Any, *, is_patient: bool = False) -> Any:
        """Return the master's answer.

        Args:
            method: the method of the service.
            request: the request message.
            reply: the class of the answer.
            is_patient: the answer may take any time.
        """
        import grpc.aio

        from ...rendezvous.transport.channel_options import SERVICE
        from ...rendezvous.transport.grpc_errors import in_words, is_foreign
        from ...rendezvous.trust.handshake_errors import handshake_error

        endpoint = self.endpoint
        ask: Any = self._channel.unary_unary(
            f"/{SERVICE}/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=reply.FromString,
        )
        try:
            return await ask(request, timeout=None if is_patient else self._timeout_s)
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


def as_status(reply: Any) -> dict[str, Any]:
    """Return a ``StatusReply`` of protobuf as JSON values, with all fields."""
    from ...rendezvous.protocol.status import StatusReply
    from ...rendezvous.transport.codec import from_part

    return status_dict(from_part(StatusReply, reply))
