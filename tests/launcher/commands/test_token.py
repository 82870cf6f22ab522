"""``ft-run token`` without a file."""

import pytest
from ft_run.launcher.cli.security_flags import TokenOptions
from ft_run.launcher.commands.token import make_token
from ft_run.rendezvous.trust.token import Token, checked


def test_a_token_is_printed_alone_so_that_a_command_can_take_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    tokens = []
    for _ in range(2):
        assert make_token(TokenOptions()) == 0
        said, told = capsys.readouterr()
        assert told == ""
        (token,) = said.splitlines()
        assert checked(Token(token), "it").reveal() == token
        tokens.append(token)
    assert tokens[0] != tokens[1]
