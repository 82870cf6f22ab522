"""The flags that enable mutual TLS: a token, or the user's certificates."""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from ...errors import UsageError
from ...rendezvous.trust.source import TOKEN_FILE_VARIABLE, TOKEN_VARIABLE, TrustOptions
from ...rendezvous.trust.token import Token
from ..flags.flag import HELP, Flag, Heading, flags_of
from ..flags.headings import SECURITY
from .command_line import CommandLine, Given, HelpText

_FILES = ("tls_cert", "tls_key", "tls_ca")


class TokenOptions(Struct, frozen=True):
    """The options of ``ft-run token``."""

    file: str | None = None
    """The file to create for the token; None to print it. With ``ca``, the file that has the token.
    """
    ca: bool = HELP.option(
        False,
        "--ca",
        "Print the CA certificate that belongs to the token in FILE, for clients of --metrics.",
    )


def security_flags() -> list[Flag]:
    """Return the flags."""
    return [
        token_file_flag(SECURITY),
        SECURITY(
            "--tls-cert FILE",
            "Certificate (PEM) for both ends of each connection, instead of a token.",
            ours=True,
        ),
        SECURITY("--tls-key FILE", "Private key of --tls-cert (PEM).", ours=True),
        SECURITY(
            "--tls-ca FILE",
            "CA certificate (PEM) that signed the certificates of all nodes.",
            ours=True,
        ),
    ]


def token_file_flag(heading: Heading) -> Flag:
    """Return the flag for the file with the job's secret."""
    return heading(
        "--token-file FILE",
        "File with the job's secret; enables mutual TLS. ft-run token creates it. Alternatives:"
        f" {TOKEN_FILE_VARIABLE} (a path) or {TOKEN_VARIABLE} (the secret itself).",
        ours=True,
    )


def trust_options(given: Given, environ: Mapping[str, str]) -> TrustOptions | None:
    """Return the security of connections; None for plain text."""
    token = given_token(given, environ)
    files = [key for key in _FILES if given[key]]
    if not files:
        return token
    if token is not None:
        raise UsageError(
            f"{given.origin(files[0])} and {token.origin} exclude each other; expected a"
            " token, or certificates."
        )
    missing = [f"--{key.replace('_', '-')}" for key in _FILES if key not in files]
    if missing:
        raise UsageError(
            f"{given.origin(files[0])} needs {' and '.join(missing)}; expected"
            " --tls-cert, --tls-key and --tls-ca together."
        )
    return TrustOptions(
        tls_cert=given["tls_cert"], tls_key=given["tls_key"], tls_ca=given["tls_ca"]
    )


def token_options(argv: Sequence[str], environ: Mapping[str, str]) -> TokenOptions:
    """Parse the arguments after ``ft-run token``."""
    given, rest = token_command().read_all(argv, environ, most=1, right="one FILE")
    if given["ca"] and not rest:
        raise UsageError("--ca needs the file with the token; expected ft-run token --ca FILE.")
    return given.fill(TokenOptions, file=rest[0] if rest else None)


def token_command() -> CommandLine:
    """Return the flags of ``ft-run token``."""
    before = """\
Usage: ft-run token [FILE]
       ft-run token --ca FILE

Create a 256-bit secret for a job: in a new file that only this user can read,
or, without FILE, on standard output. Pass the same secret to every node of the
job and to ft-run master, status and stacks with --token-file.

Example:
  ft-run token job.token
  ft-run --token-file job.token --nnodes 2 --nproc-per-node 8 \\
    --rdzv-endpoint node0:29400 --rdzv-id run7 train.py
"""
    return CommandLine("ft-run token", flags_of(TokenOptions), HelpText(before, ""))


def given_token(given: Given, environ: Mapping[str, str]) -> TrustOptions | None:
    """Return the source of the job's token, a flag or variable; None if there is none."""
    if given["token_file"]:
        return TrustOptions(token_file=given["token_file"], origin=given.origin("token_file"))
    if path := environ.get(TOKEN_FILE_VARIABLE):
        return TrustOptions(token_file=path, origin=TOKEN_FILE_VARIABLE)
    if text := environ.get(TOKEN_VARIABLE):
        return TrustOptions(token=Token(text), origin=TOKEN_VARIABLE)
    return None
