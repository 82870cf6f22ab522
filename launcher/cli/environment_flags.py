"""``--auto-config`` and ``--dry-run``: what the environment adds to the command line."""

import socket
from collections.abc import Mapping, Sequence
from shlex import join

from ..environments.auto_config import auto_config, describe, suggestion
from ..flags.flag import Flag
from ..flags.headings import RENDEZVOUS
from .command_line import CommandLine, Given, answer, say

_SAYS_HOW_MANY = ("nnodes", "standalone", "rdzv_endpoint", "master_addr")


def environment_flags() -> list[Flag]:
    """Return the flags."""
    return [
        RENDEZVOUS(
            "--auto-config",
            "Read nodes, rank, endpoint, job ID and workers from Slurm, MPI, Kubernetes, SkyPilot,"
            " SageMaker or AWS Batch. Options override what is found.",
            ours=True,
        ),
        RENDEZVOUS(
            "--dry-run",
            "Print the command with what --auto-config and PET_* variables add, and exit.",
            ours=True,
        ),
    ]


def add_environment(given: Given, environ: Mapping[str, str], warnings: list[str]) -> None:
    """Set the flags that the environment sets, if ``--auto-config`` was given."""
    if given["auto_config"]:
        texts = {key: words[-1] for key, words in given.texts.items() if given[key] is not False}
        found = auto_config(environ, texts, socket.getfqdn)
        warnings.append(describe(found))
        for key, one in found.items():
            given.put(key, [one.text], one.source)
        return
    if not any(given[key] for key in _SAYS_HOW_MANY) and (hint := suggestion(environ)):
        warnings.append(hint)


def answer_dry_run(
    line: CommandLine, given: Given, rest: Sequence[str], warnings: Sequence[str]
) -> None:
    """Print the resulting command and exit with 0, if ``--dry-run`` was given."""
    if given["dry_run"]:
        say(warnings)
        answer(resulting_command(line, given, rest))


def resulting_command(line: CommandLine, given: Given, rest: Sequence[str]) -> str:
    """Return the command with all values as flags, without ``PET_*``, quoted for a shell."""
    left_out = ("auto_config", "dry_run")
    kept = [flag for flag in line.flags if flag.key not in left_out]
    return join(["ft-run", *resulting_arguments(kept, given, rest)])


def resulting_arguments(
    flags: Sequence[Flag], given: Given, rest: Sequence[str]
) -> tuple[str, ...]:
    """Return arguments: those of ``flags`` that were given, the script and its arguments."""
    needs_dashes = bool(rest) and (rest[0].startswith("-") or rest[1:2] == ("--",))
    return (*given.words(flags), *(["--"] if needs_dashes else []), *rest)
