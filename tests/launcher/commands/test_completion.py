"""What could follow on a command line, and what click's scripts make of it."""

import pytest
from ft_run.errors import UsageError
from ft_run.launcher.commands.completion import complete, completions


def offered(text: str) -> list[str]:
    *args, incomplete = text.split(" ")
    return [f"{item.type}:{item.value}" for item in completions(args, incomplete)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("--nno", ["plain:--nnodes"]),
        ("--max_re", ["plain:--max-restarts"]),
        ("--hang-t", ["plain:--hang-timeout", "plain:--hang-timeout-start"]),
        ("ma", ["plain:master", "file:ma"]),
        ("--standalone tr", ["file:tr"]),  # a command stands in front of all
        ("--nnodes 2 train.py --e", ["file:--e"]),  # flags of the script are its own
        ("-m package.train --e", ["file:--e"]),
        ("--nnodes ", []),
        ("--nnodes 2 --stan", ["plain:--standalone"]),
        ("--success-policy r", ["plain:rank0"]),
        ("--success-policy = r", ["plain:rank0"]),  # as bash cuts --success-policy=r
        ("--success-policy =", ["plain:all", "plain:rank0"]),
        ("--print-completion ", ["plain:bash", "plain:zsh", "plain:fish"]),
        ("--failure-policy p", ["file:p"]),
        ("--log-dir l", ["dir:l"]),
        ("--tee=3 --red", ["plain:--redirects"]),
        ("master --b", ["plain:--bind"]),
        ("check --str", ["plain:--straggler-threshold", "plain:--strict"]),
        ("hosts --hostfi", ["plain:--hostfile"]),
        ("--no-such-flag --nno", ["plain:--nnodes"]),
    ],
)
def test_what_could_follow(text: str, expected: list[str]) -> None:
    assert sorted(offered(text)) == sorted(expected)


def test_every_shell_of_click_gets_its_script(capfd: pytest.CaptureFixture[str]) -> None:
    for shell in ("zsh", "fish"):
        assert complete(f"{shell}_source") == 0
        assert f"_FT_RUN_COMPLETE={shell}_complete" in capfd.readouterr().out


def test_an_unknown_shell_is_refused() -> None:
    for instruction in ("tcsh_source", "bash_nonsense", ""):
        with pytest.raises(UsageError, match="expected bash_source, zsh_source or fish"):
            complete(instruction)
