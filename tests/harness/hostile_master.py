"""A server that answers what it is given, in the protocol of a master: attacks its clients."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
from ft_run.rendezvous.transport.channel_options import MASTER_KEY, SERVICE


@contextmanager
def hostile_master(
    answers: dict[str, bytes], messages: Callable[[bytes], Sequence[bytes]] = lambda _: ()
) -> Iterator[str]:
    """Serve on this host; return the endpoint.

    Args:
        answers: the answer to each method with one request; it can be changed.
        messages: returns the messages on a node's stream, after its first message.
    """
    is_over = threading.Event()

    def attend(requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        context.send_initial_metadata(((MASTER_KEY, "1"),))
        yield from messages(next(requests))
        while context.is_active() and not is_over.wait(0.05):
            pass

    class Handler(grpc.GenericRpcHandler):
        def service(self, details: Any) -> Any:
            method = details.method.removeprefix(f"/{SERVICE}/")
            if method == "Attend":
                return grpc.stream_stream_rpc_method_handler(attend)
            return grpc.unary_unary_rpc_method_handler(lambda *_: answers[method])

    server = grpc.server(ThreadPoolExecutor(8), handlers=[Handler()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        is_over.set()
        server.stop(None).wait()
