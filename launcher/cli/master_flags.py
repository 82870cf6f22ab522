"""The options of ``ft-run master``, and of its clients ``ft-run status`` and ``stacks``."""

from msgspec import Struct

from ... import defaults
from ...rendezvous.protocol.endpoint import Endpoint
from ...rendezvous.protocol.timeouts import CONF_KEYS, NO_TIMEOUTS_GIVEN, Timeouts
from ...rendezvous.trust.source import TrustOptions
from ..flags import stream_values, values
from ..flags.flag import Heading, flags_of
from .command_line import CommandLine, HelpText
from .security_flags import security_flags

_OPTIONS = Heading("Options")


class MasterOptions(Struct, frozen=True):
    """The options of ``ft-run master``. All times are in seconds."""

    endpoint: Endpoint = _OPTIONS.option(
        Endpoint("::", defaults.ENDPOINT_PORT),
        "--bind, --rdzv-endpoint [HOST]:PORT",
        f"Address to listen at (default: :{defaults.ENDPOINT_PORT}, on all addresses). With three"
        " or five HOST:PORT,... a master runs on each of these hosts, and one of them leads.",
        values.bind_address,
    )
    """``::`` means all addresses."""
    endpoints: tuple[Endpoint, ...] = ()
    """All hosts that may lead, including this one; empty if this is the only master."""
    timeouts: Timeouts = _OPTIONS.option(
        NO_TIMEOUTS_GIVEN,
        "--rdzv-conf K=V,...",
        f"Durations: {CONF_KEYS}; with several master hosts also lease and fence.",
    )
    rescale_delay_s: float = defaults.RESCALE_DELAY_S
    """Used if the job's nodes do not set it; infinity means never."""
    metrics: Endpoint | None = _OPTIONS.option(
        None,
        "--metrics [ADDR:]PORT",
        "Serve metrics of the job for Prometheus at http://ADDR:PORT/metrics (default address:"
        " 127.0.0.1). At other addresses, a job with a token serves HTTPS.",
        values.metrics_address,
    )
    events: str | None = _OPTIONS.option(
        None,
        "--events FILE",
        "Write each event of the master as a line of JSON to a file, which is rotated at 64 MB, or"
        " to standard output (-).",
        values.events_target,
    )
    warnings: tuple[str, ...] = ()
    trust: TrustOptions | None = None
    """The security of connections; None for plain text."""


class JobOptions(Struct, frozen=True):
    """The job that a command is about, and its master."""

    endpoint: Endpoint | None = _OPTIONS.option(
        None,
        "--rdzv-endpoint HOST[:PORT],...",
        "Address of the master, or of all master hosts, instead of the argument.",
        values.listed_endpoints,
    )
    """If None and without a job, the jobs of this host."""
    job: str = _OPTIONS.option(
        "",
        "--job JOB",
        "ID of a job on this host, or process ID of its ft-run, instead of the argument.",
    )
    may_be_job: str = ""
    """The argument, if it may also be the ID of a job or a process: such a job takes precedence
    over the endpoint."""
    json: bool = _OPTIONS.option(False, "--json", "Print JSON instead of text.")
    timeout_s: float = _OPTIONS.option(
        10.0,
        "--timeout DURATION",
        "How long to wait for the master's answer (default: 10s).",
        values.seconds_above_zero,
    )
    trust: TrustOptions | None = None
    """The security of connections; None for plain text."""


class StatusOptions(JobOptions, frozen=True):
    """The options of ``ft-run status``."""

    watch: bool = _OPTIONS.option(
        False, "--watch", "Show the job live, until it ends or q is pressed. Needs a terminal."
    )


class StacksOptions(JobOptions, frozen=True):
    """The options of ``ft-run stacks``."""

    ranks: tuple[int, ...] = _OPTIONS.option(
        (), "--rank R,...", "Ranks to show, e.g. 0,17 (default: all).", stream_values.ranks
    )


def master_command() -> CommandLine:
    """Return the flags of ``ft-run master``."""
    before = """\
Usage: ft-run master [OPTIONS]

Run the rendezvous master of a job in a process of its own, apart from the
nodes that train. Nodes connect with --rdzv-endpoint HOST:PORT. It exits when
the job ends.

Example:
  ft-run master --bind :29400 --rdzv-conf join_timeout=900
"""
    return _command("master", MasterOptions, before, "PET_BIND=:29400")


def stacks_command() -> CommandLine:
    """Return the flags of ``ft-run stacks``."""
    before = """\
Usage: ft-run stacks [OPTIONS] [JOB | HOST[:PORT],...]

Show the current stack trace of every rank of a job: of the only job of this
host, of a job of this host by its ID or by the process ID of its ft-run, or of
any job by the address of its master. Ranks with the same stack trace are
grouped; the largest group is last. Needs a job that was started with
--watch-workers or --hang-timeout; for other workers only the state of the
process is shown. Workers keep running; each one handles one signal.

Examples:
  ft-run stacks
  ft-run stacks node0:29400 --rank 0,17
"""
    return _command("stacks", StacksOptions, before, "PET_RDZV_ENDPOINT=node0:29400")


def status_command() -> CommandLine:
    """Return the flags of ``ft-run status``."""
    before = """\
Usage: ft-run status [OPTIONS] [JOB | HOST[:PORT],...]

Show the state of a job: its round, nodes, restarts, steps and checkpoints.
Without an argument: of the only job of this user on this host, or a list of
them. JOB is the ID of a job on this host, or the process ID of its ft-run;
HOST[:PORT] is the address of the master of any job. Of several master hosts,
name one or all: the leader answers.

Examples:
  ft-run status
  ft-run status run7 --watch
  ft-run status node0:29400 --json
"""
    return _command("status", StatusOptions, before, "PET_RDZV_ENDPOINT=node0:29400")


def _command(name: str, kind: type, before: str, variable: str) -> CommandLine:
    own = flags_of(kind)
    after = f"Every option can be set by PET_<NAME>, e.g. {variable}.\n"
    common = [flag.key for flag in own]
    after_common = (
        f"--token-file and the other security options: ft-run {name} --help-all.\n{after}"
    )
    text = HelpText(before, after, (*common, "help_all"), after_common)
    return CommandLine(f"ft-run {name}", [*own, *security_flags()], text)
