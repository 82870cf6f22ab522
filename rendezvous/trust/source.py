"""The user's options for the security of connections, and the resulting credentials."""

from importlib.util import find_spec

from msgspec import Struct

from ...errors import UsageError
from .credentials import FileTrust, TokenTrust, Trust
from .token import Token, checked, read_token

TOKEN_VARIABLE = "FT_RUN_TOKEN"  # noqa: S105 - a name
"""Variable with the token itself; removed from the environment before any start."""

TOKEN_FILE_VARIABLE = "FT_RUN_TOKEN_FILE"  # noqa: S105 - a name


class TrustOptions(Struct, frozen=True):
    """A token, a token file, or three certificate files; nothing has been read yet."""

    token: Token | None = None
    token_file: str | None = None
    origin: str = "--token-file"
    """The option or the variable that provided the token."""
    tls_cert: str | None = None
    """With ``tls_key`` and ``tls_ca``: the user's certificates, PEM."""
    tls_key: str | None = None
    tls_ca: str | None = None


def read_trust(options: TrustOptions | None) -> Trust | None:
    """Read the token or the files; return the credentials, or None for plain text.

    Expensive steps, such as the import of ``cryptography``, are deferred until they are needed.

    Raises:
        UsageError: If a file cannot be used, a token is too weak, or a package is missing.
    """
    if options is None:
        return None

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
