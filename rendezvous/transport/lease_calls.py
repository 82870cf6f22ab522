"""The calls between the listed hosts: the requests of the election and their answers."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from ..lease.succession import Greeting, OtherOptionsError, Succession
from ..lease.times import LeaseTimes
from ..protocol import bounds, lease_messages
from ..protocol.bounds import BALLOT_MAX
from ..protocol.endpoint import Endpoint
from ..protocol.lease_messages import LeaseAnswer, LeaseAsk, SuccessionSpec
from ..trust.credentials import Trust
from ..trust.wire import open_channel
from .addresses import HOSTS
from .channel_options import LED_BY_KEY, SERVICE, SUCCESSION_KEY, TERM_KEY, client_options
from .codec import WireError, decode, encode
from .probe import why_unreachable

NO_SENSE = (bounds.OutOfBounds, WireError, DecodeError)
"""Raised for messages that no listed host sends."""

_TERM_DIGITS = len(str(BALLOT_MAX))

Metadata = Mapping[str, str | bytes]


class LeaseCalls:
    """Sends requests to the other listed hosts, on one channel to each that is reachable."""

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        spec: SuccessionSpec,
        times: LeaseTimes,
        trust: Trust | None = None,
    ) -> None:
        self._endpoints, self._times, self._trust = endpoints, times, trust
        self._spec = spec
        self._metadata = ((SUCCESSION_KEY, encode(spec)),)
        self._channels: dict[int, grpc.aio.Channel] = {}

    async def ask(self, host: int, ask: LeaseAsk) -> LeaseAnswer | None:
        """Return a valid answer, if any; raise ``OtherOptionsError`` if the options differ."""
        is_new = host not in self._channels
        if is_new and await why_unreachable(self._endpoints[host]) is not None:
            return None  # a channel to it would keep connecting
        if host not in self._channels:  # another call may have opened it since
            options = client_options(self._times.silence_s)
            endpoint = self._endpoints[host]
            target = HOSTS.target(endpoint)
            self._channels[host] = open_channel(target, options, self._trust, endpoint.host)
        channel = self._channels[host]
        method: Any = channel.unary_unary(f"/{SERVICE}/Lease")
        try:
            reply = await method(encode(ask), timeout=self._times.renew_s, metadata=self._metadata)
            answer = decode(LeaseAnswer, reply)
            lease_messages.check(answer, len(self._endpoints))
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE and self._channels.get(host) is channel:
                del self._channels[host]
                await channel.close()
            trailing = error.trailing_metadata()
            theirs = None if trailing is None else trailing.get(SUCCESSION_KEY)
        except NO_SENSE:
            return None
        else:
            return answer
        with suppress(*NO_SENSE):
            spec = _decoded(theirs)
            if spec != self._spec:
                raise OtherOptionsError("different options", spec)
        return None

    async def close(self) -> None:
        """Close all channels."""
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            await channel.close()


def answered(succession: Succession, request: bytes, metadata: Metadata) -> bytes:
    """Return the answer of this host to another, serialized.

    Raises:
        OtherOptionsError: If that host has different options.
        bounds.OutOfBounds, WireError, DecodeError: If the request is invalid.
    """
    theirs = _decoded(metadata.get(SUCCESSION_KEY))
    ask = decode(LeaseAsk, request)
    lease_messages.check(ask, len(succession.endpoints))
    return encode(succession.answer(ask, theirs))


def followed(metadata: Metadata) -> int:
    """Return the highest term that a node has followed; 0 if none."""
    seen = str(metadata.get(TERM_KEY, ""))
    return int(seen) if seen.isdecimal() and len(seen) <= _TERM_DIGITS else 0


def greeting_data(greeting: Greeting) -> dict[str, str | bytes]:
    """Return the first message to a node, as metadata."""
    data: dict[str, str | bytes] = {TERM_KEY: str(greeting.term)}
    if greeting.led_by is not None:
        data[LED_BY_KEY] = str(greeting.led_by)
    if greeting.spec is not None:
        data[SUCCESSION_KEY] = encode(greeting.spec)
    return data


def _decoded(data: str | bytes | None) -> SuccessionSpec:
    """Return the options of another host; raises one of ``NO_SENSE``."""
    if not isinstance(data, bytes):
        raise WireError("it has one endpoint (--rdzv-endpoint)")
    spec = decode(SuccessionSpec, data)
    bounds.check(spec)
    return spec
