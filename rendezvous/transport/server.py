"""The master on the network: gRPC streams, ``Status`` and the standard health service."""

import asyncio
import errno
import gc
import resource
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from ...errors import PortInUseError, UsageError
from ...events.master import NodeRefused
from ...protos import rendezvous_pb2 as pb
from ...tasks import show_bug
from ..diagnosis.hang import group_stacks
from ..lease.succession import OtherOptionsError, Succession
from ..master.master import Master
from ..master.status import job_status
from ..protocol import bounds
from ..protocol.endpoint import Endpoint
from ..protocol.messages import Attend, MasterMessage, Refused
from ..trust.credentials import Trust
from ..trust.wire import listen
from .channel_options import LED_BY_KEY, MASTER_KEY, SERVICE, SUCCESSION_KEY, server_options
from .codec import WireError, decode_node, encode, encode_master, part_of
from .health import NO_SENSE, health_handler
from .lease_calls import NO_SENSE as NO_SENSE_OF_HOSTS
from .lease_calls import answered, followed, greeting_data
from .silent_streams import SilentStreams

_STOP_GRACE_S = 0.5

_UNREAD_MESSAGES = 1_000
"""Maximum number of messages queued for a node that does not read; then its stream ends."""

_WHOLE_STACKS, _FEW_FRAMES = 100, 8
"""With more groups, only this many frames are sent, so that the response fits into one message."""

_CONNECTIONS_MAX = 12_000
"""Simultaneous connections. Each takes up to 70 kB of memory, and a file descriptor."""

_LAST_WORDS_S = 10.0
"""How long a node that has ended its side has to read its last messages."""

_NOT_AN_AGENT = (
    WireError,
    DecodeError,
    grpc.RpcError,
    EOFError,
    TimeoutError,
)
"""Errors of a stream whose client is not an agent."""


_Handler = Callable[[Any, "grpc.aio.ServicerContext[Any, Any]"], Awaitable[Any]]


