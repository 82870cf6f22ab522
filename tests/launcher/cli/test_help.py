"""What ``--help`` and ``--help-all`` show, and the older names of flags that they do not."""

import re

import pytest
from ft_run.errors import UsageError
from ft_run.launcher.cli.check_command import check_command
from ft_run.launcher.cli.command_line import CommandLine
from ft_run.launcher.cli.hosts_flags import hosts_command
from ft_run.launcher.cli.launch_flags import launch_command, saves_on_exit
from ft_run.launcher.cli.master_flags import master_command, stacks_command, status_command
from ft_run.launcher.cli.policy_flags import policy_command
from ft_run.launcher.cli.rehearse_flags import rehearse_command
from ft_run.launcher.cli.security_flags import token_command

COMMANDS = (
    launch_command,
    check_command,
    hosts_command,
    master_command,
    policy_command,
    rehearse_command,
    stacks_command,
    status_command,
    token_command,
)
lines = pytest.mark.parametrize("line", [make() for make in COMMANDS], ids=lambda line: line.name)


def shown(text: str) -> set[str]:
    """Return the flags that have a line of their own."""
    return set(re.findall(r"^  (?:-\w, )?(--[a-z-]+)", text, re.MULTILINE))


def test_help_is_one_screen() -> None:
    text = launch_command().help()
    assert len(text.splitlines()) <= 60
    assert len(shown(text)) == 16


@lines
def test_help_shows_only_flags_that_exist(line: CommandLine) -> None:
    known = {flag.spelling for flag in line.flags}
    assert shown(line.help()) <= known
    # Also in texts and examples: what looks like a flag is one, of this command or of ft-run.
    known |= {flag.spelling for flag in launch_command().flags}
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", line.help() + line.help(whole=True)))
    assert named - known <= {"--lr"}


@lines
def test_help_all_shows_every_flag_once(line: CommandLine) -> None:
    text = line.help(whole=True)
    for flag in line.flags:
        assert len(re.findall(rf"^  {re.escape(flag.usage)}(?=  |$)", text, re.MULTILINE)) == 1, (
            flag.usage
        )
    assert shown(text) == {flag.spelling for flag in line.flags}


@lines
def test_both_fit_80_columns(line: CommandLine) -> None:
    for text in (line.help(), line.help(whole=True)):
        assert max(map(len, text.splitlines())) <= 80


@lines
def test_a_short_help_names_the_long_one(line: CommandLine) -> None:
    is_short = shown(line.help()) < shown(line.help(whole=True))
    assert ("--help-all" in shown(line.help())) is is_short


@pytest.mark.parametrize(
    ("older", "key", "value"),
    [
        ("--save-at-breakpoint", "save_on_exit", True),
        ("--no-save-at-breakpoint", "no_save_on_exit", True),
        ("--failure-policy=job.toml", "config", "job.toml"),
    ],
)
def test_older_names_are_accepted_and_not_shown(older: str, key: str, value: object) -> None:
    line = launch_command()
    assert line.read([older, "train.py"], {})[0][key] == value
    name, _, text = older.partition("=")
    variable = "PET_" + name[2:].replace("-", "_").upper()
    given, _ = line.read(["train.py"], {variable: text or "1"})
    assert (given[key], given.origin(key)) == (value, variable)
    given, _ = line.read(["train.py"], {variable: text or "1", f"PET_{key.upper()}": text or "1"})
    assert given.origin(key) == f"PET_{key.upper()}", "the name that is shown applies first"
    assert name not in line.help() + line.help(whole=True)


def test_older_variables_switch_off_too() -> None:
    def is_saved(*argv: str, **environ: str) -> bool:
        return saves_on_exit(launch_command().read([*argv, "train.py"], environ)[0])

    assert is_saved()
    assert is_saved("--save-at-breakpoint")
    assert not is_saved("--no-save-at-breakpoint")
    assert not is_saved(PET_SAVE_AT_BREAKPOINT="0")
    assert not is_saved(PET_NO_SAVE_AT_BREAKPOINT="1")
    assert is_saved("--save-on-exit", PET_SAVE_AT_BREAKPOINT="0")
    with pytest.raises(UsageError, match="--save-on-exit and --no-save-on-exit exclude each other"):
        is_saved("--save-at-breakpoint", "--no-save-on-exit")
