"""``ft-run token``: creates a token for a job."""

from ... import exit_codes
from ...rendezvous.trust.token import new_token, write_token
from ..cli.security_flags import TokenOptions
from ..reporting.standard_output import standard_output


def make_token(options: TokenOptions) -> int:
    """Write a new token into a file or to standard output; return the exit status.

    Raises:
        UsageError: it cannot be written.
    """
    token = new_token()
    if options.file is not None:
        write_token(options.file, token)
        return exit_codes.SUCCESS
    with standard_output():
        print(token.reveal())
    return exit_codes.SUCCESS
