"""Tests of the certificates that a token makes, as another implementation of TLS sees them."""

import datetime
import subprocess
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from ft_run.rendezvous.trust.certificates import (
    BEGIN,
    END,
    WIRE_NAME,
    Papers,
    authority_key,
    issue,
    papers,
)
from ft_run.rendezvous.trust.token import Token, new_token

TOKEN, OTHER = new_token(), new_token()


def verified(folder: Path, mine: Papers, certificate: bytes, time_s: float, chain: bytes) -> str:
    """Return what openssl says of a certificate on a host whose clock is at ``time_s``.

    Args:
        folder: for files.
        mine: what the host believes.
        certificate: that the other end shows.
        time_s: seconds of Unix time.
        chain: certificates that the other end shows with it.
    """
    for name, data in (("root", mine.authority), ("leaf", certificate), ("chain", chain)):
        (folder / name).write_bytes(data)
    for purpose in ("sslserver", "sslclient"):
        answer = subprocess.run(
            [
                *("openssl", "verify", "-x509_strict", "-attime", str(int(time_s))),
                *("-purpose", purpose, "-verify_hostname", WIRE_NAME),
                *("-CAfile", "root", "-untrusted", "chain", "leaf"),
            ],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        if answer.returncode:
            return answer.stderr
    return "OK"


def year(number: int) -> float:
    return datetime.datetime(number, 6, 1, tzinfo=datetime.timezone.utc).timestamp()


@pytest.mark.parametrize("number", [1970, 1999, 2026, 2051, 2500, 9998])
def test_a_clock_may_be_years_off(tmp_path: Path, number: int) -> None:
    mine, yours = papers(TOKEN), papers(TOKEN)
    assert mine.key != yours.key
    assert mine.certificate != yours.certificate
    assert verified(tmp_path, mine, yours.certificate, year(number), yours.certificate) == "OK"


def test_another_tokens_certificate_is_none(tmp_path: Path) -> None:
    other = papers(OTHER)
    said = verified(tmp_path, papers(TOKEN), other.certificate, year(2026), other.authority)
    assert "verification failed" in said


def test_a_member_is_no_authority(tmp_path: Path) -> None:
    """What a node shows cannot be used to let others in."""
    member = papers(TOKEN)
    key = load_pem_private_key(member.key, None)
    assert isinstance(key, EllipticCurvePrivateKey)
    believed = x509.load_pem_x509_certificate(member.certificate)
    forged = (
        x509.CertificateBuilder(believed.subject, x509.Name([]), key.public_key(), 1, BEGIN, END)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(WIRE_NAME)]), critical=True)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False
        )
        .sign(key, hashes.SHA256())
        .public_bytes(Encoding.PEM)
    )
    said = verified(tmp_path, papers(TOKEN), forged, year(2026), member.certificate)
    assert "invalid CA certificate" in said


def test_another_implementation_reads_the_same() -> None:
    mine = papers(TOKEN)
    root, leaf = map(x509.load_pem_x509_certificate, (mine.authority, mine.certificate))
    leaf.verify_directly_issued_by(root)
    root.verify_directly_issued_by(root)
    assert leaf.not_valid_before_utc.year == 1970
    assert leaf.not_valid_after_utc.year == 9999
    constraints = leaf.extensions.get_extension_for_class(x509.BasicConstraints)
    assert constraints.critical
    assert not constraints.value.ca
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [WIRE_NAME]
    usage = root.extensions.get_extension_for_class(x509.KeyUsage).value
    assert usage.key_cert_sign
    assert not usage.digital_signature
    key = load_pem_private_key(mine.key, None)
    assert key.public_key() == leaf.public_key()


def test_numbers_and_lengths_of_every_size_are_read() -> None:
    """An INTEGER whose first bit is set, and a length of more than one byte, have other forms."""
    authority = authority_key(TOKEN)
    shown = [x509.load_pem_x509_certificate(issue(authority).certificate) for _ in range(64)]
    assert len({certificate.serial_number for certificate in shown}) == len(shown)


def test_the_authority_is_the_same_on_every_machine() -> None:
    """A token means the same to every version, or nodes of two versions could not meet."""
    key = authority_key(Token("0123456789abcdef" * 4)).private_numbers().private_value
    assert key % 2**64 == 0xCB157027CFAF24D9
