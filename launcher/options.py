"""The options of one ``ft-run`` invocation, checked and typed.

``cli`` builds a ``LaunchOptions``; the agent reads it; nothing else parses text.
"""

import enum
import signal
from collections.abc import Mapping, Sequence

from .. import defaults
from ..rendezvous.protocol.check_messages import CheckSpec
from ..rendezvous.protocol.endpoint import Endpoint
from ..rendezvous.protocol.messages import HangSpec, JobSpec, PolicySpec
from ..rendezvous.protocol.timeouts import NO_TIMEOUTS_GIVEN, Timeouts
from ..rendezvous.trust.source import TrustOptions
from ..values import dataclass, field


class ScriptMode(enum.Enum):
    """How the training script is started."""

    SCRIPT = "script"
    """``<python> -u script.py …``"""
    MODULE = "module"
    """``<python> -u -m module …``"""
    COMMAND = "command"
    """``--no-python``: the script itself is executed."""
    RUN_PATH = "run-path"
    """``--run-path``: ``runpy.run_path`` in a fresh interpreter."""


class Streams(enum.IntFlag):
    """Which standard streams of a worker: the digits of ``--redirects`` and ``--tee``."""

    NONE = 0
    OUT = 1
    ERR = 2
    BOTH = 3


@dataclass(frozen=True, slots=True)
class StreamSelection:
    """The value of ``--redirects`` or ``--tee``: one for all local ranks, or one for some.

    ``default`` holds for every local rank that ``by_local_rank`` does not name.
    """

    default: Streams = Streams.NONE
    by_local_rank: Mapping[int, Streams] = field(default_factory=dict)

    def of(self, local_rank: int) -> Streams:
        """Return the streams selected for ``local_rank``."""
        return self.by_local_rank.get(local_rank, self.default)


@dataclass(frozen=True, slots=True)
class LogOptions:
    """Where the workers' output goes."""

    log_dir: str | None = None
    redirects: StreamSelection = StreamSelection()
    tee: StreamSelection = StreamSelection()
    console_local_ranks: frozenset[int] | None = None
    """``--local-ranks-filter``; None shows all."""
    stdout_filters: tuple[str, ...] = ()
    stderr_filters: tuple[str, ...] = ()
    prefix_template: str = ""
    """What stands before each console line of a tee'd stream; empty: ``[<role><local rank>]:``."""


@dataclass(frozen=True, slots=True)
class RendezvousOptions:
    """How this node finds the others. All times in seconds."""

    job_id: str
    min_nodes: int = 1
    max_nodes: int = 1
    node_unit: int = defaults.NODE_UNIT
    max_restarts: int = defaults.MAX_RESTARTS
    endpoint: Endpoint | None = None
    """None: standalone. One node, no socket is opened, the master lives in the agent."""
    endpoints: tuple[Endpoint, ...] = ()
    """All hosts that may lead, where there are several; ``endpoint`` is the first."""
    hosts_master: bool | None = None
    """True or False where the user decided (``is_host``, ``--node-rank`` with
    ``--master-addr``); None: the node that the endpoint names hosts it."""
    node_rank: int | None = None
    local_addr: str | None = None
    master_addr: str | None = None
    """The workers' ``MASTER_ADDR``, where the user gave it to a job of one node."""
    worker_ports: Sequence[int] | None = None
    """Where ``MASTER_PORT`` is taken from; None: any free port."""
    worker_ports_flag: str = "--worker-port"
    """The flag that gave the ports."""
    timeouts: Timeouts = NO_TIMEOUTS_GIVEN
    rescale_delay_s: float | None = None
    """Infinity: never, late-comers enter at the next restart; None: not given, the master's value
    applies."""
    trust: TrustOptions | None = None
    """What closes the wire; None: plain text."""

    @property
    def where(self) -> str:
        """Where the nodes meet, for people."""
        return ", ".join(map(str, self.endpoints or (self.endpoint,)))


@dataclass(frozen=True, slots=True)
class LadderOptions:
    """How the nodes of a job are checked, and where the report is written."""

    spec: CheckSpec
    report: str | None = None
    """File for the report, on the node that the master gives it to."""
    json: bool = False
    """With ``only``: the report is printed as JSON instead of a table."""
    log_dir: str | None = None
    """With ``only``: the folder whose disk must have room; nothing is created there."""


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """Everything that one ``ft-run script.py`` was asked to do."""

    script: str
    rendezvous: RendezvousOptions
    script_args: tuple[str, ...] = ()
    mode: ScriptMode = ScriptMode.SCRIPT
    nproc_per_node: str = defaults.NPROC_PER_NODE
    accelerator: str = "auto"
    role: str = defaults.ROLE
    logs: LogOptions = LogOptions()
    signals: tuple[signal.Signals, ...] = (
        signal.SIGTERM,
        signal.SIGINT,
        signal.SIGHUP,
        signal.SIGQUIT,
    )
    shutdown_timeout_s: float = defaults.SHUTDOWN_TIMEOUT_S
    snapshot_replicas: int = 0
    """How many other nodes keep this node's shares of snapshots."""
    preemption_notice: str | None = None
    """What says that this machine will be gone: a cloud, ``auto``, ``file:PATH``; None: SIGTERM."""
    policy: PolicySpec | None = None
    """How failures are answered; None: all defaults."""
    propagate_exit_code: bool = False
    """A failed job ends with the exit status of the root cause's worker."""
    virtual_local_rank: bool = False
    separate_store: bool = False
    """A separate process hosts the store of each round, instead of rank 0."""
    numa_binding: str | None = None
    preload: tuple[str, ...] = ()
    """Modules that the fork server imports once; workers are forked from it."""
    watch_workers: bool = False
    """Workers have the hook of ``training``; so they do with ``hang``."""
    capture_errors: bool = True
    """Python workers write the exception that ends them to their error files."""
    hang: HangSpec | None = None
    """When workers are suspected to hang; None: never."""
    save_at_breakpoint: bool = True
    """The newest snapshot becomes a checkpoint when the job fails or this node leaves."""
    event_log_handler: str = "null"
    checks: LadderOptions | None = None
    """None: nodes are not checked."""
    remarks: tuple[str, ...] = ()
    """Remarks to print once, before the job starts: ignored keys, a missing id."""
    name: str = ""
    """What the report calls the script; empty: as it was given."""

    @property
    def only_checks(self) -> bool:
        """Whether the job ends after the checks: no worker trains."""
        return self.checks is not None and self.checks.spec.only

    def job_spec(self) -> JobSpec:
        """Return the options that must be the same on all nodes of the job."""
        return JobSpec(
            job_id=self.rendezvous.job_id,
            min_nodes=self.rendezvous.min_nodes,
            max_nodes=self.rendezvous.max_nodes,
            node_unit=self.rendezvous.node_unit,
            max_restarts=self.rendezvous.max_restarts,
            policy=self.policy,
            checks=self.checks.spec if self.checks is not None else None,
            separate_store=self.separate_store,
            rescale_delay_s=self.rendezvous.rescale_delay_s,
            hang=self.hang,
            succession=self.rendezvous.timeouts.succession(self.rendezvous.endpoints),
        )


