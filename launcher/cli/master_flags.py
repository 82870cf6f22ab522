"""The options of ``ft-run master``, and of ``ft-run status`` and ``stacks``, which ask it."""

from ... import defaults
from ...rendezvous.protocol.endpoint import Endpoint
from ...rendezvous.protocol.timeouts import NO_TIMEOUTS_GIVEN, Timeouts
from ...rendezvous.trust.source import TrustOptions
from ...values import dataclass
from ..flags import stream_values, values
from ..flags.flag import Heading, flags_of, option
from ..options import CONF_KEYS
from .command_line import CommandLine, HelpText
from .trust_flags import trust_flags

_OPTIONS = Heading("Options")
_ENDPOINT = _OPTIONS(
    "--rdzv-endpoint HOST[:PORT]",
    "The master, where it is not given as an argument;"
    f" default localhost:{defaults.ENDPOINT_PORT}.",
    values.endpoint,
)
_JSON = _OPTIONS("--json", "Print JSON instead of text.")
_LOCAL = Endpoint("localhost", defaults.ENDPOINT_PORT)


def _timeout_option(default_s: float) -> float:
    return _OPTIONS.option(
        default_s,
        "--timeout SECONDS",
        f"How long to wait for the master's answer; default {default_s:g}.",
        values.seconds_above_zero,
    )


@dataclass(frozen=True, slots=True)
class MasterOptions:
    """Everything that one ``ft-run master`` was asked to do. All times in seconds."""

    endpoint: Endpoint = _OPTIONS.option(
        Endpoint("::", defaults.ENDPOINT_PORT),
        "--bind, --rdzv-endpoint [HOST]:PORT",
        f"Where to listen; default :{defaults.ENDPOINT_PORT}, on all addresses. Three or"
        " five HOST:PORT,...: on each of these hosts runs one, and one of them leads.",
        values.bind_address,
    )
    """``::`` is all addresses."""
    endpoints: tuple[Endpoint, ...] = ()
    """All hosts that may lead, this one among them; empty where this is the only master."""
    timeouts: Timeouts = _OPTIONS.option(
        NO_TIMEOUTS_GIVEN,
        "--rdzv-conf K=V,...",
        f"Times: {CONF_KEYS}, master_timeout; lease and fence of several.",
    )
    rescale_delay_s: float = defaults.RESCALE_DELAY_S
    """Used if the job's nodes were given none; infinity: never."""
    remarks: tuple[str, ...] = ()
    trust: TrustOptions | None = None
    """What closes the wire; None: plain text."""


@dataclass(frozen=True, slots=True)
class StatusOptions:
    """Everything that one ``ft-run status`` was asked to do."""

    endpoint: Endpoint = option(_LOCAL, _ENDPOINT)
    json: bool = option(False, _JSON)
    timeout_s: float = _timeout_option(5.0)
    """How long to wait for the master's answer."""
    trust: TrustOptions | None = None
    """What closes the wire; None: plain text."""


@dataclass(frozen=True, slots=True)
class StacksOptions:
    """Everything that one ``ft-run stacks`` was asked to do."""

    endpoint: Endpoint = option(_LOCAL, _ENDPOINT)
    json: bool = option(False, _JSON)
    timeout_s: float = _timeout_option(10.0)
    """How long to wait for the master's answer."""
    ranks: tuple[int, ...] = _OPTIONS.option(
        (), "--rank R,...", "Only these ranks, such as 0,17.", stream_values.ranks
    )
    trust: TrustOptions | None = None
    """What closes the wire; None: plain text."""


def master_command() -> CommandLine:
    """Return the flags of ``ft-run master``."""
    before = """\
Usage: ft-run master [OPTIONS]

Run the master of a job by itself, away from the nodes that train. The nodes
reach it by --rdzv-endpoint HOST:PORT. It ends with the job.

Example:
  ft-run master --bind :29400 --rdzv-conf join_timeout=900
"""
    after = "Every option can be set by PET_<NAME>, such as PET_BIND=:29400.\n"
    flags = [*flags_of(MasterOptions), *trust_flags()]
    return CommandLine("ft-run master", flags, HelpText(before, after))


def stacks_command() -> CommandLine:
    """Return the flags of ``ft-run stacks``."""
    before = """\
Usage: ft-run stacks [OPTIONS] [HOST[:PORT]]

Show where every rank of a job is now, ranks at the same place together, the
largest group last. The job must have been started with --watch-workers; of
other workers only the state of the process is shown. Nothing is disturbed.

Example:
  ft-run stacks node0:29400 --rank 0,17
"""
    return _question(StacksOptions, "stacks", before)


def status_command() -> CommandLine:
    """Return the flags of ``ft-run status``."""
    before = """\
Usage: ft-run status [OPTIONS] [HOST[:PORT]]

Ask the master of a job for its state: the round, the nodes and the restarts.

Example:
  ft-run status node0:29400 --json
"""
    return _question(StatusOptions, "status", before)


def _question(kind: type, name: str, before: str) -> CommandLine:
    after = "Every option can be set by PET_<NAME>, such as PET_RDZV_ENDPOINT=node0:29400.\n"
    flags = [*flags_of(kind), *trust_flags()]
    return CommandLine(f"ft-run {name}", flags, HelpText(before, after))
