"""When a silent peer is given up, and that nothing but messages is on the wire before."""

import pytest
from ft_run import defaults
from ft_run.rendezvous.protocol.messages import Waiting
from ft_run.rendezvous.protocol.timeouts import Timeouts
from ft_run.rendezvous.transport.channel_options import client_options, server_options
from ft_run.tests.harness.closed_wire import Node, Recorder, door, run

_PING = 6
_PREFACE = len(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")


def test_silence_and_grace_are_within_the_node_timeout() -> None:
    silence = Timeouts().silence_s
    assert 3.9 <= silence < defaults.NODE_TIMEOUT_S - defaults.NODE_GRACE_S


@pytest.mark.parametrize(("timeout", "grace"), [(5.0, 600.0), (1.0, 1.0), (2.0, 1.5)])
def test_a_long_grace_leaves_half_of_the_node_timeout(timeout: float, grace: float) -> None:
    assert Timeouts(node_timeout_s=timeout, node_grace_s=grace).silence_s == pytest.approx(
        timeout / 2, rel=0.05
    )


@pytest.mark.parametrize("of_side", [client_options, server_options])
def test_a_peer_is_pinged_in_time_to_answer_within_the_silence(of_side) -> None:
    options = dict(of_side(4.0))
    times = options["grpc.keepalive_time_ms"], options["grpc.keepalive_timeout_ms"]
    assert sum(times) == 4000
    assert options["grpc.http2.ping_timeout_ms"] == times[1]


def kinds_of_frames(data: bytes) -> list[int]:
    """Return the types of the HTTP/2 frames in what one side said."""
    kinds = []
    while data:
        kinds.append(data[3])
        data = data[9 + int.from_bytes(data[:3], "big") :]
    return kinds


def test_a_message_is_not_answered_with_a_ping() -> None:
    async def test() -> None:
        async with door(None, silence_s=3600.0) as there:
            relay = Recorder(there.endpoint)
            node = Node(await relay.start(), None, silence_s=3600.0)
            await node.next(Waiting)
            await node.link.close()
            await relay.stop()
            said, answered = b"".join(relay.said), b"".join(relay.answered)
            assert _PING not in kinds_of_frames(said[_PREFACE:])
            assert _PING not in kinds_of_frames(answered)

    run(test)