@dataclass(frozen=True, slots=True)
class NodeCommand:
    """What ``ft-run hosts`` starts on one host."""

    host: str
    """As ssh takes it; empty: this host, without ssh."""
    argv: tuple[str, ...]
    """The arguments of ft-run."""


@dataclass(frozen=True, slots=True)
class HostsOptions:
    """Everything that one ``ft-run hosts`` was asked to do."""

    nodes: tuple[NodeCommand, ...]
    least: int
    """The job cannot go on with fewer nodes."""
    ssh: tuple[str, ...]
    environ: Mapping[str, str]
    folder: str
    program: str
    """The path of ft-run on the hosts."""


@dataclass(frozen=True, slots=True)
class MasterOptions:
    """Everything that one ``ft-run master`` was asked to do. All times in seconds."""

    endpoint: Endpoint
    """Where to listen; ``::`` is all addresses."""
    endpoints: tuple[Endpoint, ...] = ()
    """All hosts that may lead, this one among them; empty where this is the only master."""
    timeouts: Timeouts = NO_TIMEOUTS_GIVEN
    rescale_delay_s: float = defaults.RESCALE_DELAY_S
    """Used if the job's nodes were given none; infinity: never."""
    remarks: tuple[str, ...] = ()
    trust: TrustOptions | None = None
    """What closes the wire; None: plain text."""


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """Everything that one ``ft-run check`` was asked to do."""

    rendezvous: RendezvousOptions | None = None
    """How nodes that are checked together find each other; None: this node is checked alone."""
    remarks: tuple[str, ...] = ()
    nproc_per_node: str = defaults.NPROC_PER_NODE
    accelerator: str = "auto"
    virtual_local_rank: bool = False
    level: str = defaults.CHECK_LEVEL
    timeout_s: float = 0.0
    """0: the default, which is longer with GPUs."""
    """For all phases together."""
    floors: Mapping[str, float] = field(default_factory=dict)
    """The floor of each metric, by name; the units are in the names."""
    straggler_threshold: float = defaults.STRAGGLER_THRESHOLD
    compute_threshold: float = 0.0
    """0: as ``straggler_threshold``."""
    exclude_straggler: bool = False
    """A slow node counts as unhealthy."""
    is_strict: bool = False
    """A warning changes the exit status."""
    json: bool = False
    report: str | None = None
    """The file for the report."""
    log_dir: str | None = None
    preload: tuple[str, ...] = ()
    """Modules that the fork server imports once; check workers are forked from it."""


@dataclass(frozen=True, slots=True)
class CompletionOptions:
    """Everything that one ``ft-run --print-completion`` was asked to do."""

    shell: str
    """``bash``, ``zsh`` or ``fish``."""


@dataclass(frozen=True, slots=True)
class PolicyOptions:
    """Everything that one ``ft-run policy`` was asked to do."""

    failure: str
    """The failure, written as matches, such as ``exit:137 oom``."""
    policy: PolicySpec
    seconds_after_start: float | None = None
    is_repeated: bool = False
    """The round before ended with the same failure."""
    json: bool = False


@dataclass(frozen=True, slots=True)
class StatusOptions:
    """Everything that one ``ft-run status`` was asked to do."""

    endpoint: Endpoint
    json: bool = False
    timeout_s: float = 5.0
    """How long to wait for the master's answer."""
    trust: TrustOptions | None = None
    """What closes the wire; None: plain text."""


@dataclass(frozen=True, slots=True)
class StacksOptions:
    """Everything that one ``ft-run stacks`` was asked to do."""

    endpoint: Endpoint
    ranks: tuple[int, ...] = ()
    """Those to show; none: all."""
    json: bool = False
    timeout_s: float = 10.0
    """How long to wait for the master's answer."""
    trust: TrustOptions | None = None
    """What closes the wire; None: plain text."""


@dataclass(frozen=True, slots=True)
class TokenOptions:
    """What ``ft-run token`` was asked to do."""

    file: str | None = None
    """The new file for the token; None: it is printed."""


Options = (
    LaunchOptions
    | HostsOptions
    | MasterOptions
    | StatusOptions
    | StacksOptions
    | CheckOptions
    | PolicyOptions
    | TokenOptions
    | CompletionOptions
)
"""Of any command."""
