"""Opens the endpoint of ``--metrics``, before workers start."""

import errno
import os
import ssl
from collections.abc import Callable
from importlib.util import find_spec

from ...errors import UsageError
from ...events.event import Event
from ...events.metrics import MetricsListening, MetricsUnavailable
from ...rendezvous.protocol.endpoint import Endpoint
from ...rendezvous.trust.source import TrustOptions, read_trust
from ..machine.network import is_loopback, resolve
from .server import MetricsServer


def open_metrics(
    address: Endpoint | None, trust: TrustOptions | None, note: Callable[[Event], None]
) -> MetricsServer | None:
    """Listen at the address of ``--metrics``; None without it, or if the port is in use.

    On loopback it is plain HTTP. Elsewhere a job with a token serves HTTPS to clients that have the
    token, and a job with certificates to clients with a certificate of its CA.

    Raises:
        UsageError: If a package is missing, or it cannot listen at the address.
    """
    if address is None:
        return None
    if find_spec("prometheus_client") is None:
        raise UsageError(
            "--metrics needs the package prometheus-client, which is not installed; run pip "
            "install 'ft-run[metrics]' (or pip install prometheus-client)."
        )
    found = resolve(address.host)
    if not found:
        raise UsageError(
            f"cannot serve metrics at {address}: the host is unknown; expected an address of this "
            "host with --metrics."
        )
    tls, bearer = None, ""
    if not is_loopback(address.host):
        tls, bearer = _secured(trust)
    try:
        opened = MetricsServer(Endpoint(found[0], address.port), tls, bearer)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:  # perhaps by another agent on this host
            reason = f"port {address.port} of this host is in use"
            note(MetricsUnavailable(str(address), reason))
            return None
        raise UsageError(
            f"cannot serve metrics at {address}: {error.strerror or os.strerror(error.errno or 0)};"
            " expected an address of this host and a port above 1023 with --metrics."
        ) from error
    note(MetricsListening(opened.url, bool(bearer)))
    return opened


def _secured(options: TrustOptions | None) -> tuple[ssl.SSLContext | None, str]:
    """Return TLS context and bearer token of an endpoint that other hosts can reach."""
    trust = read_trust(options)
    if trust is None:
        return None, ""
    return trust.for_https(), trust.bearer
