"""gRPC settings that both ends must agree on, each with its reason. Measured with grpcio 1.85."""

from ... import defaults

Options = list[tuple[str, int]]

MAX_MESSAGE_BYTES = 4 * 1024 * 1024
"""A verdict with its bounded failures is far smaller; a master's message can also contain the
report of the checks."""

MAX_FROM_NODE_BYTES = 768 * 1024
"""The failures of a claim have at most 192 Ki characters of text, few of which take more than one
byte."""

STREAMS_PER_CONNECTION = 16
"""An agent has one stream, on its own connection. Each stream can buffer an incomplete message of
up to ``MAX_FROM_NODE_BYTES``."""

_HANDSHAKE_S = 10
"""Time limit for a client's HTTP/2 handshake."""

_IDLE_S = 60
"""How long a connection can have no stream."""

SERVICE = "ft_run.rendezvous.v1.Rendezvous"

MASTER_KEY = "ft-run-master"
"""In the initial metadata of the master's side of a stream: the peer is an ft-run master."""

TERM_KEY = "ft-run-term"
"""With several endpoints: the term of the leader, and the highest that a node has followed."""

LED_BY_KEY = "ft-run-led-by"
"""Position of the leader among the listed hosts, if another host answers; -1 for no leader."""

SUCCESSION_KEY = "ft-run-succession-bin"
"""With several endpoints: a ``SuccessionSpec``; it must be the same on all hosts."""

_CLIENT_PINGS_AFTER = 0.48
_SERVER_PINGS_AFTER = 0.5
"""Shares of the silence. Incoming frames postpone a side's own ping, so the pings of the clients
keep the server from sending any: an idle master then needs a quarter less CPU time."""


def _keepalive(silence_s: float, after: float) -> Options:
    """Return the options that detect an unresponsive peer within ``silence_s`` seconds.

    The peer is pinged after the share ``after`` of that time and has the rest to respond.
    """
    timeout_ms = silence_s * 1000
    return [
        ("grpc.keepalive_time_ms", int(timeout_ms * after)),
        ("grpc.keepalive_timeout_ms", int(timeout_ms * (1 - after))),
        # Decisive if the peer's kernel acknowledges but the peer itself is stopped; default 60 s.
        ("grpc.http2.ping_timeout_ms", int(timeout_ms * (1 - after))),
        ("grpc.keepalive_permit_without_calls", 1),
        # Pings are not bound to data: most streams are idle for hours.
        ("grpc.http2.max_pings_without_data", 0),
        # By default, each message is answered with a ping that measures the bandwidth-delay
        # product: that doubles the packets of a round of small messages, and the cost of TLS in it.
        ("grpc.http2.bdp_probe", 0),
    ]


def server_options(silence_s: float) -> Options:
    """Return the options of a master's server."""
    return [
        *_keepalive(silence_s, _SERVER_PINGS_AFTER),
        # Otherwise the pings of the clients are answered with GOAWAY too_many_pings.
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 100),
        ("grpc.http2.min_ping_interval_without_data_ms", 100),
        ("grpc.http2.max_ping_strikes", 0),
        # On by default: two masters on one port would silently share the clients.
        ("grpc.so_reuseport", 0),
        # Above 1,000 pending calls, the server drops calls silently.
        ("grpc.server.max_pending_requests", 1_000_000),
        ("grpc.server.max_pending_requests_hard_limit", 1_000_000),
        ("grpc.max_receive_message_length", MAX_FROM_NODE_BYTES),
        # A client that opens thousands of streams is queued.
        ("grpc.max_concurrent_streams", STREAMS_PER_CONNECTION),
        ("grpc.server_handshake_timeout_ms", _HANDSHAKE_S * 1000),
        ("grpc.max_connection_idle_ms", _IDLE_S * 1000),
    ]


def client_options(silence_s: float) -> Options:
    """Return the options of an agent's channel."""
    return [
        *_keepalive(silence_s, _CLIENT_PINGS_AFTER),
        # The master is a peer, never behind the web proxy of the environment.
        ("grpc.enable_http_proxy", 0),
        # A restarted pod has a new address; the defaults (30 s, 120 s) would be fatal.
        ("grpc.dns_min_time_between_resolutions_ms", 100),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 1000),
        ("grpc.max_reconnect_backoff_ms", 1000),
        # Each attempt has its own channel and starts immediately, regardless of earlier failures.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES + defaults.CHECK_REPORT_MAX_BYTES),
    ]
