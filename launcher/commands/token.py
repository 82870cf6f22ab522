"""``ft-run token``: creates a token for a job, or prints the CA certificate of a token."""

from ... import exit_codes
from ...rendezvous.trust.credentials import TokenTrust
from ...rendezvous.trust.source import TrustOptions, read_trust
from ...rendezvous.trust.token import new_token, write_token
from ..cli.security_flags import TokenOptions
from ..reporting.standard_output import standard_output


def make_token(options: TokenOptions) -> int:
    """Write a new token to a file or to standard output, or print the CA certificate of a token."""
    if options.ca and options.file is not None:
        trust = read_trust(TrustOptions(token_file=options.file, origin="--ca"))
        assert isinstance(trust, TokenTrust)
        with standard_output():
            print(trust.ca.decode(), end="")
        return exit_codes.SUCCESS
    token = new_token()
    if options.file is not None:
        write_token(options.file, token)
        return exit_codes.SUCCESS
    with standard_output():
        print(token.reveal())
    return exit_codes.SUCCESS
