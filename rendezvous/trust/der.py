"""DER, as far as a certificate of ft-run has it: how each part is written. Pure.

``cryptography.x509`` would do the same. Its import takes 20 ms of the start of every agent, half of
what a token costs there; to sign, to derive keys and to make them needs little of that package.
"""

import binascii
import datetime


def tagged(tag: int, *parts: bytes) -> bytes:
    """Return parts one after the other, as the content of a tag."""
    content = b"".join(parts)
    size = len(content)
    if size < 0x80:
        return bytes((tag, size)) + content
    digits = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes((tag, 0x80 | len(digits))) + digits + content


def sequence(*parts: bytes) -> bytes:
    """Return a SEQUENCE."""
    return tagged(0x30, *parts)


def one_of_set(part: bytes) -> bytes:
    """Return a SET of one member."""
    return tagged(0x31, part)


def integer(number: int) -> bytes:
    """Return an INTEGER that is not negative."""
    return tagged(0x02, number.to_bytes(number.bit_length() // 8 + 1, "big"))


def true() -> bytes:
    """Return the BOOLEAN that is true; what is false is left out."""
    return b"\x01\x01\xff"


def octets(data: bytes) -> bytes:
    """Return an OCTET STRING."""
    return tagged(0x04, data)


def bits(data: bytes, unused: int = 0) -> bytes:
    """Return a BIT STRING, of which the last so many bits are not used."""
    return tagged(0x03, bytes((unused,)), data)


def text(value: str) -> bytes:
    """Return a UTF8String."""
    return tagged(0x0C, value.encode())


def oid(dotted: str) -> bytes:
    """Return an OBJECT IDENTIFIER."""
    first, second, *rest = map(int, dotted.split("."))
    data = bytearray((40 * first + second,))
    for number in rest:
        digits = [number & 0x7F]
        while number := number >> 7:
            digits.append(number & 0x7F | 0x80)
        data += bytes(reversed(digits))
    return tagged(0x06, bytes(data))


def time(moment: datetime.datetime) -> bytes:
    """Return a time of a certificate: years from 2050 on have another form (RFC 5280, 4.1.2.5)."""
    rest = f"{moment:%m%d%H%M%SZ}"
    if moment.year < 2050:
        return tagged(0x17, f"{moment.year % 100:02}{rest}".encode())
    return tagged(0x18, f"{moment.year:04}{rest}".encode())


def pem(label: str, data: bytes) -> bytes:
    """Return DER as the text that files have."""
    lines = (binascii.b2a_base64(data[at : at + 48]) for at in range(0, len(data), 48))
    return b"".join(
        (f"-----BEGIN {label}-----\n".encode(), *lines, f"-----END {label}-----\n".encode())
    )
