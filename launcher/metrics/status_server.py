"""Sends texts to Kubeflow's status server: the newest only, in a thread, and never in a hurry."""

import http.client
import ssl
import threading
import time
import urllib.error
import urllib.request
from email.message import Message
from http import HTTPStatus
from typing import Any, Final, NamedTuple

from ...events.event import Severity

_ANSWER_S: Final = 5.0
_FIRST_PAUSE_S, _PAUSE_MAX_S = 5.0, 60.0
"""After a failure; twice as long after each that follows."""
_ASKED_PAUSE_MAX_S: Final = 600.0
"""The longest pause that the server may request."""
_LAST_WORDS_S: Final = 2.0
_TOKEN_MAX: Final = 64 * 1024
_GONE: Final = frozenset(
    {
        HTTPStatus.BAD_REQUEST,
        HTTPStatus.NOT_FOUND,
        HTTPStatus.METHOD_NOT_ALLOWED,
        HTTPStatus.GONE,
        HTTPStatus.UNPROCESSABLE_ENTITY,
    }
)
"""The TrainJob or the API is gone, or has another form: another request would not help."""


class Failure(NamedTuple):
    """Why the server has not taken a text."""

    url: str
    reason: str
    severity: Severity
    """WARNING where the next one will hardly be taken."""


class NotSentError(Exception):
    """Raised if a text was not taken."""

    def __init__(
        self,
        reason: str,
        pause_s: float | None = None,
        *,
        is_final: bool = False,
        is_grave: bool = False,
    ) -> None:
        super().__init__(reason)
        self.pause_s, self.is_final = pause_s, is_final
        self.severity = Severity.WARNING if is_final or is_grave else Severity.DEBUG


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Follow no redirection: the token is for this server."""


class StatusServer:
    """A URL of the server; ``close`` it."""

    def __init__(
        self,
        url: str,
        ca_file: str,
        token_file: str,
        first_pause_s: float = _FIRST_PAUSE_S,
    ) -> None:
        """Send nothing yet; the first text starts the thread.

        Args:
            url: of the status of the TrainJob.
            ca_file: path of the server's CA certificate.
            token_file: path of the token; the file is read for each request.
            first_pause_s: after a failure.
        """
        self._url, self._ca_file, self._token_file = url, ca_file, token_file
        self._first_pause_s = self._pause_s = first_pause_s
        self._changed = threading.Condition()
        self._next: bytes | None = None
        self._is_closing = self._is_outage = False
        self._failure: Failure | None = None
        self.is_refused = False
        """Whether it will never take a text."""
        # The interpreter does not wait at its end for a thread that is a daemon.
        self._thread = threading.Thread(target=self._run, name="ft-run trainjob", daemon=True)

    def put(self, text: bytes) -> None:
        """Send a text soon, instead of one that has not been sent; never waits."""
        with self._changed:
            self._next = text
            self._changed.notify()
        if self._thread.ident is None:
            self._thread.start()

    def failure(self) -> Failure | None:
        """Return the failure that began since the last call; None: there is none."""
        with self._changed:
            failure, self._failure = self._failure, None
        return failure

    def close(self, limit_s: float = _LAST_WORDS_S) -> None:
        """Send the last text, within a time limit."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join(limit_s)

    # --- the thread --------------------------------------------------------------------------

    def _run(self) -> None:
        while (text := self._take()) is not None and self._goes_on_after(text):
            pass

    def _goes_on_after(self, text: bytes) -> bool:
        """Send a text; return whether to send another one."""
        try:
            self._send(text)
        except NotSentError as error:
            return self._not_sent(error)
        self._pause_s, self._is_outage = self._first_pause_s, False
        return True

    def _take(self) -> bytes | None:
        with self._changed:
            while self._next is None and not self._is_closing:
                self._changed.wait()
            text, self._next = self._next, None
            return text

    def _not_sent(self, error: NotSentError) -> bool:
        """Wait before the next text; return whether there may be one."""
        with self._changed:
            if error.is_final or not self._is_outage:
                self._failure = Failure(self._url, str(error), error.severity)
            self._is_outage, self.is_refused = True, error.is_final
            if error.is_final or self._is_closing:
                return False
            pause_s = self._pause_s if error.pause_s is None else error.pause_s
            self._pause_s = min(_PAUSE_MAX_S, 2 * self._pause_s)
            self._changed.wait_for(lambda: self._is_closing, pause_s)
        return True

    def _send(self, text: bytes) -> None:
        if not self._url.startswith("https://"):
            raise NotSentError("the URL is not https", is_final=True)
        try:
            with open(self._token_file, "rb") as file:
                token = file.read(_TOKEN_MAX).decode().strip()
            context = ssl.create_default_context(cafile=self._ca_file)
            # Python 3.13 refuses certificates without an authority key identifier, as
            # controllers make them for their webhooks.
            context.verify_flags &= ~ssl.VERIFY_X509_STRICT
            request = urllib.request.Request(  # noqa: S310 - its scheme is checked above
                self._url,
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
                raise refused(error.code, error.headers) from None
        except (OSError, ValueError, http.client.HTTPException) as error:
            # ValueError: the token or the certificate is no text.
            reason = getattr(error, "reason", None) or error
            raise NotSentError(str(reason) or type(error).__name__) from None


def refused(status: int, headers: Message) -> NotSentError:
    """Return what an answer other than 200 means."""
    phrase = HTTPStatus(status).phrase if status in set(HTTPStatus) else "refused"
    return NotSentError(
        f"{status} {phrase}",
        _asked_pause_s(headers.get("Retry-After", "")),
        is_final=status in _GONE,
        is_grave=status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN),
    )


def _asked_pause_s(text: str) -> float | None:
    """Return the seconds of a header ``Retry-After``, which may also be a date; None: none."""
    from email.utils import parsedate_to_datetime

    if text.strip().isdecimal():
        return min(_ASKED_PAUSE_MAX_S, float(text))
    try:
        pause_s = parsedate_to_datetime(text).timestamp() - time.time()
    except (TypeError, ValueError):
        return None
    return min(_ASKED_PAUSE_MAX_S, max(0.0, pause_s))
