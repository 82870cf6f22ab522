"""From a token to certificates: the job's authority, and one certificate for this process.

The package ``cryptography`` is imported where it is needed: most jobs have no token.
"""

import datetime
import os
from typing import TYPE_CHECKING

from ...values import dataclass
from .der import bits, integer, octets, oid, one_of_set, pem, sequence, tagged, text, time, true
from .token import Token

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

WIRE_NAME = "wire.ft-run.invalid"
"""The name in every certificate. Not that of a host: hosts are found by name, and trusted by
token."""

_AUTHORITY_NAME = "ft-run authority"
_SALT = b"ft-run authority 1"
_SCRYPT_N, _SCRYPT_R, _SCRYPT_P = 2**12, 8, 1
"""4 MiB and some 10 ms for each guess. A token has 128 bits or more, so that this is for those that
are not random; it is part of the start of every agent."""
_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
"""Of the group of P-256."""

_VERSION_3 = 2
_P256 = sequence(oid("1.2.840.10045.2.1"), oid("1.2.840.10045.3.1.7"))
_ECDSA_SHA256 = sequence(oid("1.2.840.10045.4.3.2"))
_COMMON_NAME = oid("2.5.4.3")
_BASIC_CONSTRAINTS, _KEY_USAGE = oid("2.5.29.19"), oid("2.5.29.15")
_ALTERNATIVE_NAME, _EXTENDED_KEY_USAGE = oid("2.5.29.17"), oid("2.5.29.37")
_SUBJECT_KEY, _AUTHORITY_KEY = oid("2.5.29.14"), oid("2.5.29.35")
_SERVER, _CLIENT = oid("1.3.6.1.5.5.7.3.1"), oid("1.3.6.1.5.5.7.3.2")
_ONLY_SIGNS_CERTIFICATES = bits(b"\x04", unused=2)

BEGIN = datetime.datetime(1970, 1, 1)
END = datetime.datetime(9999, 12, 31, 23, 59, 59)
"""What RFC 5280 has for "does not end". A certificate ends with its process, and clocks of nodes
may differ by years: dates would only keep out those that are to come in."""


@dataclass(frozen=True, slots=True)
class Papers:
    """What a process shows and what it believes; all PEM."""

    authority: bytes
    certificate: bytes
    key: bytes


def papers(token: Token) -> Papers:
    """Return new papers for this process; those of one token accept each other."""
    return issue(authority_key(token))


def authority_key(token: Token) -> "EllipticCurvePrivateKey":
    """Return the key of the authority that a token makes."""
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

    # 16 bytes more than the order has, so that the remainder favours no number.
    stretched = Scrypt(salt=_SALT, length=48, n=_SCRYPT_N, r=_SCRYPT_R, p=_SCRYPT_P).derive(
        token.reveal().encode()
    )
    number = int.from_bytes(stretched, "big") % (_ORDER - 1) + 1
    return ec.derive_private_key(number, ec.SECP256R1())


def issue(
    authority: "EllipticCurvePrivateKey",
    begin: datetime.datetime = BEGIN,
    end: datetime.datetime = END,
) -> Papers:
    """Return papers with a new key, signed by an authority.

    Args:
        authority: its key.
        begin: of their validity.
        end: of their validity.
    """
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    certificate = _signed(
        authority,
        _name(_AUTHORITY_NAME),
        sequence(time(begin), time(end)),
        _name(WIRE_NAME),
        _public(key),
        _extensions(
            sequence(_BASIC_CONSTRAINTS, true(), octets(sequence())),
            sequence(_ALTERNATIVE_NAME, octets(sequence(tagged(0x82, WIRE_NAME.encode())))),
            sequence(_EXTENDED_KEY_USAGE, octets(sequence(_SERVER, _CLIENT))),
            sequence(_AUTHORITY_KEY, octets(sequence(tagged(0x80, _key_id(authority))))),
        ),
    )
    number = key.private_numbers().private_value.to_bytes(32, "big")
    private = sequence(integer(0), _P256, octets(sequence(integer(1), octets(number))))
    return Papers(
        pem("CERTIFICATE", _root(authority)),
        pem("CERTIFICATE", certificate),
        pem("PRIVATE KEY", private),
    )


def _root(authority: "EllipticCurvePrivateKey") -> bytes:
    """Return the authority's certificate of itself; each process makes its own."""
    name = _name(_AUTHORITY_NAME)
    return _signed(
        authority,
        name,
        sequence(time(BEGIN), time(END)),
        name,
        _public(authority),
        _extensions(
            sequence(_BASIC_CONSTRAINTS, true(), octets(sequence(true(), integer(0)))),
            sequence(_KEY_USAGE, true(), octets(_ONLY_SIGNS_CERTIFICATES)),
            sequence(_SUBJECT_KEY, octets(octets(_key_id(authority)))),
        ),
    )


def _signed(authority: "EllipticCurvePrivateKey", *parts: bytes) -> bytes:
    """Return a certificate with these parts between its number and its signature."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    number = integer(int.from_bytes(os.urandom(16), "big"))
    content = sequence(tagged(0xA0, integer(_VERSION_3)), number, _ECDSA_SHA256, *parts)
    signature = authority.sign(content, ec.ECDSA(hashes.SHA256()))
    return sequence(content, _ECDSA_SHA256, bits(signature))


def _extensions(*extensions: bytes) -> bytes:
    return tagged(0xA3, sequence(*extensions))


def _name(common: str) -> bytes:
    return sequence(one_of_set(sequence(_COMMON_NAME, text(common))))


def _public(key: "EllipticCurvePrivateKey") -> bytes:
    point = key.public_key().public_numbers()
    place = point.x.to_bytes(32, "big") + point.y.to_bytes(32, "big")
    return sequence(_P256, bits(b"\x04" + place))


def _key_id(key: "EllipticCurvePrivateKey") -> bytes:
    """Return what names a key: RFC 5280 leaves open how it is made."""
    return key.public_key().public_numbers().x.to_bytes(32, "big")[:20]
