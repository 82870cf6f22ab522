"""Why the two ends do not trust each other, as far as the client can detect.

gRPC does not report a failed handshake to a server, so the node reports it.
"""

import enum
import re
import socket
import ssl
from functools import partial

from ...tasks import NoThreadError, in_daemon_thread
from ..protocol.endpoint import Endpoint
from .credentials import Trust
from .key_pair import WIRE_NAME

_PROBE_S = 2.0


class HandshakeError(enum.Enum):
    """Reason for a failed handshake: text for the log, and the rest of the error message."""

    WANTS_TOKEN = (
        "the master requires a token",
        "set --token-file (or FT_RUN_TOKEN_FILE, FT_RUN_TOKEN) to the token of the job.",
    )
    WANTS_CERTIFICATE = (
        "the master requires a certificate",
        "set --tls-cert, --tls-key and --tls-ca.",
    )
    OTHER_TOKEN = (
        "the token differs from that of the master",
        "expected the same token on all nodes of the job.",
    )
    OTHER_CERTIFICATE = (
        "the certificate of the master is not trusted",
        "expected one that is signed by --tls-ca, with the endpoint's host among its names.",
    )
    NOT_TRUSTED = (
        "the master does not trust the certificate of this node",
        "expected one that is signed by the master's --tls-ca.",
    )
    PLAIN = (
        "the master does not use TLS",
        "this node requires it (it has a token or a certificate); expected the same on all nodes "
        "of the job.",
    )

    @property
    def words(self) -> str:
        """The reason, for a log."""
        return self.value[0]

    def sentence(self, endpoint: Endpoint) -> str:
        """Return the error message, with the expected value."""
        why, right = self.value
        return f"{why.replace('the master', f'the master at {endpoint}', 1)}; {right}"


_CLOSED = re.compile(r"Socket closed|connection reset", re.IGNORECASE)
_NOT_TRUSTED = re.compile(
    r"CERTIFICATE_VERIFY_FAILED|Hostname Verification Check failed|is not in peer certificate"
)
_NO_TLS = re.compile(r"WRONG_VERSION_NUMBER|HTTP_REQUEST|UNKNOWN_PROTOCOL")


async def handshake_error(
    details: str, endpoint: Endpoint, trust: Trust | None
) -> HandshakeError | None:
    """Return the handshake error behind a failed connection; None if there is none."""
    if (trust is None or trust.wire_name is None) and _CLOSED.search(details):
        try:
            wanted = await in_daemon_thread(partial(_wanted, endpoint))
        except NoThreadError:  # no thread can be started: the connection is tried again
            return None
        return wanted if trust is None or wanted is None else HandshakeError.NOT_TRUSTED
    if trust is None:
        return None
    if _NOT_TRUSTED.search(details):
        return (
            HandshakeError.OTHER_CERTIFICATE
            if trust.wire_name is None
            else HandshakeError.OTHER_TOKEN
        )
    return HandshakeError.PLAIN if _NO_TLS.search(details) else None


def _wanted(endpoint: Endpoint) -> HandshakeError | None:
    """Return what a master that closed a plain-text connection requires; None if it is gone."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # the certificate is only inspected, and nothing is sent
    context.set_alpn_protocols(["h2"])
    try:
        with (
            socket.create_connection((endpoint.host, endpoint.port), _PROBE_S) as raw,
            context.wrap_socket(raw) as wire,
        ):
            shown = wire.getpeercert(binary_form=True) or b""
    except (OSError, UnicodeError):
        return None
    return (
        HandshakeError.WANTS_TOKEN
        if WIRE_NAME.encode() in shown
        else HandshakeError.WANTS_CERTIFICATE
    )
