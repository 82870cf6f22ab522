"""The link of an agent to a remote master: one stream, with automatic reconnection."""

import asyncio
import math
import random
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing, suppress
from functools import partial
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from msgspec.structs import replace

from ... import defaults
from ..group.admission import options_differ, succession_differences
from ..lease import fencing
from ..lease.search import Search
from ..master.link import LinkDown, LinkEvent, LinkLost, LinkUp
from ..protocol.bounds import OutOfBounds, check
from ..protocol.endpoint import Endpoint
from ..protocol.lease_messages import SuccessionSpec
from ..protocol.messages import Attend, Excluded, NodeMessage, Refused, RoomMessage, Verdict
from ..trust.credentials import Trust
from ..trust.handshake_errors import handshake_error
from ..trust.wire import open_channel
from .addresses import HOSTS
from .channel_options import (
    LED_BY_KEY,
    MASTER_KEY,
    SERVICE,
    SUCCESSION_KEY,
    TERM_KEY,
    client_options,
)
from .codec import WireError, decode, decode_master, encode_node
from .grpc_errors import ACCEPTS_ONLY, ENDED, NO_ANSWER, in_words, is_foreign, words
from .probe import why_unreachable

_FIRST_ANSWER_S = 5.0
_LISTED_ANSWER_S = 1.5
"""For one of several listed hosts; after that, the next one is tried."""
_SEARCHED_S = 5.0
"""After this time without a leader, the answer of each listed host is reported."""
_CLOSE_S = 2.0
_DISTRUST_S = 2 * defaults.VERDICT_GRACE_S
"""How long a node retries if tokens differ: a master runs that long after its job."""

_BACKOFF_FIRST_S = 0.1
_BACKOFF_MAX_S = 1.0


