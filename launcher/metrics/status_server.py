"""A request to Kubeflow's status server, in a thread, so that it does not delay the job."""

import http.client
import ssl
import threading
import urllib.error
import urllib.request
from http import HTTPStatus
from typing import Any, Final, NamedTuple

from ...events.event import Severity

_ANSWER_S: Final = 5.0
_TOKEN_MAX: Final = 64 * 1024
_LATER: Final = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS)


class StatusServer(NamedTuple):
    """Where the status of a TrainJob is sent."""

    url: str
    ca_file: str
    token_file: str
    """The path of the token; the file is read for each request."""


class NotSentError(Exception):
    """Raised if a status was not accepted; severity WARNING if a retry is unlikely to succeed."""

    def __init__(self, reason: str, severity: Severity = Severity.DEBUG) -> None:
        super().__init__(reason)
        self.severity = severity


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Do not follow redirections: the token is for this server."""


class Request(threading.Thread):
    """Sends one status; ``join`` it."""

    def __init__(self, server: StatusServer, text: bytes) -> None:
        # The interpreter does not wait for a daemon thread when it exits.
        super().__init__(name="ft-run trainjob", daemon=True)
        self._server, self._text = server, text
        self.error: NotSentError | None = None
        """Set when it has ended."""
        self.start()

    def run(self) -> None:
        """Send the status."""
        try:
            _send(self._server, self._text)
        except NotSentError as error:
            self.error = error


def _send(server: StatusServer, text: bytes) -> None:
    if not server.url.startswith("https://"):
        raise NotSentError("the URL is not https", Severity.WARNING)
    try:
        with open(server.token_file, "rb") as file:
            token = file.read(_TOKEN_MAX).decode().strip()
        context = ssl.create_default_context(cafile=server.ca_file)
        # Python 3.13 refuses certificates without an authority key identifier, but controllers
        # create such certificates for their webhooks.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        request = urllib.request.Request(  # noqa: S310 - its scheme is checked above
            server.url,
            text,
            {"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
        )
        # No web proxy, as for gRPC: the server is in the cluster.
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}),
            urllib.request.HTTPSHandler(context=context),
            _NoRedirect,
        )
        with opener.open(request, timeout=_ANSWER_S) as reply:
            reply.read(_TOKEN_MAX)
    except urllib.error.HTTPError as error:
        with error:
            raise _refused(error.code) from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        # ValueError: the token or the certificate is not text.
        reason = getattr(error, "reason", None) or error
        raise NotSentError(str(reason) or type(error).__name__) from None


def _refused(status: int) -> NotSentError:
    phrase = HTTPStatus(status).phrase if status in set(HTTPStatus) else "refused"
    is_grave = 400 <= status < 500 and status not in _LATER
    return NotSentError(f"{status} {phrase}", Severity.WARNING if is_grave else Severity.DEBUG)
