"""The machinery of the command line: spellings, prefixes, sources, and the readers of values."""

import contextlib
import math
import re
from collections.abc import Callable
from typing import Any

import pytest
from ft_run.errors import UsageError
from ft_run.launcher.cli import launch_flags, master_flags
from ft_run.launcher.cli.command_line import CommandLine, HelpText
from ft_run.launcher.flags import values
from ft_run.launcher.flags.flag import Flag
from ft_run.launcher.flags.values import BadValue
from ft_run.launcher.machine.accelerators import ACCELERATOR_CHOICES
from hypothesis import given, settings
from hypothesis import strategies as st

ENDPOINT_RIGHT = "HOST[:PORT], e.g. node0:29400 or [fd00::1]:29400"


@pytest.fixture
def command() -> CommandLine:
    return CommandLine(
        "tool",
        [
            Flag("--node-rank N", "Rank.", values.whole(0), group="A"),
            Flag("--node-unit N", "", values.whole(1), group="A", ours=True),
            Flag("-r, --redirects X", "Files.", group="B"),
            Flag("--run-path", "Switch.", group="B"),
            Flag("-m, --module", "Switch.", group="B"),
            Flag("--rescale S", "", group="B", ours=True),
        ],
        HelpText("Usage: tool\n", "The end.\n"),
    )


def sentence(command: CommandLine, *argv: str, **environ: str) -> str:
    with pytest.raises(UsageError) as refused:
        command.read(argv, environ)
    return refused.value.sentence


def keys(command: CommandLine, *argv: str) -> list[tuple[str, str]]:
    return [(flag.key, text) for flag, text in command.split(argv)[0]]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--node-rank", "3"], ["--node-rank=3"]),
        (["--node_rank", "3"], ["--node-rank=3"]),
        (["--node-rank=3"], ["--node-rank=3"]),
        (["--node_rank=a_b"], ["--node-rank=a_b"]),
        (["--node-rank="], ["--node-rank="]),
        (["--node-rank", ""], ["--node-rank="]),
        (["--node-rank", "-1"], ["--node-rank=-1"]),
        (["--node_r", "3"], ["--node-rank=3"]),
        (["--redirects=a=b"], ["--redirects=a=b"]),
        (["--redirects", "-a b"], ["--redirects=-a b"]),
        (["--redirects=--run-path"], ["--redirects=--run-path"]),
        (["-r3"], ["--redirects=3"]),
        (["-r", "3"], ["--redirects=3"]),
        (["-r=3"], ["--redirects=3"]),
        (["-mr3"], ["--module", "--redirects=3"]),
        (["-mr", "3", "-m"], ["--module", "--redirects=3", "--module"]),
        (["--mod", "--run"], ["--module", "--run-path"]),
    ],
)
def test_every_way_to_write_a_flag_has_one_canonical_form(
    command: CommandLine, argv: list[str], words: list[str]
) -> None:
    found, rest = command.split([*argv, "script", "--run-path"])
    assert [word for flag, text in found for word in flag.words([text])] == words
    assert rest == ("script", "--run-path")


def test_a_prefix_is_resolved_among_the_flags_of_torchrun_first(command: CommandLine) -> None:
    assert keys(command, "--node", "1") == [("node_rank", "1")]
    assert keys(command, "--re", "1") == [("redirects", "1")]
    assert keys(command, "--node-u", "1", "--res", "2") == [("node_unit", "1"), ("rescale", "2")]


def test_an_ambiguous_prefix_is_refused_with_what_it_could_be(command: CommandLine) -> None:
    assert sentence(command, "--r=1") == (
        "'--r' is ambiguous: it could be --redirects or --run-path; expected the whole name."
    )


@pytest.mark.parametrize(
    ("argv", "rest"),
    [
        ([], ()),
        (["--"], ()),
        (["--", "--module"], ("--module",)),
        (["--", "s", "--", "-m"], ("s", "--", "-m")),
        (["s", "--", "-m"], ("s", "-m")),
        (["s", "--"], ("s",)),
        (["s", "--", "--", "-m"], ("s", "--", "-m")),
        (["s", "-v", "--", "-m"], ("s", "-v", "--", "-m")),
        (["-", "--", "-m"], ("-", "-m")),
        (["s", "--help"], ("s", "--help")),
        (["-", "-m"], ("-", "-m")),
        (["", "-m"], ("", "-m")),
        (["--", "--", "s"], ("--", "s")),
    ],
)
def test_arguments_of_the_script_are_kept_but_one_dash_dash_directly_after_it(
    command: CommandLine, argv: list[str], rest: tuple[str, ...]
) -> None:
    assert command.split(argv) == ([], rest)


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--modul3"], "unknown flag '--modul3'; did you mean --module?"),
        (["--Run_Path"], "unknown flag '--Run_Path'; did you mean --run-path?"),
        (["-redirect"], None),
        (["-node-rank=3"], "unknown flag '-node-rank=3'; did you mean --node-rank?"),
        (["-mx"], "unknown flag '-mx'; tool --help lists the flags."),
        (["--zzz=3"], "unknown flag '--zzz'; tool --help lists the flags."),
        (["--=3"], "unknown flag '--'; tool --help lists the flags."),
        (["-1"], "unknown flag '-1'; tool --help lists the flags."),
        (["--node-rank"], "--node-rank needs a value; expected --node-rank N."),
        (["-r"], "--redirects needs a value; expected --redirects X."),
        (
            ["--node-rank", "--module"],
            "--node-rank needs a value, but '--module' follows; expected --node-rank N, or"
            " --node-rank=VALUE for a value that begins with a dash.",
        ),
        (
            ["--module=yes"],
            "unexpected value 'yes' for --module: expected --module without a value.",
        ),
        (["--node-rank=x"], "invalid value 'x' for --node-rank: expected a whole number >= 0."),
    ],
)
def test_a_word_that_is_not_a_flag_is_refused(
    command: CommandLine, argv: list[str], expected: str | None
) -> None:
    if expected is None:  # -r with the value "edirect", as under argparse
        assert keys(command, *argv) == [("redirects", "edirect")]
    else:
        assert sentence(command, *argv) == expected


