"""What closes the wire, on every command line that opens a connection or a port."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from ft_run.errors import UsageError
from ft_run.launcher.cli.master_flags import MasterOptions, StacksOptions, StatusOptions
from ft_run.launcher.cli.parse import parse
from ft_run.launcher.cli.security_flags import TokenOptions
from ft_run.launcher.options import LaunchOptions
from ft_run.rendezvous.trust.source import TrustOptions
from ft_run.rendezvous.trust.token import Token

COMMANDS = (
    ("--nnodes=2", "--rdzv-endpoint=n0"),
    ("master",),
    ("status",),
    ("stacks",),
    ("check", "--nnodes=2", "--rdzv-endpoint=n0"),
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)


def trust(command: Sequence[str], *flags: str, **environ: str) -> TrustOptions | None:
    script = ["train.py"] if command[0].startswith("-") else []
    options = parse([*command, *flags, *script], environ)
    match options:
        case LaunchOptions(rendezvous=rendezvous):
            return rendezvous.trust
        case MasterOptions() | StatusOptions() | StacksOptions():
            return options.trust
    raise AssertionError(options)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_that_connects_takes_a_token(command: Sequence[str]) -> None:
    assert trust(command) is None
    assert trust(command, "--token-file=t") == TrustOptions(token_file="t", origin="--token-file")
    assert trust(command, "--token_file", "t", FT_RUN_TOKEN="x") == TrustOptions(token_file="t")
    for name in ("PET_TOKEN_FILE", "FT_RUN_TOKEN_FILE"):
        assert trust(command, **{name: "t"}) == TrustOptions(token_file="t", origin=name)
    both = trust(command, FT_RUN_TOKEN_FILE="t", FT_RUN_TOKEN="x")
    assert both == TrustOptions(token_file="t", origin="FT_RUN_TOKEN_FILE")
    assert trust(command, FT_RUN_TOKEN="x", FT_RUN_TOKEN_FILE="") == TrustOptions(
        token=Token("x"), origin="FT_RUN_TOKEN"
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_certificates_come_three_at_a_time_and_without_a_token(command: Sequence[str]) -> None:
    three = ("--tls-cert=c", "--tls-key=k", "--tls-ca=a")
    assert trust(command, *three) == TrustOptions(tls_cert="c", tls_key="k", tls_ca="a")
    with pytest.raises(UsageError) as error:
        trust(command, three[0], PET_TLS_CA="a")
    assert error.value.sentence == (
        "--tls-cert needs --tls-key; expected --tls-cert, --tls-key and --tls-ca together."
    )
    with pytest.raises(UsageError) as error:
        trust(command, *three, FT_RUN_TOKEN="x")
    assert error.value.sentence == (
        "--tls-cert and FT_RUN_TOKEN exclude each other; expected a token, or certificates."
    )


def test_prefixes_of_torchruns_flags_are_still_theirs() -> None:
    options = parse(["--t", "3", "train.py"], {})
    assert isinstance(options, LaunchOptions)
    assert options.logs.tee.default == 3


def test_the_token_command() -> None:
    assert parse(["token"], {}) == TokenOptions()
    assert parse(["token", "job.token"], {}) == TokenOptions("job.token")
    with pytest.raises(UsageError, match="unexpected argument 'b' for ft-run token; expected one"):
        parse(["token", "a", "b"], {})
