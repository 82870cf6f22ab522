"""What commands leave behind: answers that have no reader or no room, and folders."""

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import pytest
from ft_run import exit_codes

if TYPE_CHECKING:
    from ft_run.tests.e2e.conftest import Launcher

FT_RUN = str(Path(sys.executable).with_name("ft-run"))

COMMANDS = pytest.mark.parametrize(
    "arguments",
    [("--version",), ("policy", "--explain", "oom", "--json")],
    ids=" ".join,
)


def run(ft: "Launcher", *arguments: str, stdout: BinaryIO | int) -> tuple[int, str]:
    """Run ``ft-run`` with this standard output; return its status and its standard error."""
    done = subprocess.run(
        [FT_RUN, *arguments],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        env=ft.environment({"PYTHONUNBUFFERED": ""}),
        check=False,
        timeout=120,
    )
    return done.returncode, done.stderr


@COMMANDS
def test_a_reader_that_is_gone_has_seen_enough(ft: "Launcher", arguments: tuple[str, ...]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        assert run(ft, *arguments, stdout=writer) == (exit_codes.SUCCESS, "")
    finally:
        os.close(writer)


@COMMANDS
def test_a_full_disk_is_said_in_one_sentence(ft: "Launcher", arguments: tuple[str, ...]) -> None:
    with Path("/dev/full").open("wb") as full:
        assert run(ft, *arguments, stdout=full) == (
            exit_codes.USAGE,
            (
                "ft-run: error: cannot write to standard output: No space left on device; "
                "expected a file on a disk with free space, a pipe or a terminal.\n"
            ),
        )


def test_a_result_of_checks_that_cannot_be_written_is_an_error(ft: "Launcher") -> None:
    with Path("/dev/full").open("wb") as full:
        status, said = run(ft, "check", "--json", stdout=full)
    assert status == exit_codes.USAGE
    assert said.endswith(
        "ft-run: error: cannot write to standard output: No space left on device; "
        "expected a file on a disk with free space, a pipe or a terminal.\n"
    )


def test_a_failed_job_leaves_no_empty_folders(ft: "Launcher") -> None:
    command = ft.run("--standalone", ft.script("raise SystemExit(7)"))
    assert command.process.returncode == exit_codes.WORKERS_FAILED
    assert list(ft.temporary.iterdir()) == []


def test_an_error_that_cannot_be_written_keeps_its_status(ft: "Launcher") -> None:
    for redirection in ("2>/dev/full", "2>&-"):
        command = ft.run(
            "-c",
            f'"$0" status 127.0.0.1:1 {redirection}',
            FT_RUN,
            program=("sh",),
        )
        assert command.process.returncode == exit_codes.RENDEZVOUS_FAILED
        assert command.stdout == command.stderr == ""
