"""The command line of ``ft-run rehearse``."""

from collections.abc import Mapping, Sequence

from ...errors import UsageError
from ..flags.flag import flags_of
from ..flags.headings import RENDEZVOUS
from ..options import RendezvousOptions
from ..rehearse_options import RehearseOptions
from .command_line import CommandLine, HelpText
from .foreign_flags import ours
from .launch_flags import launch_command

_BEFORE = """\
Usage: ft-run rehearse [OPTIONS] [OPTIONS OF ft-run] SCRIPT [ARGS]...

Show that recovery is exact for your script. Its first steps run undisturbed and
once more, then with a killed worker, as a stopped and as a killed job that is
started again, and with another number of workers. After each step the state
of all Checkpointers is compared. Checkpoints go to temporary directories.

Example:
  ft-run rehearse --nproc-per-node 2 train.py --lr 3e-4
"""
_AFTER = """\
Exit codes:
  0      every row has the same state
  1      something differs
  2      usage error, or the script uses no Checkpointer
  3      the script fails undisturbed
  128+n  stopped by signal n
"""
_MOST_NODES = 2


def rehearse_command() -> CommandLine:
    """Return the flags of ``ft-run rehearse``: its own, and those of a job."""
    own, job = flags_of(RehearseOptions), launch_command()
    flags = [flag for flag in job.flags if flag.key not in ("help", "help_all", "version")]
    common = [*(flag.key for flag in own), "nproc_per_node", "help_all"]
    text = HelpText(_BEFORE, _AFTER, common, _AFTER)
    return CommandLine("ft-run rehearse", [*own, *flags], text, ours)


def rehearse_options(argv: Sequence[str], environ: Mapping[str, str]) -> RehearseOptions:
    """Parse the arguments after ``rehearse``.

    Raises:
        UsageError: If they are invalid, or name other nodes.
    """
    line = rehearse_command()
    given, script = line.read(argv, environ)
    own = {flag.spelling for flag in flags_of(RehearseOptions)}
    words = [word for word in line.split(argv)[0] if word.partition("=")[0] not in own]
    of_nodes = {f.spelling for f in flags_of(RendezvousOptions) if f.group == RENDEZVOUS.name}
    for word in words:
        name = word.partition("=")[0]
        if name in of_nodes and name != "--standalone":
            raise UsageError(
                f"{name} has no effect, because a rehearsal runs on this machine only; omit it, or"
                " set --nodes 2."
            )
    if given["nodes"] and given["nodes"] > _MOST_NODES:
        raise UsageError(f"invalid value {given['nodes']} for --nodes: expected 1 or 2.")
    return given.fill(
        RehearseOptions,
        job=tuple(word for word in words if word != "--standalone"),
        workers=given["nproc_per_node"],
        script=script,
    )
