"""Credentials for mutual TLS, from a token or from certificate files."""

import os
import ssl
from contextlib import suppress
from functools import cached_property

from ...errors import UsageError
from .key_pair import WIRE_NAME, KeyPair
from .token import Token, read_private


class Trust:
    """Credentials for both ends of a connection."""

    wire_name: str | None = None
    """Name that a master's certificate must have; None for its endpoint's host name."""

    def current(self) -> KeyPair:
        """Return the certificate of this process, and the authorities that it accepts."""
        raise NotImplementedError

    @property
    def bearer(self) -> str:
        """Secret that HTTPS clients send; empty if they have a certificate."""
        return ""

    def for_https(self) -> ssl.SSLContext:
        """Return the context of an HTTPS server."""
        mine = self.current()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # ssl reads a certificate and its key only from a file: here one in memory.
        fd = os.memfd_create("ft-run-https")
        try:
            os.write(fd, mine.certificate + b"\n" + mine.key)
            context.load_cert_chain(f"/proc/self/fd/{fd}", password="")
        finally:
            os.close(fd)
        if not self.bearer:
            context.load_verify_locations(cadata=mine.authority.decode())
            context.verify_mode = ssl.CERT_REQUIRED
        return context


class TokenTrust(Trust):
    """Credentials that accept every process with the same token."""

    wire_name = WIRE_NAME

    def __init__(self, token: Token) -> None:
        self._token = token

    def current(self) -> KeyPair:
        """Return the certificate that was derived from the token."""
        return self._key_pair

    @cached_property
    def _key_pair(self) -> KeyPair:
        from .certificates import key_pair  # cryptography, an optional package of 9 MB

        return key_pair(self._token)

    @property
    def ca(self) -> bytes:
        """Certificate of the authority that all processes with the token share, PEM."""
        return self._key_pair.authority

    @property
    def bearer(self) -> str:
        """The token: HTTPS clients need no certificate."""
        return self._token.reveal()


class FileTrust(Trust):
    """The user's certificates; a changed file is used from the next connection on."""

    def __init__(self, cert: str, key: str, ca: str) -> None:
        """Raise ``UsageError`` if a file cannot be read, or the files do not belong together."""
        self._cert, self._key, self._ca = cert, key, ca
        self._shown = self._read()
        self._check()

    def _check(self) -> None:
        """Reject files that gRPC would reject without an error."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            context.load_verify_locations(self._ca)
        except (ssl.SSLError, OSError):
            raise UsageError(
                f"{self._ca} (--tls-ca) has no certificate; expected a PEM file."
            ) from None
        try:
            context.load_cert_chain(self._cert, self._key, password="")
        except (ssl.SSLError, OSError):
            raise UsageError(
                f"{self._cert} (--tls-cert) and {self._key} (--tls-key) are not a certificate and "
                "its key; expected PEM files that belong together, the key without a password."
            ) from None

    def current(self) -> KeyPair:
        """Return the content of the files; the previous content while one cannot be read."""
        with suppress(UsageError):
            self._shown = self._read()
        return self._shown

    def _read(self) -> KeyPair:
        return KeyPair(
            _read(self._ca, "--tls-ca"),
            _read(self._cert, "--tls-cert"),
            read_private(self._key, f"the key {self._key} (--tls-key)"),
        )


def _read(path: str, flag: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise UsageError(
            f"cannot read {path} ({flag}): {error.strerror}; expected a PEM file that this user "
            "can read."
        ) from error
