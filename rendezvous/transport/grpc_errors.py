"""Errors of gRPC as text, and which of them mean that the peer is not a master."""

import re

import grpc
import grpc.aio

ENDED = "the master closed the connection"
NO_ANSWER = "no answer"
ACCEPTS_ONLY = "it accepts connections but does not answer"

_FOREIGN = re.compile(
    r"http1\.x server|unexpected content-type|expected SETTINGS|failed parsing HTTP/2"
    r"|http2 header with status: [234]",
    re.IGNORECASE,
)
"""gRPC's error details if the peer does not speak gRPC. (5xx is the response of a proxy whose
master is not available.)"""

_IN_WORDS = (
    (r"Connection refused", "connection refused"),
    (r"DNS resolution failed|errors resolving|lookup failed", "the name does not resolve"),
    (r"Network is unreachable", "network is unreachable"),
    (r"No route to host", "no route to the host"),
    (r"Connection reset", "connection reset"),
    (r"Socket closed|Internal error from Core", "connection closed"),
    (r"keepalive", "no keepalive response"),
    (r"before receiving SETTINGS", ACCEPTS_ONLY),
    (r"timeout|timed out|deadline exceeded|handshaker shutdown|Handshake read failed", NO_ANSWER),
)


def is_foreign(error: grpc.aio.AioRpcError) -> bool:
    """Return whether an error of a call means that the peer is not a master."""
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return True
    return _FOREIGN.search(error.details() or "") is not None


def in_words(error: grpc.aio.AioRpcError) -> str:
    """Return the part of gRPC's details that is useful to a user."""
    if error.code() is grpc.StatusCode.OK:
        return ENDED
    return words(error.details() or error.code().name.lower())


def words(details: str) -> str:
    """Return the part of an error's details that is useful to a user."""
    for known, meaning in _IN_WORDS:
        if re.search(known, details, re.IGNORECASE):
            return meaning
    return details.splitlines()[0][:200]
