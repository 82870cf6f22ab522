"""The token of a job: reading it, its required strength, and how it is kept secret."""

import math
import os
import stat
from collections import Counter
from typing import NoReturn

from ...errors import UsageError

LEAST_BITS = 128
"""Anyone can fetch a certificate that a token has signed, and try tokens on it offline."""

_MOST_BYTES = 4096
_ALPHABETS = (
    (frozenset("0123456789"), 10),
    (frozenset("0123456789abcdef"), 16),
    (frozenset("0123456789ABCDEF"), 16),
)
_OF_OTHERS = 64
"""Alphabet size of other tokens: letters, digits and two signs, as in base64."""

ADVICE = "expected one made by ft-run token."


class Token:
    """The secret string; it has no readable repr and cannot be pickled."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the secret."""
        return self._text

    def __repr__(self) -> str:
        return "Token(...)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Token) and self._text == other._text

    def __hash__(self) -> int:
        return 0  # a number derived from it would leak information

    def __reduce__(self) -> NoReturn:
        raise TypeError("a token is not pickled")


def new_token() -> Token:
    """Return a random token of 256 bits."""
    return Token(os.urandom(32).hex())


def checked(token: Token, origin: str) -> Token:
    """Return a stripped token; raise ``UsageError`` if it is too weak."""
    text = token.reveal().strip()
    if not text:
        raise UsageError(f"the token of {origin} is empty; {ADVICE}")
    letters = frozenset(text)
    alphabet = next((size for signs, size in _ALPHABETS if letters <= signs), _OF_OTHERS)
    if len(text) * math.log2(alphabet) < LEAST_BITS:
        raise UsageError(
            f"the token of {origin} has {len(text)} characters, which is less than {LEAST_BITS}"
            f" bits; {ADVICE}"
        )
    if not text.isprintable():
        raise UsageError(f"the token of {origin} contains control characters; {ADVICE}")
    if _bits_of_variety(text) <= LEAST_BITS / 2:
        raise UsageError(f"the token of {origin} is too regular to be random; {ADVICE}")
    return Token(text)


def _bits_of_variety(text: str) -> float:
    """Return the bits that the frequencies of the characters allow, in one period of the string.

    A random string has fewer bits by this measure than by its alphabet, but more than half of them.
    """
    period = next(n for n in range(1, len(text) + 1) if text.startswith(text[n:]))
    counts = Counter(text[:period]).values()
    return sum(count * math.log2(period / count) for count in counts)


def read_token(path: str, origin: str) -> Token:
    """Read the token in a file.

    Raises:
        UsageError: If it cannot be read, other users can read it, or its token is too weak.
    """
    data = read_private(path, f"the token file {path} ({origin})")
    if len(data) > _MOST_BYTES:
        raise UsageError(
            f"the token file {path} ({origin}) has more than {_MOST_BYTES} bytes; {ADVICE}"
        )
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise UsageError(f"the token file {path} ({origin}) is not text; {ADVICE}") from None
    return checked(Token(text), f"the file {path} ({origin})")


def write_token(path: str, token: Token) -> None:
    """Write a token into a new file that only this user can read, or raise ``UsageError``."""
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(file, "w") as out:
            out.write(f"{token.reveal()}\n")
    except OSError as error:
        raise UsageError(
            f"cannot write a token to {path}: {error.strerror}; expected the name of a new file."
        ) from error


def read_private(path: str, what: str) -> bytes:
    """Return the start of a file that only this user or root can read, as ssh requires.

    A group may read a file of root: Kubernetes mounts volumes with ``fsGroup`` like this.

    Raises:
        UsageError: If it cannot be read, or other users can read it.
    """
    try:
        with open(path, "rb") as file:
            found = os.fstat(file.fileno())
            _refuse_open(found, path, what)
            return file.read(64 * 1024)
    except OSError as error:
        raise UsageError(
            f"cannot read {what}: {error.strerror}; expected a file that this user can read."
        ) from error


def _refuse_open(found: os.stat_result, path: str, what: str) -> None:
    if found.st_uid not in (0, os.geteuid()):
        raise UsageError(
            f"{what} belongs to another user (uid {found.st_uid}); expected a file of this user "
            "or of root."
        )
    is_own = found.st_uid == os.geteuid()
    closed = stat.S_IRWXO | (stat.S_IRWXG if is_own else stat.S_IWGRP)
    if found.st_mode & closed:
        raise UsageError(
            f"{what} is accessible to other users (mode {stat.S_IMODE(found.st_mode):04o}); run "
            f"chmod 600 {path}."
        )