def test_of_a_repeated_flag_the_last_counts(command: CommandLine) -> None:
    given_, _ = command.read(["-r1", "--redirects", "2", "--redir=3"], {})
    assert given_["redirects"] == "3"


def test_a_variable_gives_a_value_and_the_command_line_beats_it(command: CommandLine) -> None:
    environ = {"PET_NODE_RANK": "7", "PET_MODULE": "yes", "PET_REDIRECTS": "", "NODE_UNIT": "3"}
    given_, _ = command.read([], environ)
    assert (given_["node_rank"], given_.origin("node_rank")) == (7, "PET_NODE_RANK")
    assert (given_["module"], given_.origin("module")) == (True, "PET_MODULE")
    assert given_["redirects"] is None
    assert given_["node_unit"] is None
    given_, _ = command.read(["--node-rank=0", "-m"], {**environ, "PET_MODULE": "0"})
    assert (given_["node_rank"], given_.origin("node_rank")) == (0, "--node-rank")
    assert (given_["module"], given_.origin("module")) == (True, "--module")


def test_a_wrong_variable_does_not_matter_when_the_command_line_beats_it(
    command: CommandLine,
) -> None:
    given_, _ = command.read(["--node-rank=1"], {"PET_NODE_RANK": "x"})
    assert given_["node_rank"] == 1


@pytest.mark.parametrize("word", ["1", "true", "TRUE", "yes", "Yes"])
def test_switches_can_be_set_by_a_variable(command: CommandLine, word: str) -> None:
    assert command.read([], {"PET_RUN_PATH": word})[0]["run_path"] is True


@pytest.mark.parametrize("word", ["0", "false", "False", "no", ""])
def test_switches_can_be_left_off_by_a_variable(command: CommandLine, word: str) -> None:
    assert command.read([], {"PET_RUN_PATH": word})[0]["run_path"] is False


def test_a_wrong_variable_is_named(command: CommandLine) -> None:
    assert sentence(command, PET_RUN_PATH="maybe") == (
        "invalid value 'maybe' for PET_RUN_PATH: expected 1/0, true/false or yes/no."
    )
    assert sentence(command, PET_NODE_RANK="-1") == (
        "invalid value '-1' for PET_NODE_RANK: expected a whole number >= 0."
    )


