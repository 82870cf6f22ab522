"""A flag that is declared with the option that it fills: all that follows from it."""

import pytest
from ft_run.errors import UsageError
from ft_run.launcher.cli.command_line import CommandLine, HelpText
from ft_run.launcher.flags import values
from ft_run.launcher.flags.flag import Heading, flags_of, option
from msgspec import Struct

SIZE = Heading("Size")


class Box(Struct, frozen=True):
    """What is packed."""

    name: str
    height_cm: int = SIZE.option(30, "-H, --height CM", "How high; default 30.", values.whole(1))
    is_open: bool = SIZE.option(False, "--open", "Without a lid.")
    lid: str | None = option(
        "flat", SIZE("--lid KIND", "Which lid."), SIZE("--no-lid", "None.", ours=True)
    )


LINE = CommandLine("pack", flags_of(Box), HelpText("Usage: pack\n", ""))


def box(*argv: str, **environ: str) -> Box:
    given, _ = LINE.read(argv, environ)
    return given.fill(Box, name="a")


def test_without_flags_it_is_a_field_with_a_default() -> None:
    assert Box("a") == Box("a", 30, False, "flat") == box()


def test_a_field_with_one_flag_is_what_that_was_given() -> None:
    assert box("-H40", "--open") == Box("a", 40, True)
    assert box(PET_HEIGHT="50") == Box("a", 50)
    assert box("--open", PET_OPEN="0") == Box("a", is_open=True)


def test_a_field_with_several_flags_is_worked_out_by_the_caller() -> None:
    given, _ = LINE.read(["--lid", "round", "-H40"], {})
    assert given.fill(Box, name="a").lid == "flat"
    assert given.fill(Box, name="a", lid=None, height_cm=7) == Box("a", 7, lid=None)


def test_what_the_help_shows_is_what_was_declared() -> None:
    assert [flag.usage for flag in flags_of(Box)] == [
        "-H, --height CM",
        "--open",
        "--lid KIND",
        "--no-lid",
    ]
    assert flags_of(Box, "is_open", "height_cm") == [LINE.flags[1], LINE.flags[0]]
    assert "Size:\n  -H, --height CM  How high; default 30.\n  --open" in LINE.help()


def test_a_bad_value_names_its_flag_or_its_variable() -> None:
    with pytest.raises(UsageError, match="invalid value '0' for --height: expected a whole number"):
        box("-H0")
    with pytest.raises(UsageError, match="invalid value 'x' for PET_HEIGHT"):
        box(PET_HEIGHT="x")


@pytest.mark.parametrize(
    ("text", "summary"),
    [
        ("How high.", "How high."),
        ("How high. In metres.", "How high."),
        ("How high, e.g. 30. In metres.", "How high, e.g. 30."),
        (
            "A number, e.g. 1.5, of metres (default: 2.5). More.",
            "A number, e.g. 1.5, of metres (default: 2.5).",
        ),
        ("No period", "No period"),
    ],
)
def test_the_summary_is_the_first_sentence(text: str, summary: str) -> None:
    assert SIZE("--height CM", text).summary == summary


def test_an_older_name_is_accepted_and_not_shown() -> None:
    flag = SIZE("--height CM", "How high.", values.whole(1), also="--tallness")
    line = CommandLine("pack", [flag], HelpText("", ""))
    assert flag.usage == "--height CM"
    assert flag.variables == ("PET_HEIGHT", "PET_TALLNESS")
    assert "tallness" not in line.help()
    assert line.read(["--tallness=3"], {})[0]["height"] == 3
    assert line.read([], {"PET_TALLNESS": "4"})[0]["height"] == 4
    assert line.read(["--height=5"], {"PET_TALLNESS": "4"})[0]["height"] == 5
    with pytest.raises(UsageError, match="invalid value 'x' for PET_TALLNESS"):
        line.read([], {"PET_TALLNESS": "x"})
