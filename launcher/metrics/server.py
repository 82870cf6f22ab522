"""The HTTP endpoint of ``--metrics``. Scrapes run in threads, so they do not delay the job."""

import hmac
import http.server
import socket
import socketserver
import ssl
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from ...rendezvous.protocol.endpoint import Endpoint, join_host_port
from .catalogue import Samples
from .on_loop import NotReadyError

PATH: Final = "/metrics"
_CLIENT_S: Final = 5.0
"""Time limit for each read from a client."""
_CLIENTS_MAX: Final = 8
"""Maximum number of connections. A new one replaces the oldest with an incomplete request."""

Collect = Callable[[], Samples]
"""Returns the current values, called in a thread; raises ``NotReadyError``."""


class MetricsServer(socketserver.ThreadingMixIn, http.server.HTTPServer):
    """Listens immediately, or raises ``OSError``; answers after ``serve``.

    With port 0 the kernel chooses the port. Without ``tls`` it is plain HTTP. A nonempty ``bearer``
    is the token that requests must have.
    """

    daemon_threads = True
    allow_reuse_port = False  # two servers would share the scrapes

    def __init__(
        self, address: Endpoint, tls: ssl.SSLContext | None = None, bearer: str = ""
    ) -> None:
        self.address_family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        self.bearer = bearer
        self.read: Collect | None = None
        self.reading = threading.Lock()
        """Held while a scrape reads the values."""
        self._tls = tls
        self._clients = 0
        self._unread: dict[Any, None] = {}
        """Connections whose request is incomplete, the oldest first."""
        self._counting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_closed = False
        super().__init__((address.host, address.port), _Handler)

    @property
    def url(self) -> str:
        """The URL of the metrics."""
        host, port = self.server_address[:2]
        scheme = "https" if self._tls is not None else "http"
        return f"{scheme}://{join_host_port(str(host), int(port))}{PATH}"

    def serve(self, collect: Collect) -> None:
        """Answer scrapes from now on."""
        self.read = collect
        # The interpreter does not wait for a daemon thread when it exits.
        self._thread = threading.Thread(target=self._run, name="ft-run metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        self._is_closed = True
        if self._thread is not None:
            with suppress(OSError):
                self.socket.shutdown(socket.SHUT_RDWR)  # wakes the thread
            self._thread.join(1.0)
        self.server_close()

    def _run(self) -> None:
        while not self._is_closed:
            self.handle_request()

    def server_bind(self) -> None:
        """Bind without the DNS query of ``HTTPServer``."""
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = "", 0

    def get_request(self) -> tuple[Any, Any]:
        """Accept a connection; its thread does the TLS handshake."""
        connection, address = super().get_request()
        if self._tls is not None:
            connection.settimeout(_CLIENT_S)
            connection = self._tls.wrap_socket(
                connection, server_side=True, do_handshake_on_connect=False
            )
        return connection, address

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for a connection. At the limit, close the oldest without a request."""
        with self._counting:
            is_full = self._clients >= _CLIENTS_MAX
            if is_full and self._unread:
                oldest = next(iter(self._unread))
                del self._unread[oldest]
                with suppress(OSError):
                    # Its thread may be reading: only the socket below TLS may be touched.
                    socket.socket.shutdown(oldest, socket.SHUT_RDWR)
            elif is_full:
                self.shutdown_request(request)
                return
            self._clients += 1
            self._unread[request] = None
        super().process_request(request, client_address)

    def has_read(self, request: Any) -> None:
        """Record that the request of a connection is complete."""
        with self._counting:
            self._unread.pop(request, None)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer a connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._counting:
                self._unread.pop(request, None)
                self._clients -= 1

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that have disconnected, or do not speak HTTP or TLS."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class _Handler(http.server.BaseHTTPRequestHandler):
    server: MetricsServer
    timeout = _CLIENT_S

    def do_GET(self) -> None:
        server = self.server
        server.has_read(self.request)
        if server.bearer and not self._is_authorized(server.bearer):
            self._answer(401, b"401: this endpoint requires the job's token as a bearer token\n")
        elif self.path.partition("?")[0] != PATH:
            self._answer(404, b"404: metrics are at /metrics\n")
        else:
            self._scrape()

    def log_message(self, *_: object) -> None:
        """Log nothing: a scrape is not an event of the job."""

    def version_string(self) -> str:
        """Return the name of the program, without the version of Python."""
        return "ft-run"

    def _is_authorized(self, bearer: str) -> bool:
        given = self.headers.get("Authorization", "")
        return hmac.compare_digest(given.encode(), f"Bearer {bearer}".encode())

    def _scrape(self) -> None:
        try:
            with self.server.reading:
                assert self.server.read is not None
                samples = self.server.read()
        except NotReadyError as error:
            self._answer(503, f"503: {error}\n".encode())
            return
        from .exposition import written  # prometheus_client, an optional package

        text, content_type = written(samples, self.headers.get("Accept", ""))
        self._answer(200, text, content_type)

    def _answer(self, status: int, text: bytes, content_type: str = "text/plain") -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(text)))
        if status == 401:
            self.send_header("WWW-Authenticate", "Bearer")
        self.end_headers()
        self.wfile.write(text)