class GrpcLink:
    """Keeps a node connected: reconnects with jittered backoff, and gives up after a limit.

    Each attempt has its own channel, so that the name is resolved again and no earlier failure
    delays it.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        attend: Callable[[], Attend],
        on_event: Callable[[LinkEvent], None],
        *,
        silence_s: float,
        connect_timeout_s: float,
        master_timeout_s: float,
        port_is_taken: bool = False,
        listed: Sequence[Endpoint] = (),
        trust: Trust | None = None,
        claims: Callable[[], Sequence[RoomMessage]] = tuple,
    ) -> None:
        """Start connecting, on the running event loop.

        Args:
            attend: returns the first message of every stream, with the node's current state.
            silence_s: time within which an unresponsive master is detected.
            connect_timeout_s: limit for the first connection.
            master_timeout_s: how long the master can be unreachable later.
            port_is_taken: whether another process on this host has the endpoint's port.
            listed: all listed endpoints; empty if there is a single one.
            trust: credentials; None for plain text.
            claims: returns the messages directly after the first one (``Attend.claims``).
        """
        self._endpoints = listed or (endpoint,)
        self._has_rivals = bool(listed)
        self._search = Search(len(self._endpoints))
        self._answers: dict[Endpoint, str] = {}
        """Result of the last attempt at each endpoint."""
        self._attend, self._claims = attend, claims
        self._on_event = on_event
        self._options = client_options(silence_s)
        self._connect_timeout_s = connect_timeout_s
        self._distrust_s = min(_DISTRUST_S, connect_timeout_s)
        self._master_timeout_s = master_timeout_s
        self._port_is_taken = port_is_taken
        self._trust = trust
        self._outbox: asyncio.Queue[bytes | None] | None = None
        self._was_up = False
        self._opened_s = math.inf
        self._has_received = False
        """Whether the current stream has received a message."""
        self._learning: asyncio.Task[None] | None = None
        """Looks up the addresses that are used while the DNS does not respond."""
        self._over = False
        """Whether a verdict or refusal has arrived, or this side closes: no reconnection."""
        # Between two connections, gRPC would end its threads, and abort the process if it cannot
        # start them again. It keeps them while there is a channel; this one never connects.
        self._idle = grpc.aio.insecure_channel("unix:/nowhere")
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(self._ended)

    def send(self, message: NodeMessage) -> None:
        """Send a message; dropped while disconnected, as ``Attend`` and the claims have it all."""
        if self._outbox is not None:
            self._outbox.put_nowait(encode_node(message))

    async def close(self) -> None:
        """Flush pending messages, give the master a moment to end the stream, then end it."""
        self._over = True
        if self._outbox is not None:
            self._outbox.put_nowait(None)
            await asyncio.wait([self._task], timeout=_CLOSE_S)
        await self._idle.close()
        if self._learning is not None:
            self._learning.cancel()
        self._task.cancel()
        await asyncio.wait([self._task])  # ``_ended`` has reported an internal error

    def _ended(self, task: "asyncio.Task[None]") -> None:
        """Report an internal error, so that the node ends instead of waiting forever."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            sentence = (
                "internal error in the connection to the master, which is a bug of ft-run: "
                f"{error!r}."
            )
            self._on_event(LinkLost(sentence))

    async def _run(self) -> None:
        away_since = time.monotonic()
        attempts = 0
        was_sent = was_invalid = False
        refusal: str | None = None
        while True:
            last_refusal, refusal = refusal, None
            tried_at = time.monotonic()
            tried = self._endpoints[self._search.target]
            self._has_received = is_elsewhere = False
            try:
                reason = await self._attend_once(probes=attempts > 0)
                # The backoff stays if a master accepts and drops the stream immediately, and a
                # master that sends nothing in between counts as unreachable.
                lasted_s = time.monotonic() - tried_at
                if lasted_s > _BACKOFF_MAX_S:
                    attempts = 0
                if self._has_received or lasted_s > _FIRST_ANSWER_S:
                    away_since, was_invalid = time.monotonic(), False
            except _InvalidError as error:
                # It will send the same on the next streams: they do not count as connections.
                away_since = away_since if was_invalid else time.monotonic()
                reason, was_invalid = str(error), True
                self._search.failed()
            except _ElsewhereError as error:
                reason, is_elsewhere = str(error), True
            except _NotAMasterError:
                self._search.failed()
                if not self._was_up and not self._has_rivals:
                    self._on_event(LinkLost(self._not_a_master()))
                    return
                reason = "not an ft-run master"  # e.g. a proxy in front of it
            except _UnfitError as error:
                # Not the error, whose traceback refers to the call (see ``_greet``).
                reason, refusal = str(error), error.sentence
                self._search.failed()
            except _UnreachableError as error:
                reason = str(error)
                if reason in (NO_ANSWER, ACCEPTS_ONLY):  # it may be as before, and busy
                    refusal = last_refusal
                self._search.failed()
            if self._over:
                return
            # For a while it may be the master of the previous job, with a different token.
            first_limit_s = self._connect_timeout_s if refusal is None else self._distrust_s
            limit = self._master_timeout_s if self._was_up else first_limit_s
            self._answers[tried] = reason
            now = time.monotonic()
            if now - away_since >= limit:
                self._on_event(self._gave_up(limit, reason, refusal))
                return
            hosts = self._hosts() if now - away_since >= _SEARCHED_S else ()
            if hosts or not is_elsewhere:
                self._on_event(LinkDown(reason, away_since + limit - now, hosts))
            # Immediately try a host that was named as the leader, but not the one that it names.
            was_sent = is_elsewhere and self._search.is_sent and not was_sent
            await asyncio.sleep(0.0 if was_sent else _backoff_s(attempts))
            attempts += 1

    async def _attend_once(self, *, probes: bool) -> str:
        endpoint = self._endpoints[self._search.target]
        self._opened_s = fencing.now()
        if probes and (why := await why_unreachable(endpoint)) is not None:
            raise _UnreachableError(words(why))
        metadata = ((TERM_KEY, str(self._search.term)),)
        target = HOSTS.target(endpoint)
        async with open_channel(target, self._options, self._trust, endpoint.host) as channel:
            call: Any = channel.stream_stream(f"/{SERVICE}/Attend")(metadata=metadata)
            # From here on, ``Attend`` no longer contains all events: later ones are sent after it.
            outbox: asyncio.Queue[bytes | None] = asyncio.Queue()
            self._outbox = outbox
            try:
                await self._open(call, endpoint)
                if not self._has_rivals:
                    self._up()
                writer = asyncio.create_task(self._write(call, outbox))
                writer.add_done_callback(self._ended)
                try:
                    return await self._read(call)
                finally:
                    self._outbox = None
                    writer.cancel()
                    await asyncio.wait([writer])
            finally:
                self._outbox = None
                call.cancel()

    async def _open(self, call: Any, endpoint: Endpoint) -> None:
        patience_s = _LISTED_ANSWER_S if self._has_rivals else _FIRST_ANSWER_S
        try:
            failure = await asyncio.wait_for(self._greet(call), patience_s)
        except asyncio.TimeoutError:
            raise _UnreachableError(NO_ANSWER) from None
        if isinstance(failure, grpc.aio.AioRpcError):
            raise await self._cannot_open(failure, endpoint)
        if failure is not None:
            raise failure()

    async def _greet(self, call: Any) -> "grpc.aio.AioRpcError | _NoLeader | None":
        """Send ``Attend``; return gRPC's error, or why this host is not the leader, or None.

        The error is a new one, returned and not raised: the traceback of an error refers to the
        call, and the waiting caller refers to the error, in a cycle with ``wait_for`` or the
        callers' frames. A channel, even if closed, keeps connecting until its calls are
        deallocated.
        """
        try:
            # Nothing is sent before the master's metadata: a failed write would hide the cause.
            greeting = await call.initial_metadata()
            if MASTER_KEY not in greeting:
                code, details = await call.code(), await call.details()
                if self._has_rivals and code is grpc.StatusCode.OK:
                    self._search.failed()  # it does not lead, and has answered in time
                    return partial(_ElsewhereError, ENDED)
                return _rpc_error(code, details)
            claims = self._claims()
            first = replace(self._attend(), claims=len(claims))
            if self._has_rivals and (no_leader := self._no_leader(first, greeting)) is not None:
                return no_leader
            await call.write(encode_node(first))
            for claim in claims:
                await call.write(encode_node(claim))
        except grpc.aio.AioRpcError as error:
            return _rpc_error(error.code(), error.details() or "")  # without a traceback
        except asyncio.InvalidStateError:  # the stream has ended since the initial metadata
            return _rpc_error(await call.code(), await call.details())
        return None

    def _no_leader(self, first: Attend, greeting: "grpc.aio.Metadata") -> "_NoLeader | None":
        endpoint = self._endpoints[self._search.target]
        differs = _compare(first.job.succession, greeting, endpoint)
        return differs or _leads_not(self._search, greeting, self._endpoints)

    def _up(self) -> None:
        self._on_event(LinkUp(self._was_up, self._opened_s))
        self._was_up = True
        if self._learning is None or self._learning.done():
            self._learning = asyncio.create_task(HOSTS.learn(self._endpoints))

    async def _read(self, call: Any) -> str:
        try:
            # Without this, an early exit from the loop leaves a cycle of the call and its iterator.
            async with aclosing(aiter(call)) as messages:
                async for data in messages:
                    message = decode_master(data)
                    check(message)
                    if self._has_rivals and not self._has_received:
                        # Not earlier: the leader may not have received ``Attend``.
                        self._up()
                    self._has_received = True
                    if isinstance(message, Verdict | Refused | Excluded):
                        self._over = True
                    self._on_event(message)
        except grpc.aio.AioRpcError as error:
            return in_words(error)
        except (WireError, OutOfBounds, DecodeError) as error:
            raise _InvalidError(f"invalid message from the master: {error}") from None
        return ENDED

    async def _write(self, call: Any, outbox: "asyncio.Queue[bytes | None]") -> None:
        # The reader reports a broken stream.
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            while (data := await outbox.get()) is not None:
                await call.write(data)
            await call.done_writing()

    async def _cannot_open(self, error: grpc.aio.AioRpcError, endpoint: Endpoint) -> Exception:
        if (why := await handshake_error(error.details() or "", endpoint, self._trust)) is not None:
            return _UnfitError(why.words, why.sentence(endpoint))
        return _NotAMasterError() if is_foreign(error) else _UnreachableError(in_words(error))

    def _hosts(self) -> tuple[str, ...]:
        if not self._has_rivals:
            return ()
        return tuple(
            f"{endpoint}: {self._answers.get(endpoint, 'not tried yet')}"
            for endpoint in self._endpoints
        )

    def _not_a_master(self) -> str:
        return (
            f"the server at {self._endpoints[0]} is not an ft-run master; check the endpoint "
            "(--rdzv-endpoint), or use a free port."
        )

    def _gave_up(self, limit_s: float, reason: str, refusal: str | None) -> LinkEvent:
        if refusal is not None and not self._was_up:
            return Refused(refusal)
        return LinkLost(self._no_master(limit_s, reason))

    def _no_master(self, limit_s: float, reason: str) -> str:
        where = " or ".join(map(str, self._endpoints))
        reason = "; ".join(self._hosts()) or reason
        if self._was_up:
            return (
                f"no connection to the master at {where} for {limit_s:g} s ({reason}); "
                "--rdzv-conf master_timeout=SECONDS sets this limit."
            )
        if self._port_is_taken:
            return (
                f"port {self._endpoints[0].port} of this host is in use by a process that does "
                f"not answer as an ft-run master ({reason}); stop it, or use another port for the "
                "endpoint (--rdzv-endpoint)."
            )
        return (
            f"no master at {where} within {limit_s:g} s ({reason}); check --rdzv-endpoint, and "
            "that ft-run runs on that host."
        )