class MasterServer:
    """Serves one master on one port."""

    def __init__(
        self,
        master: Master | None,
        version: str,
        silence_s: float,
        trust: Trust | None = None,
        succession: Succession | None = None,
    ) -> None:
        """Serve a master, or with several endpoints the one of ``succession`` while it leads."""
        self.report: Callable[[], str] = str
        """Returns ``StatusReply.report``."""
        self._only_master = master
        self._trust = trust
        self._succession = succession
        self._version = version
        self._silent = SilentStreams()
        self._silence_s = silence_s
        self._server: grpc.aio.Server | None = None
        self._calls = set[asyncio.Task[Any]]()
        """Tasks in which gRPC runs the handlers."""

    async def start(self, address: Endpoint) -> int:
        """Listen at a host (``::`` for all interfaces) and port (0 for a free one).

        Return the port.

        Raises:
            PortInUseError: If another process is already listening there.
            UsageError: If this host does not have the address.
        """
        check_can_bind(address)  # before anything is created: a port in use is tried for hours
        _raise_open_files_limit()
        self._server = self._new_server()
        self._server.add_generic_rpc_handlers((await health_handler(),))
        try:
            port = listen(self._server, address, self._trust)
        except RuntimeError as error:
            raise PortInUseError(f"cannot listen at {address}: {error}") from error
        _collect_garbage_rarely()
        await self._server.start()
        return port

    def _new_server(self) -> grpc.aio.Server:
        server = grpc.aio.server(options=[*server_options(self._silence_s), _connections()])
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "Attend": grpc.stream_stream_rpc_method_handler(self._kept(self._attend)),
            "Stacks": grpc.unary_unary_rpc_method_handler(
                self._kept(self._stacks),
                response_serializer=pb.StacksReply.SerializeToString,
            ),
            "Status": grpc.unary_unary_rpc_method_handler(
                self._kept(self._status),
                response_serializer=pb.StatusReply.SerializeToString,
            ),
        }
        if self._succession is not None:
            handlers["Lease"] = grpc.unary_unary_rpc_method_handler(self._kept(self._lease))
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        return server

    async def stop(self) -> None:
        """Flush and end all streams, then stop listening."""
        if self._only_master is not None:
            self._only_master.close()
        if self._server is not None:
            await self._server.stop(_STOP_GRACE_S)
        if self._calls:
            # gRPC prints a traceback for each handler that the end of the event loop interrupts.
            await asyncio.wait(self._calls, timeout=_STOP_GRACE_S)

    def _kept(self, handler: _Handler) -> _Handler:
        """Return a handler whose tasks ``stop`` waits for."""

        async def handle(request: Any, context: "grpc.aio.ServicerContext[Any, Any]") -> Any:
            task = asyncio.current_task()
            assert task is not None
            self._calls.add(task)
            task.add_done_callback(self._calls.discard)
            return await handler(request, context)

        return handle

    def _master_now(self) -> Master | None:
        return self._only_master if self._succession is None else self._succession.leading()

    async def _master_to_ask(self, context: "grpc.aio.ServicerContext[Any, Any]") -> Master:
        master = self._master_now()
        if master is None:
            assert self._succession is not None
            where = f"this host is not the leader: {self._succession.leader_in_words()}"
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, where)
        assert master is not None
        return master

    async def _lease(
        self, request: bytes, context: "grpc.aio.ServicerContext[bytes, bytes]"
    ) -> bytes:
        assert self._succession is not None
        try:
            return answered(self._succession, request, dict(context.invocation_metadata() or ()))
        except (OtherOptionsError, *NO_SENSE_OF_HOSTS) as error:
            own = ((SUCCESSION_KEY, encode(self._succession.spec_seen)),)
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error), own)
            raise  # from abort

    async def _attend(
        self,
        _requests: AsyncIterator[bytes],
        context: "grpc.aio.ServicerContext[bytes, bytes]",
    ) -> None:
        # The node waits for this: it identifies a master before the first message.
        greeting: dict[str, str | bytes] = {MASTER_KEY: self._version}
        if self._succession is not None:
            term = followed(dict(context.invocation_metadata() or ()))
            greeting |= greeting_data(self._succession.greeting(term))
        await context.send_initial_metadata(tuple(greeting.items()))
        master = self._master_now()
        if LED_BY_KEY in greeting or master is None:
            # A stream that ends immediately can lose its metadata: the node ends it when it has
            # received them.
            with suppress(EOFError, TimeoutError):
                await self._silent.first_word(context.read)
            return
        try:
            attend = decode_node(await self._silent.first_word(context.read))
            bounds.check(attend)
        except bounds.OutOfBounds as error:
            sentence = f"invalid message: {error}"
            master.refused(NodeRefused(f"a node at {context.peer()}", sentence))
            await context.write(encode_master(Refused(sentence)))
            return
        except _NOT_AN_AGENT:
            return
        if isinstance(attend, Attend):
            await self._serve(attend, master, context)

    async def _serve(
        self, attend: Attend, master: Master, context: "grpc.aio.ServicerContext[bytes, bytes]"
    ) -> None:
        outbox: asyncio.Queue[MasterMessage | None] = asyncio.Queue()
        handler = asyncio.current_task()
        assert handler is not None
        is_let_go = False

        def let_go() -> None:
            nonlocal is_let_go
            is_let_go = True
            handler.cancel()

        def deliver(message: MasterMessage | None) -> None:
            if outbox.qsize() < _UNREAD_MESSAGES:
                outbox.put_nowait(message)
            else:
                let_go()

        link = master.attach(deliver)
        reader: asyncio.Task[None] | None = None
        try:
            master.receive(link, attend)
            reader = asyncio.create_task(self._read(link, master, context, outbox, let_go))
            # The node sees only the end of its stream.
            reader.add_done_callback(partial(show_bug, "the master"))
            while (message := await outbox.get()) is not None:
                await context.write(encode_master(message))
        except asyncio.CancelledError:
            if not is_let_go:  # else the stream ends with the return, like any other
                raise
        finally:
            if reader is not None:
                reader.cancel()
            master.detach(link)

    async def _read(
        self,
        link: int,
        master: Master,
        context: "grpc.aio.ServicerContext[bytes, bytes]",
        outbox: "asyncio.Queue[MasterMessage | None]",
        let_go: Callable[[], None],
    ) -> None:
        try:
            while isinstance(data := await context.read(), bytes):
                message = decode_node(data)
                if isinstance(message, Attend):
                    raise WireError("only the first message of a stream is Attend")
                bounds.check(message)
                master.receive(link, message)
        except (bounds.OutOfBounds, *_NOT_AN_AGENT):
            let_go()  # even for a broken stream: nothing more is sent on it
        finally:
            outbox.put_nowait(None)
            # A client that does not read would block the last messages.
            asyncio.get_running_loop().call_later(_LAST_WORDS_S, let_go)

    async def _stacks(
        self,
        request: bytes,
        context: "grpc.aio.ServicerContext[bytes, pb.StacksReply]",
    ) -> pb.StacksReply:
        try:
            wanted = set(pb.StacksRequest.FromString(request).ranks)
        except DecodeError:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, NO_SENSE)
        master = await self._master_to_ask(context)
        found = await master.whereabouts()
        stacks = [stack for stack in found.stacks if not wanted or stack.rank in wanted]
        reply = pb.StacksReply(round=master.group.round, silent=found.silent)
        groups = group_stacks(stacks)
        for group in groups:
            added = reply.groups.add(ranks=group.ranks, stack=part_of(group.stack))
            if len(groups) > _WHOLE_STACKS:
                del added.stack.frames[_FEW_FRAMES:]
        return reply

    async def _status(
        self,
        request: bytes,
        context: "grpc.aio.ServicerContext[bytes, pb.StatusReply]",
    ) -> pb.StatusReply:
        try:
            until_end = pb.StatusRequest.FromString(request).until_end
        except DecodeError:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, NO_SENSE)
        master = self._master_now()
        if master is None:
            other = pb.StatusReply(
                phase="another host is the leader", round=-1, version=self._version
            )
            assert self._succession is not None
            _describe(other, self._succession)
            return other
        if until_end:
            await master.finished()
        reply: pb.StatusReply = part_of(await job_status(master, self._version, self.report()))
        if self._succession is not None:
            _describe(reply, self._succession)
        return reply


