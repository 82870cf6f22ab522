"""What the user gave to protect the wire with, and the credentials that are made of it."""

from importlib.util import find_spec
from typing import TYPE_CHECKING

from ...errors import UsageError
from ...values import dataclass
from .token import Token, checked, read_token

if TYPE_CHECKING:
    from .wire import Trust

TOKEN_VARIABLE = "FT_RUN_TOKEN"  # noqa: S105 - a name
"""Has the token itself; it is taken out of the environment before anything is started."""

TOKEN_FILE_VARIABLE = "FT_RUN_TOKEN_FILE"  # noqa: S105 - a name


@dataclass(frozen=True, slots=True)
class TrustOptions:
    """A token, the file of one, or three files; nothing has been read yet."""

    token: Token | None = None
    token_file: str | None = None
    origin: str = "--token-file"
    """The flag or the variable that gave the token."""
    tls_cert: str | None = None
    """With ``tls_key`` and ``tls_ca``: certificates of the user's own, PEM."""
    tls_key: str | None = None
    tls_ca: str | None = None


def read_trust(options: TrustOptions | None) -> "Trust | None":
    """Read what was given; return the credentials that it makes, or None for plain text.

    What takes time, and gRPC, is left until they are used.

    Raises:
        UsageError: a file cannot be used, a token can be guessed, or a package is missing.
    """
    if options is None:
        return None
    from .credentials import FileTrust, TokenTrust

    if options.tls_cert is not None and options.tls_key is not None and options.tls_ca is not None:
        return FileTrust(options.tls_cert, options.tls_key, options.tls_ca)
    if options.token_file is not None:
        token = read_token(options.token_file, options.origin)
    else:
        assert options.token is not None
        token = checked(options.token, options.origin)
    if find_spec("cryptography") is None:
        raise UsageError(
            f"{options.origin} needs the package cryptography, which is not installed; run pip "
            "install 'ft-run[tls]' (or pip install cryptography)."
        )
    return TokenTrust(token)
