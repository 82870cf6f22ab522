"""Tests of the certificates that a token makes, as another implementation of TLS sees them."""

import datetime
import subprocess
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from ft_run.rendezvous.trust.certificates import BEGIN, END, authority_key, issue, key_pair
from ft_run.rendezvous.trust.key_pair import WIRE_NAME
from ft_run.rendezvous.trust.token import Token, new_token

TOKEN, OTHER = new_token(), new_token()


def verified(
    folder: Path, root: bytes, certificate: bytes, time_s: float, chain: bytes = b""
) -> str:
    """Return what openssl says of a certificate on a host whose clock is at ``time_s``."""
    (folder / "root").write_bytes(root)
    (folder / "leaf").write_bytes(certificate)
    (folder / "chain").write_bytes(chain or certificate)
    for purpose in ("sslserver", "sslclient"):
        answer = subprocess.run(
            [
                *("openssl", "verify", "-x509_strict", "-attime", str(int(time_s))),
                *("-purpose", purpose, "-CAfile", str(folder / "root")),
                *("-untrusted", str(folder / "chain"), str(folder / "leaf")),
            ],
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
    mine, yours = key_pair(TOKEN), key_pair(TOKEN)
    assert mine.key != yours.key
    first, second = (x509.load_pem_x509_certificate(one.certificate) for one in (mine, yours))
    assert first.serial_number != second.serial_number
    assert verified(tmp_path, mine.authority, yours.certificate, year(number)) == "OK"


def test_another_tokens_certificate_is_none(tmp_path: Path) -> None:
    said = verified(tmp_path, key_pair(TOKEN).authority, key_pair(OTHER).certificate, year(2026))
    assert "verification failed" in said


def test_a_member_is_no_authority(tmp_path: Path) -> None:
    """What a node shows cannot be used to let others in."""
    member = key_pair(TOKEN)
    key = load_pem_private_key(member.key, None)
    forged = issue(key, x509.load_pem_x509_certificate(member.certificate))  # type: ignore[arg-type]  # a P-256 key
    believed = x509.load_pem_x509_certificate(forged.certificate)
    stranger = (
        x509.CertificateBuilder(believed.issuer, x509.Name([]), key.public_key(), 1, BEGIN, END)  # type: ignore[arg-type]  # as above
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(WIRE_NAME)]), critical=True)
        .sign(key, hashes.SHA256())  # type: ignore[arg-type]  # as above
        .public_bytes(x509_pem())
    )
    said = verified(tmp_path, key_pair(TOKEN).authority, stranger, year(2026), member.certificate)
    assert "invalid CA certificate" in said


def x509_pem():
    from cryptography.hazmat.primitives.serialization import Encoding

    return Encoding.PEM


def test_the_authority_is_the_same_on_every_machine() -> None:
    """A token means the same to every version, or nodes of two versions could not meet."""
    key = authority_key(Token("0123456789abcdef" * 4)).private_numbers().private_value
    assert key % 2**64 == 0xCB157027CFAF24D9
