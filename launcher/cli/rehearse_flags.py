"""The command line of ``ft-run rehearse``, and its options."""

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

from ..flags.flag import Heading, flags_of
from ..flags.headings import RENDEZVOUS
from ..flags.values import either, one_of, whole
from .command_line import CommandLine, HelpText
from .foreign_flags import ours
from .launch_flags import launch_command

_BEFORE: Final = """\
Usage: ft-run rehearse [OPTIONS] [OPTIONS OF ft-run] SCRIPT [ARGS]...

Show that recovery is exact for your script. Its first steps run undisturbed and
once more, then with killed workers, as a stopped and as a killed job that is
started again, and with another number of workers. The state of all
Checkpointers is compared after each step. Example:

  ft-run rehearse --nproc-per-node 2 train.py --lr 3e-4
"""
_AFTER: Final = """\
Exit codes: 0 all rows have the same state; 1 something differs; 2 usage error,
or the script uses no Checkpointer; 3 it fails undisturbed; 128+n signal n.
"""
_OPTIONS: Final = Heading("Options")
ROWS: Final = ("worker", "stop", "kill", "node", "workers")
"""Faults to rehearse, as named in ``--only``."""


class RehearseOptions(Struct, frozen=True):
    """The options of ``ft-run rehearse``."""

    steps: int = _OPTIONS.option(
        30, "--steps N", "Steps of a run, over all Checkpointers (default: 30).", whole(6)
    )
    only: tuple[str, ...] = _OPTIONS.option(
        (),
        "--only ROW",
        f"{either(ROWS)}; repeatable (default: all).",
        one_of(*ROWS),
        multiple=True,
    )
    nodes: str = _OPTIONS.option(
        "1", "--nodes 1|2", "Number of agents on this machine (default: 1).", one_of("1", "2")
    )
    ignore: tuple[str, ...] = _OPTIONS.option(
        (), "--ignore NAME", "Variable that may differ after a restart; repeatable.", multiple=True
    )
    job: tuple[str, ...] = ()
    """Options of the job, as arguments."""
    script: tuple[str, ...] = ()


def rehearse_command() -> CommandLine:
    """Return the flags of ``ft-run rehearse``: its own, and the flags of a job on one machine."""
    own, job = flags_of(RehearseOptions), launch_command().flags
    left_out = {"help", "help_all", "version", *(f.key for f in job if f.group == RENDEZVOUS.name)}
    flags = [*own, *(f for f in job if f.key not in left_out - {"standalone"})]
    common = [*(flag.key for flag in own), "nproc_per_node", "help_all"]
    return CommandLine("ft-run rehearse", flags, HelpText(_BEFORE, _AFTER, common, _AFTER), ours)


def rehearse_options(argv: Sequence[str], environ: Mapping[str, str]) -> RehearseOptions:
    """Parse the arguments after ``rehearse``."""
    line = rehearse_command()
    given, script = line.read(argv, environ)
    own = {"standalone", *(flag.key for flag in flags_of(RehearseOptions))}
    of_job = [f for f in line.flags if f.key not in own and given.origin(f.key) == f.spelling]
    return given.fill(RehearseOptions, job=tuple(given.words(of_job)), script=script)
