"""The calls between the listed hosts: a question to each, and what it has answered."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from ..lease.succession import Greeting, OtherOptionsError, Succession
from ..lease.times import LeaseTimes
from ..protocol import bounds
from ..protocol.bounded import BALLOT_MAX
from ..protocol.endpoint import Endpoint
from ..protocol.lease_messages import LeaseAnswer, LeaseAsk, SuccessionSpec
from ..trust.wire import Trust, open_channel
from .channel_options import LED_BY_KEY, SERVICE, SUCCESSION_KEY, TERM_KEY, client_options
from .codec import WireError, decode, encode
from .probe import why_unreachable

NO_SENSE = (bounds.OutOfBounds, WireError, DecodeError)
"""Raised for what no listed host says."""

_TERM_DIGITS = len(str(BALLOT_MAX))

Metadata = Mapping[str, str | bytes]


class LeaseCalls:
    """Asks the other listed hosts, on one channel to each that is there."""

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        spec: SuccessionSpec,
        times: LeaseTimes,
        trust: Trust | None = None,
    ) -> None:
        """Create it, without a channel.

        Args:
            endpoints: all that are listed.
            spec: what this host was given.
            times: an answer may take as long as a lease is not renewed.
            trust: between the hosts; None: plain text.
        """
        self._endpoints, self._times, self._trust = endpoints, times, trust
        self._spec = spec
        self._metadata = ((SUCCESSION_KEY, encode(spec)),)
        self._channels: dict[int, grpc.aio.Channel] = {}

    async def ask(self, host: int, ask: LeaseAsk) -> LeaseAnswer | None:
        """Return what a host answers; None where it does not, or makes no sense.

        Raises:
            OtherOptionsError: the options differ.
        """
        is_new = host not in self._channels
        if is_new and await why_unreachable(self._endpoints[host]) is not None:
            return None  # a channel to it would go on connecting
        if host not in self._channels:  # which another call may have opened meanwhile
            options = client_options(self._times.silence_s)
            self._channels[host] = open_channel(self._endpoints[host], options, self._trust)
        channel = self._channels[host]
        method: Any = channel.unary_unary(f"/{SERVICE}/Lease")
        try:
            reply = await method(encode(ask), timeout=self._times.renew_s, metadata=self._metadata)
            answer = decode(LeaseAnswer, reply)
            bounds.check_lease(answer, len(self._endpoints))
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
        OtherOptionsError: that one was given other options.
        bounds.OutOfBounds, WireError, DecodeError: it says what no host says.
    """
    theirs = _decoded(metadata.get(SUCCESSION_KEY))
    ask = decode(LeaseAsk, request)
    bounds.check_lease(ask, len(succession.endpoints))
    return encode(succession.answer(ask, theirs))


def followed(metadata: Metadata) -> int:
    """Return the highest term that a node has followed; 0: none."""
    seen = str(metadata.get(TERM_KEY, ""))
    return int(seen) if seen.isdecimal() and len(seen) <= _TERM_DIGITS else 0


def greeting_data(greeting: Greeting) -> dict[str, str | bytes]:
    """Return what a node is told first, as metadata."""
    data: dict[str, str | bytes] = {TERM_KEY: str(greeting.term)}
    if greeting.led_by is not None:
        data[LED_BY_KEY] = str(greeting.led_by)
    if greeting.spec is not None:
        data[SUCCESSION_KEY] = encode(greeting.spec)
    return data


def _decoded(data: str | bytes | None) -> SuccessionSpec:
    """Return what another host was given; raises one of ``NO_SENSE``."""
    if not isinstance(data, bytes):
        raise WireError("it has one endpoint (--rdzv-endpoint)")
    spec = decode(SuccessionSpec, data)
    bounds.check(spec)
    return spec
