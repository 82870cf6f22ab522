"""When a silent peer is given up."""

import pytest
from ft_run import defaults
from ft_run.rendezvous.transport.channel_options import client_options, server_options, silence_s


def test_silence_and_grace_are_within_the_node_timeout() -> None:
    silence = silence_s(defaults.NODE_TIMEOUT_S, defaults.NODE_GRACE_S)
    assert 3.9 <= silence < defaults.NODE_TIMEOUT_S - defaults.NODE_GRACE_S


@pytest.mark.parametrize(("timeout", "grace"), [(5.0, 600.0), (1.0, 1.0), (2.0, 1.5)])
def test_a_long_grace_leaves_half_of_the_node_timeout(timeout: float, grace: float) -> None:
    assert silence_s(timeout, grace) == pytest.approx(timeout / 2, rel=0.05)


@pytest.mark.parametrize("of_side", [client_options, server_options])
def test_a_peer_is_pinged_in_time_to_answer_within_the_silence(of_side) -> None:
    options = dict(of_side(4.0))
    times = options["grpc.keepalive_time_ms"], options["grpc.keepalive_timeout_ms"]
    assert sum(times) == 4000
    assert options["grpc.http2.ping_timeout_ms"] == times[1]
