"""Derives certificates from a token: the job's authority, and a certificate of this process."""

import datetime

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from .key_pair import WIRE_NAME, KeyPair
from .token import Token

_AUTHORITY_NAME = "ft-run authority"
_SALT = b"ft-run authority 1"
_SCRYPT_N, _SCRYPT_R, _SCRYPT_P = 2**12, 8, 1
"""4 MiB and some 10 ms per guess. A token has 128 bits or more: this protects tokens that are not
random, and it is part of the start of every agent."""
_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
"""Order of the P-256 group."""

BEGIN = datetime.datetime(1970, 1, 1)
END = datetime.datetime(9999, 12, 31, 23, 59, 59)
"""RFC 5280's value for "no expiration". A certificate is not used after its process has ended, and
clocks of nodes may differ by years, so dates would only reject valid nodes."""


def key_pair(token: Token) -> KeyPair:
    """Return a new key and certificate; processes with the same token accept each other's."""
    authority = authority_key(token)
    return issue(authority, certificate_of(authority))


def authority_key(token: Token) -> ec.EllipticCurvePrivateKey:
    """Return the key of the authority that is derived from a token."""
    # 16 bytes more than the order, so that the remainder is not biased.
    stretched = Scrypt(salt=_SALT, length=48, n=_SCRYPT_N, r=_SCRYPT_R, p=_SCRYPT_P).derive(
        token.reveal().encode()
    )
    number = int.from_bytes(stretched, "big") % (_ORDER - 1) + 1
    return ec.derive_private_key(number, ec.SECP256R1())


def certificate_of(authority: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    """Return a self-signed certificate of the authority; each process creates its own."""
    name, public = _name(_AUTHORITY_NAME), authority.public_key()
    usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
    return (
        x509.CertificateBuilder(name, name, public, 1, BEGIN, END)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .sign(authority, hashes.SHA256())
    )


def issue(
    authority: ec.EllipticCurvePrivateKey,
    root: x509.Certificate,
    begin: datetime.datetime = BEGIN,
    end: datetime.datetime = END,
) -> KeyPair:
    """Return a new key with its certificate, signed by an authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    both_ends = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    signed_by = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())
    certificate = (
        x509.CertificateBuilder(root.subject, _name(WIRE_NAME), key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(WIRE_NAME)]), critical=False)
        .add_extension(x509.ExtendedKeyUsage(both_ends), critical=False)
        .add_extension(signed_by, critical=False)
        .sign(authority, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    return KeyPair(
        root.public_bytes(pem),
        certificate.public_bytes(pem),
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])