@pytest.mark.parametrize("word", ["--help", "-h", "--he", "-mh"])
def test_help_has_the_flags_under_their_headings(
    command: CommandLine, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        command.read(["--node-rank=wrong", word], {"PET_RUN_PATH": "wrong"})
    assert stop.value.code == 0
    out = capsys.readouterr().out
    assert re.search(r"^A:\n  --node-rank N +Rank\.$", out, re.MULTILINE)
    assert re.search(r"^B:\n  -r, --redirects X +Files\.$", out, re.MULTILINE)
    assert out.startswith("Usage: tool\n")
    assert out.endswith("\nThe end.\n")


def test_no_name_is_broken_at_a_dash_in_the_help() -> None:
    words = HelpText("", "")
    long = Flag("--x", "word " * 8 + "node-rank-of-the-master " * 4, group="A")
    out = CommandLine("tool", [long], words).help()
    assert out.count("node-rank-of-the-master") == 4


def test_every_flag_has_help_and_a_heading_and_a_variable_of_its_own() -> None:
    for line in (
        launch_flags.launch_command(),
        master_flags.master_command(),
        master_flags.status_command(),
    ):
        variables = [variable for flag in line.flags for variable in flag.variables]
        assert len(set(variables)) == len(variables)
        for flag in line.flags:
            assert flag.help
            assert flag.group
            assert flag.metavar or not flag.takes_value


def test_long_values_are_cut_in_messages(command: CommandLine) -> None:
    assert len(sentence(command, "--node-rank=" + "9" * 10_000)) < 250


Reader = Callable[[str], Any]


@pytest.mark.parametrize(
    ("read", "text", "expected"),
    [
        (values.whole(0), "007", 7),
        (values.whole(0), " +7 ", 7),
        (values.number, "0.1", 0.1),
        (values.number, "-1e-2", -0.01),
        (values.seconds, ".5", 0.5),
        (values.seconds, "-0", 0.0),
        (values.seconds, "90s", 90.0),
        (values.seconds, "1.5 min", 90.0),
        (values.seconds, "2H", 7200.0),
        (values.seconds, "1d", 86400.0),
        (values.seconds_or_never, "Never", math.inf),
        (values.nnodes, "4", (4, 4)),
        (values.nnodes, "2:5", (2, 5)),
        (values.nnodes, " 2 : 5 ", (2, 5)),
        (values.nproc_per_node, "08", "8"),
        (values.nproc_per_node, "auto", "auto"),
        (values.ports, "29600", range(29600, 29601)),
        (values.ports, "1-65535", range(1, 65536)),
        (values.accelerator, "amd.com/gpu", "amd.com/gpu"),
        (values.host, "[0:0:0:0:0:0:0:1]", "0:0:0:0:0:0:0:1"),
        (values.host, "fe80::1%eth0", "fe80::1%eth0"),
        (values.host, "my_node-0.svc", "my_node-0.svc"),
        (values.host, "", ""),
    ],
)
def test_readers_take(read: Reader, text: str, expected: object) -> None:
    assert read(text) == expected


@pytest.mark.parametrize(
    ("read", "texts"),
    [
        (values.whole(0), ["", "-1", "1.0", "٣", "1_0", "0x1", "9" * 5000, "1000000000"]),
        (values.number, ["", "inf", "nan", "1e999", "٣", "1,5"]),
        (values.seconds, ["-1", "x", "1e10", "5w", "m", "1.2.3h", "5 m s", "-5m", "1_0s"]),
        (values.seconds_above_zero, ["0", "-1", "0.0"]),
        (values.nnodes, ["", "0", "0:1", "3:2", "1:2:3", ":", "1:", ":1", "abc", "٣", "-1", "1-2"]),
        (values.nproc_per_node, ["", "0", "-1", "GPU", "gpus", "two", "1.5", "٣", "mps"]),
        (values.ports, ["", "0", "65536", "5-4", "1-", "-5", "1-2-3", "1:2", "٣"]),
        (values.accelerator, ["", "CUDA", "amd", "é"]),
        (values.host, ["a b", "a:1", "http://a", "[::g]", "a,b"]),
        (values.backend, ["", "zeus", "etcd", "etcd-v2", "C10D"]),
        (values.boolean, ["", "2", "on", "maybe"]),
    ],
)
def test_readers_refuse(read: Reader, texts: list[str]) -> None:
    for text in texts:
        with pytest.raises(BadValue):
            read(text)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("node0", "node0", 29400),
        ("node0:1", "node0", 1),
        ("[fd00::1]:29500", "fd00::1", 29500),
        ("fd00::1", "fd00::1", 29400),
        ("fd00::1:29500", "fd00::1", 29500),
        ("10.0.0.1:0", "10.0.0.1", 0),
    ],
)
def test_endpoints(text: str, host: str, port: int) -> None:
    found = values.endpoint(text)
    assert found is not None
    assert (found.host, found.port) == (host, port)


@pytest.mark.parametrize(
    "text",
    ["http://node0:29400", "node0:", ":29400", "node0:65536", "node0:x", "a:1,b:2", "a b:1", "[::1",
     "[::g]:1", "node0:1:2", "node0:" + "9" * 5000],
)  # fmt: skip
def test_what_is_not_an_endpoint_is_refused(text: str) -> None:
    with pytest.raises(BadValue) as refused:
        values.endpoint(text)
    assert refused.value.right == ENDPOINT_RIGHT


@pytest.mark.parametrize(
    ("text", "expected"),
    [("29500", "[::]:29500"), (":29500", "[::]:29500"), ("[::]:1", "[::]:1"), ("0", "[::]:0"),
     ("0.0.0.0:1", "0.0.0.0:1"), ("node0", "node0:29400"), ("0.0.0.0", "0.0.0.0:29400")],
)  # fmt: skip
def test_bind_addresses(text: str, expected: str) -> None:
    assert str(values.bind_address(text)) == expected


@pytest.mark.parametrize("text", ["", ":", ":x", ":65536", "a b:1"])
def test_what_is_not_a_bind_address_is_refused(text: str) -> None:
    with pytest.raises(BadValue, match=r"e\.g\. :29400"):
        values.bind_address(text)


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(
        [values.nnodes, values.nproc_per_node, values.ports, values.endpoint, values.host,
         values.bind_address, values.seconds_or_never, values.number, values.boolean]
    ),
    st.text(alphabet="0123456789:-.[]%e+ nevrcpu_٣\0é", max_size=20),
)  # fmt: skip
def test_a_reader_returns_or_refuses(read: Reader, text: str) -> None:
    with contextlib.suppress(BadValue):
        read(text)


def test_the_help_names_every_kind_of_accelerator() -> None:
    words = next(f for f in launch_flags.launch_command().flags if f.key == "accelerator").help
    assert words is not None
    assert all(choice in words for choice in ACCELERATOR_CHOICES)