class _InvalidError(Exception):
    """Raised if the master has sent an invalid message."""


class _UnfitError(Exception):
    """The two ends do not trust each other, or have different lists of hosts."""

    def __init__(self, reason: str, sentence: str) -> None:
        super().__init__(reason)
        self.sentence = sentence


class _UnreachableError(Exception):
    """The master cannot be reached now."""


class _ElsewhereError(Exception):
    """The host that answers does not lead, or by an old lease; the search has the next host."""


_NoLeader = Callable[[], Exception]
"""Creates a new error, without a traceback."""


def _compare(
    own: SuccessionSpec | None, greeting: "grpc.aio.Metadata", endpoint: Endpoint
) -> _NoLeader | None:
    """Return the error to raise if the host that has answered has different options.

    The leader that it names is then irrelevant.
    """
    given = greeting.get(SUCCESSION_KEY)
    try:
        theirs = decode(SuccessionSpec, given) if isinstance(given, bytes) else None
    except (WireError, DecodeError):
        return partial(_UnreachableError, "invalid answer")
    if theirs is None and greeting.get(TERM_KEY) is not None:
        return None  # it leads, and compares when this node joins; or it knows no leader
    if differences := succession_differences(own, theirs, str(endpoint)):
        return partial(_UnfitError, "different options", options_differ(differences))
    return None


