"""Certificates of a process, as the other end of a connection sees them."""

from msgspec import Struct

WIRE_NAME = "wire.ft-run.invalid"
"""Name in every certificate of a token. Not a host name: a name only locates a host, the token
authenticates it."""


class KeyPair(Struct, frozen=True):
    """Certificate and key of a process, and the authorities that it accepts; all PEM."""

    authority: bytes
    certificate: bytes
    key: bytes
