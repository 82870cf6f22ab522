"""The manual page and the generated parts of the reference are up to date."""

import re
from pathlib import Path

import pytest
from ft_run.docs import generate
from ft_run.launcher.commands.completion import command_lines

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.parametrize("name", list(generate.files()))
def test_it_is_up_to_date(name: str) -> None:
    made = generate.files()[name]
    assert (DOCS / name).read_text() == made, "expected python docs/generate.py"


def test_the_generated_parts_are_not_empty() -> None:
    made = generate.files()
    assert len(made) == 8
    assert "| 41 | `REFUSED` |" in made["reference/exit-codes.md"]
    assert "| `node_timeout` | seconds, above 0 | 5 s |" in made["reference/rdzv-conf.md"]
    assert "| `PET_NNODES` | `--nnodes N\\|MIN:MAX` |" in made["reference/environment.md"]
    assert (
        "| `workers.outlived_kill` | `KillOutlived` | Processes are still alive after SIGKILL. "
        "| `pids` (tuple[int, ...]); " in made["reference/events.md"]
    )


def test_both_have_every_flag_and_every_command() -> None:
    manual = (DOCS / "ft-run.1").read_text().replace("\\-", "-")
    page = (DOCS / "reference" / "flags.md").read_text()
    for name, line in command_lines().items():
        assert f".SH {line.name.upper()}\n" in manual or not name
        assert f"## {line.name}\n" in page
        for flag in line.flags:
            assert re.search(rf"^\.B .*{flag.spelling}(,| |$)", manual, re.MULTILINE)
            assert re.search(rf"^\| `.*{flag.spelling}[, ]?.*` \|", page, re.MULTILINE)


def test_no_line_of_text_is_taken_for_a_request_of_the_formatter() -> None:
    requests = {line.split()[0] for line in generate.files()["ft-run.1"].splitlines()
                if line.startswith((".", "'"))}  # fmt: skip
    assert generate.roff("a-b\n.TH\n'x \\n") == "a\\-b\n\\&.TH\n\\&'x \\en"
    assert requests == {'.\\"', ".TH", ".SH", ".SS", ".TP", ".B", ".br"}
