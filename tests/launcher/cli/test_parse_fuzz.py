"""The command line against thousands of others: options, or one or two sentences and status 2."""

import os
import re
from pathlib import Path

import pytest
from ft_run import exit_codes
from ft_run.errors import UsageError
from ft_run.launcher.cli import launch_flags, master_flags, parse
from ft_run.launcher.cli.master_flags import MasterOptions, StatusOptions
from ft_run.launcher.flags.flag import Flag
from ft_run.launcher.options import LaunchOptions
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

EXAMPLES = 20_000 if os.environ.get("FT_RUN_SLOW") else 600

LAUNCH = tuple(launch_flags.launch_command().flags)
COMMANDS = {
    "": LAUNCH,
    "master": tuple(master_flags.master_command().flags),
    "status": tuple(master_flags.status_command().flags),
}

# What each flag takes, and what it nearly takes. Of no text here a part can be taken for the end
# of a sentence.
NUMBERS = ("0", "1", "2", "4", "16", "-1", "007", "+3", "1e9", "1.5", ".5", "nan", "inf", "-0",
           "65535", "65536", "999999999999999999999", "٤", " 8 ", "0x10", "1_000")  # fmt: skip
WORDS = ("auto", "cpu", "gpu", "xpu", "GPU", "grpc", "c10d", "static", "etcd", "etcd-v2", "never",
         "null", "console", "spawn", "node", "socket", "exclusive", "worker", "separate",
         "default", "nvidia", "amd", "true", "no", "")  # fmt: skip
SHAPED = ("2:5", "5:2", "1:", ":1", "1:2:3", "0:3,10:1", "0:4", "x:1", "3,", "0,1,2", "-1,0",
          "29600-29699", "9-8", "1-", "node0:29400", "[::1]:29400", "[::1", "::1", "fd00::1",
          "node0:0", "node0:99999", "http://h:1", "h:p", "a b", ":29400", "@", "SIGTERM,sigusr1",
          "SIGKILL", "timeout=5", "is_host=maybe", "join_timeout=0", "a=1,b=2", "=", "=1", "k=",
          "'timeout=3,is_host=1'", "last_call_timeout=-1", "a,,b,c", ",,,", "é\n", "\0", "\udcff",
          "x" * 5000)  # fmt: skip
VALUES = st.sampled_from(NUMBERS + WORDS + SHAPED) | st.text("012:,=-[]abz/ '\"\\", max_size=8)


@st.composite
def spelled(draw: st.DrawFn, flag: Flag) -> str:
    """Return one of the ways to write a flag's name; some are wrong or ambiguous."""
    word = draw(st.sampled_from(flag.opts))
    if not word.startswith("--"):
        return word
    if draw(st.booleans()):
        word = "--" + word[2:].replace("-", "_")
    if draw(st.integers(0, 4)) == 0:
        word = word[: draw(st.integers(2, len(word)))]
    if draw(st.integers(0, 19)) == 0:
        at = draw(st.integers(2, len(word)))
        word = word[:at] + draw(st.sampled_from("-_xq=")) + word[at:]
    return word


@st.composite
def arguments(draw: st.DrawFn, known: tuple[Flag, ...] = LAUNCH) -> list[str]:
    """Return a command line of known flags, each with a value of its own or of another."""
    words: list[str] = []
    for flag in draw(st.lists(st.sampled_from(known), max_size=6)):
        word = draw(spelled(flag))
        takes = flag.takes_value if draw(st.integers(0, 9)) else not flag.takes_value
        if not takes:
            words.append(word)
        elif draw(st.booleans()):
            words.append(f"{word}={draw(VALUES)}")
        else:
            words += [word, draw(VALUES)]
    return words


# Words in any order, with values that belong to none of them.
LOOSE = st.sampled_from(
    sorted(
        {word for flag in LAUNCH for word in flag.opts}
        | {
            "--",
            "-",
            "",
            "train.py",
            "master",
            "status",
            "--re",
            "--nod",
            "-mr3",
            "--bind",
            "--json",
        }
    )
)
ANYTHING = st.lists(LOOSE | VALUES | st.builds("{}={}".format, LOOSE, VALUES), max_size=8)

SCRIPTS = st.sampled_from(
    [["train.py"], ["train.py", "--nnodes", "x"], ["--", "train.py"], ["train.py", "--"], [],
     ["--"], ["-"], ["nope.py"], ["folder"], ["train"], ["python"], ["${local_rank}.py"], ["\0"]]
)  # fmt: skip
ENVIRONMENTS = st.dictionaries(
    st.sampled_from(
        [name for flag in LAUNCH for name in flag.variables] + ["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"]
    ),
    VALUES.filter(lambda text: "\0" not in text),
    max_size=4,
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").touch()
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def sentences(text: str) -> int:
    """Count the sentences of a message, leaving out what it quotes."""
    without = re.sub(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", "it", text)
    return len(re.findall(r"[.?!](?= |$)", without))


def check(argv: list[str], environ: dict[str, str]) -> str | None:
    """Read a command line; return the refusal, if it is one, after looking at its form."""
    try:
        options = parse.parse(argv, environ)
    except UsageError as error:
        return check_refusal(error)
    except SystemExit as stop:  # --help or --version
        code: object = stop.code
    else:
        check_options(options)
        return None
    assert code == 0
    assert any(word.startswith("-") for word in argv)
    return None


def check_refusal(error: UsageError) -> str:
    text = error.sentence
    assert error.exit_code == exit_codes.USAGE
    assert text.isprintable(), text  # one line, whatever was given
    assert len(text) < 700, text
    assert text[-1] in ".?", text
    assert 1 <= sentences(text) <= 2, text
    assert not re.search(r"Error\b|Traceback|<class|object at 0x|click", text), text
    return text


def check_options(options: object) -> None:
    assert isinstance(options, LaunchOptions | MasterOptions | StatusOptions)
    if isinstance(options, LaunchOptions):
        group = options.rendezvous
        assert 1 <= group.min_nodes <= group.max_nodes
        assert group.min_nodes % group.node_unit == 0
        assert group.max_nodes == 1 or group.endpoint is not None
        assert all(text.isprintable() for text in options.warnings)


@pytest.mark.long
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(arguments() | ANYTHING, SCRIPTS, ENVIRONMENTS)
@example(["--rdzv-conf=é\n=1"], ["train.py"], {})
@example(["--signals-to-handle=a\nb"], ["train.py"], {})
@example([], ["no\nsuch.py"], {})
@example(["--role"], [], {})
def test_any_command_line_gives_options_or_one_or_two_sentences(
    argv: list[str], script: list[str], environ: dict[str, str]
) -> None:
    check([*argv, *script], environ)


@settings(
    max_examples=EXAMPLES // 5,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.data(), st.sampled_from(["master", "status"]), ENVIRONMENTS)
def test_so_does_any_of_the_other_commands(
    data: st.DataObject, command: str, environ: dict[str, str]
) -> None:
    argv = data.draw(arguments(COMMANDS[command]))
    check([command, *argv, *data.draw(st.lists(VALUES, max_size=2))], environ)
