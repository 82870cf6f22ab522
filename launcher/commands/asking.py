"""One request to a master: the common part of ``ft-run status`` and ``ft-run stacks``."""

from typing import Any

from ...errors import RefusedError, RendezvousError
from ...rendezvous.trust.source import read_trust
from ..cli.master_flags import StacksOptions, StatusOptions


async def ask_master(
    method: str, request: Any, reply: Any, options: StatusOptions | StacksOptions
) -> Any:
    """Return the master's answer.

    Args:
        method: the method of the service.
        request: the request message.
        reply: the class of the answer.
        options: the endpoint of the master, and the time limit.

    Raises:
        RendezvousError: no master answers at the endpoint.
        RefusedError: the master does not trust this process, or this process the master.
        UsageError: the token or a certificate cannot be used.
    """
    trust = read_trust(options.trust)
    import grpc
    import grpc.aio

    from ...rendezvous.transport.channel_options import SERVICE, client_options
    from ...rendezvous.transport.client import in_words, is_foreign
    from ...rendezvous.trust.handshake_errors import handshake_error
    from ...rendezvous.trust.wire import open_channel

    async with open_channel(options.endpoint, client_options(options.timeout_s), trust) as channel:
        ask: Any = channel.unary_unary(
            f"/{SERVICE}/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=reply.FromString,
        )
        try:
            return await ask(request, timeout=options.timeout_s)
        except grpc.aio.AioRpcError as error:
            if (
                why := await handshake_error(error.details() or "", options.endpoint, trust)
            ) is not None:
                raise RefusedError(why.sentence(options.endpoint)) from error
            if is_foreign(error):
                raise RendezvousError(
                    f"the server at {options.endpoint} is not an ft-run master; expected the "
                    "--rdzv-endpoint of the job."
                ) from error
            raise RendezvousError(
                f"no ft-run master answers at {options.endpoint} ({in_words(error)}); check the "
                "endpoint, and that the job is still running."
            ) from error