def _leads_not(
    search: Search, greeting: "grpc.aio.Metadata", endpoints: Sequence[Endpoint]
) -> _NoLeader | None:
    """Follow the host that has answered, if it leads; otherwise return the error to raise."""
    try:
        term = int(greeting.get(TERM_KEY, ""))
        led_by = int(greeting.get(LED_BY_KEY, "-2"))
    except ValueError:  # that host has a single endpoint
        search.failed()
        return partial(_ElsewhereError, "it has one endpoint, not a list")
    if led_by >= -1:
        search.led_by(led_by, term)
        is_listed = 0 <= led_by < len(endpoints)
        where = f"led by {endpoints[led_by]}" if is_listed else "no leader yet"
        return partial(_ElsewhereError, where)
    return None if search.may_follow(term) else partial(_ElsewhereError, "its lease is outdated")


class _NotAMasterError(Exception):
    """The peer is not an ft-run master."""


def _rpc_error(code: grpc.StatusCode, details: str) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details)


def _backoff_s(attempts: int) -> float:
    """Return the seconds before the next attempt: none at first, then doubling, with jitter.

    The jitter (half to the whole of the step) spreads the attempts of thousands of agents.
    """
    if attempts == 0:
        return 0.0
    step = min(_BACKOFF_MAX_S, _BACKOFF_FIRST_S * 2.0 ** min(attempts - 1, 10))
    return step * random.uniform(0.5, 1.0)  # noqa: S311 - not for secrets