def _describe(reply: pb.StatusReply, succession: Succession) -> None:
    reply.hosts.extend(map(str, succession.endpoints))
    leader = succession.leader()
    if leader is not None:
        reply.leader, reply.term = str(succession.endpoints[leader[0]]), leader[1]
    reply.lease_s = succession.lease_left_s()


def check_can_bind(address: Endpoint) -> None:
    """Check that this process can listen at an address.

    Raises:
        PortInUseError: If another process is already listening there.
        UsageError: If this host does not have the address, or this user cannot bind the port.
    """
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            with suppress(OSError):
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        try:
            probe.bind((address.host, address.port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise PortInUseError(
                    f"port {address.port} of this host is in use; free it, or listen at another "
                    "with --bind."
                ) from error
            if error.errno == errno.EACCES:
                raise UsageError(
                    f"this user may not listen at {address}; use a port above 1023."
                ) from error
            raise UsageError(
                f"cannot listen at {address}: {error.strerror}; give an address of this host."
            ) from error


def _collect_garbage_rarely() -> None:
    """Raise the thresholds: a round of 10,000 nodes creates 100,000 objects, nearly all live.

    By default, that starts several full collections, each of which traverses all objects of
    thousands of streams: a third of the master's CPU time in a round (benchmarks/scale.py).
    """
    gc.set_threshold(50_000, 20, 100)


def _connections() -> tuple[str, int]:
    """Return the maximum number of connections, as an option of gRPC; further ones are closed.

    A client that opens thousands of idle connections keeps new nodes out for the time of one
    handshake only. A quarter of the file descriptors is reserved for the agent, for its workers.
    """
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _CONNECTIONS_MAX
    if files != resource.RLIM_INFINITY:
        most = min(most, files * 3 // 4)
    return ("grpc.max_allowed_incoming_connections", most)


def _raise_open_files_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
