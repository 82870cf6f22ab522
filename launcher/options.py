"""The options of one ``ft-run`` invocation, checked and typed, each with the flags it follows from.

``cli`` builds a ``LaunchOptions``; the agent reads it; nothing else parses text. The help lists the
flags under each heading in the order of the fields. A field with one flag is what that was given;
``cli.parse`` says what the others follow from.
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
from ..values import dataclass, names
from .flags import values
from .flags.flag import Heading, option
from .flags.stream_values import StreamSelection, filters, local_ranks, streams

HEADINGS = ("Workers", "Rendezvous", "Trust", "Failure", "Checks", "Logs", "Script")
"""In the order of the help."""
WORKERS, RENDEZVOUS, TRUST, FAILURE, CHECKS, LOGS, SCRIPT = map(Heading, HEADINGS)
COMPATIBILITY = Heading("Compatibility with torchrun")

CONF_KEYS = (
    "join_timeout, last_call_timeout, node_grace, node_timeout, rescale_delay (seconds, or never)"
)
"""The keys of ``--rdzv-conf`` that a master knows, with their unit."""


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


@dataclass(frozen=True, slots=True)
class LogOptions:
    """Where the workers' output goes."""

    log_dir: str | None = LOGS.option(
        None,
        "--log-dir DIR",
        "Where log files go; default: a temporary folder.",
        values.string_or_none,
    )
    redirects: StreamSelection = LOGS.option(
        StreamSelection(),
        "-r, --redirects STREAMS",
        "Write streams to files instead of the console: 0 none, 1 stdout, 2 stderr,"
        " 3 both, or by local rank, such as 0:1,10:3.",
        streams,
    )
    tee: StreamSelection = LOGS.option(
        StreamSelection(),
        "-t, --tee STREAMS",
        "Write streams to files as well as to the console.",
        streams,
    )
    prefix_template: str = LOGS.option(
        "",
        "--log-line-prefix-template TEMPLATE",
        "Put this before each console line of a tee'd stream: text with ${role_name},"
        " ${rank}, ${local_rank} and ${hostname}; default [${role_name}${local_rank}]:, or"
        " TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE.",
        since="2.15",
    )
    console_local_ranks: frozenset[int] | None = LOGS.option(
        None,
        "--local-ranks-filter RANKS",
        "Show only these local ranks on the console, such as 0,1.",
        local_ranks,
    )
    stdout_filters: tuple[str, ...] = LOGS.option(
        (),
        "--duplicate-stdout-filters WORDS",
        "Copy the lines of stdout with one of these words (with commas; ,, is a comma)"
        " to a file of their own.",
        filters,
    )
    stderr_filters: tuple[str, ...] = LOGS.option(
        (), "--duplicate-stderr-filters WORDS", "The same for stderr.", filters
    )


@dataclass(frozen=True, slots=True)
class RendezvousOptions:
    """How this node finds the others. All times in seconds."""

    min_nodes: int = RENDEZVOUS.option(
        1,
        "--nnodes N|MIN:MAX",
        "Nodes of the job; default 1. With MIN:MAX the job grows and shrinks.",
        values.nnodes,
    )
    max_nodes: int = 1
    node_unit: int = RENDEZVOUS.option(
        defaults.NODE_UNIT,
        "--node-unit N",
        "Only multiples of N nodes make a world; default 1.",
        values.whole(1),
        ours=True,
    )
    max_restarts: int = FAILURE.option(
        defaults.MAX_RESTARTS,
        "--max-restarts N",
        "Restarts before the job fails, counted over all nodes; default 0.",
        values.whole(0),
    )
    endpoint: Endpoint | None = RENDEZVOUS.option(
        None,
        "--rdzv-endpoint HOST[:PORT],...",
        f"Where the master is, or will be; default port {defaults.ENDPOINT_PORT}. Three or"
        " five: the hosts that may lead; the job outlives one of three, two of five.",
        values.listed_endpoints,
    )
    """None: standalone. One node, no socket is opened, the master lives in the agent."""
    endpoints: tuple[Endpoint, ...] = ()
    """All hosts that may lead, where there are several; ``endpoint`` is the first."""
    job_id: str = option(
        defaults.JOB_ID,
        RENDEZVOUS("--rdzv-id ID", "The id of the job, the same on every node."),
        RENDEZVOUS("--standalone", "One node by itself: no endpoint, no open port."),
    )
    timeouts: Timeouts = RENDEZVOUS.option(
        NO_TIMEOUTS_GIVEN,
        "--rdzv-conf K=V,...",
        f"Times and more: {CONF_KEYS}, master_timeout, connect_timeout, is_host; with"
        " several endpoints lease, fence.",
    )
    rescale_delay_s: float | None = RENDEZVOUS.option(
        None,
        "--rescale-delay SECONDS|never",
        "How long a new node waits for more before the world grows; default"
        f" {defaults.RESCALE_DELAY_S:g}. never: it enters at the next restart.",
        values.seconds_or_never,
        ours=True,
    )
    """Infinity: never; None: not given, the master's value applies."""
    hosts_master: bool | None = COMPATIBILITY.option(
        None,
        "--rdzv-backend NAME",
        "grpc, c10d or static: all of them mean the master of ft-run.",
        values.backend,
    )
    """True or False where the user decided (``is_host``, ``--node-rank`` with
    ``--master-addr``); None: the node that the endpoint names hosts it."""
    node_rank: int | None = RENDEZVOUS.option(
        None,
        "--node-rank N",
        "Pin the rank of this node. With --master-addr, node 0 hosts the master.",
        values.whole(0),
    )
    master_addr: str | None = option(
        None,
        RENDEZVOUS(
            "--master-addr HOST",
            f"Instead of --rdzv-endpoint: the host of node 0; default {defaults.MASTER_ADDR}.",
            values.host,
        ),
        RENDEZVOUS(
            "--master-port PORT",
            f"The port with --master-addr; default {defaults.MASTER_PORT}. On one node"
            " it is MASTER_PORT.",
            values.whole(0, values.MAX_PORT),
        ),
    )
    """The workers' ``MASTER_ADDR``, where the user gave it to a job of one node."""
    local_addr: str | None = RENDEZVOUS.option(
        None,
        "--local-addr ADDR",
        "The address other nodes reach this one by; default: the one that routes to the master.",
        values.host,
    )
    worker_ports: Sequence[int] | None = RENDEZVOUS.option(
        None,
        "--worker-port PORT|LO-HI",
        "The port, or the range to take it from, for MASTER_PORT; default: any.",
        values.ports,
        ours=True,
    )
    worker_ports_flag: str = "--worker-port"
    """The flag that gave the ports."""
    trust: TrustOptions | None = None
    """What closes the wire; None: plain text."""

    @property
    def where(self) -> str:
        """Where the nodes meet, for people."""
        return ", ".join(map(str, self.endpoints or (self.endpoint,)))


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """How the nodes of a job are checked, and where the report is written."""

    spec: CheckSpec
    report: str | None = CHECKS.option(
        None,
        "--check-report FILE",
        "Where one node of the job writes what was found, as JSON.",
        values.string_or_none,
        ours=True,
    )
    """On the node that the master gives it to."""
    json: bool = False
    """With ``only``: the report is printed as JSON instead of a table."""
    log_dir: str | None = None
    """With ``only``: the folder whose disk must have room; nothing is created there."""


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """Everything that one ``ft-run script.py`` or ``ft-run check`` was asked to do."""

    script: str
    rendezvous: RendezvousOptions
    script_args: tuple[str, ...] = ()
    mode: ScriptMode = option(
        ScriptMode.SCRIPT,
        SCRIPT("-m, --module", "SCRIPT is a module, run as by python -m."),
        SCRIPT("--no-python", "SCRIPT is a program to run as it is."),
        SCRIPT("--run-path", "Run SCRIPT by runpy.run_path; beats --no-python."),
    )
    nproc_per_node: str = WORKERS.option(
        defaults.NPROC_PER_NODE,
        "--nproc-per-node N|auto|cpu|gpu|xpu",
        "Workers on this node; default 1. auto: one per accelerator, else the CPU limit.",
        values.nproc_per_node,
    )
    accelerator: str = WORKERS.option(
        "auto",
        "--accelerator TYPE",
        "The kind of device that auto and gpu count: auto (default), nvidia.com/gpu,"
        " amd.com/gpu, ascend-npu or cpu.",
        values.accelerator,
        ours=True,
    )
    role: str = WORKERS.option(
        defaults.ROLE, "--role NAME", "The role of this node's workers; default: default."
    )
    virtual_local_rank: bool = WORKERS.option(
        False, "--virtual-local-rank", "Show each worker LOCAL_RANK=0 and its own device only."
    )
    numa_binding: str | None = WORKERS.option(
        None,
        "--numa-binding MODE",
        "Bind workers to the CPUs near their GPU: node, socket, exclusive, core-complex.",
        values.one_of("node", "socket", "exclusive", "core-complex"),
    )
    watch_workers: bool = WORKERS.option(
        False,
        "--watch-workers",
        "Have Python workers write their stacks when ft-run stacks asks, and count their steps.",
        ours=True,
    )
    """Workers have the hook of ``training``; so they do with ``hang``."""
    capture_errors: bool = WORKERS.option(
        True,
        "--no-capture-errors",
        "Do not write the exception that ends a Python worker to its error file, from"
        " which its type, message and traceback are reported.",
        ours=True,
    )
    separate_store: bool = RENDEZVOUS.option(
        False,
        "--store worker|separate",
        "What hosts the store of a round: rank 0 (worker, the default), or a process beside it"
        " that outlives it (separate).",
        values.is_second("worker", "separate"),
        ours=True,
    )
    policy: PolicySpec | None = None
    """How failures are answered (``cli.policy_flags``); None: all defaults."""
    hang: HangSpec | None = option(
        None,
        FAILURE(
            "--hang-timeout SECONDS|auto|never",
            "Look for a hang when a worker has done no step for so long, and restart if there"
            " is one; default never. auto: ten times the longest step, at least 60.",
            values.hang_timeout,
            ours=True,
        ),
        FAILURE(
            "--hang-timeout-start SECONDS",
            "The same until the first step, and while a checkpoint is saved or loaded or a"
            f" model compiled; default {defaults.HANG_TIMEOUT_START_S:g}.",
            values.seconds_above_zero,
            ours=True,
        ),
    )
    """When workers are suspected to hang; None: never."""
    propagate_exit_code: bool = FAILURE.option(
        False,
        "--propagate-exit-code",
        "Where the restarts are spent, exit with the status of the root cause's worker"
        " (128+n for signal n) instead of 1.",
        ours=True,
    )
    shutdown_timeout_s: float = FAILURE.option(
        defaults.SHUTDOWN_TIMEOUT_S,
        "--shutdown-timeout SECONDS",
        "From SIGTERM to SIGKILL when workers are stopped; default"
        f" {defaults.SHUTDOWN_TIMEOUT_S:g}, or TORCH_ELASTIC_SHUTDOWN_TIMEOUT.",
        values.seconds,
    )
    save_at_breakpoint: bool = option(
        True,
        FAILURE(
            "--save-at-breakpoint",
            "Where the script uses ft_run.training.Checkpointer: write the newest snapshot to"
            " storage before the job fails or this node leaves, within --shutdown-timeout"
            " (default).",
            ours=True,
        ),
        FAILURE(
            "--no-save-at-breakpoint",
            "Do not: only the checkpoints that the script asks for are written.",
            ours=True,
        ),
    )
    snapshot_replicas: int = FAILURE.option(
        0,
        "--snapshot-replicas R",
        "Keep sharded snapshots of a Checkpointer on R other nodes too, so that the loss"
        " of a host costs no state; default 0. It takes 2 x R a rank's state in memory.",
        values.whole(0, 16),
        ours=True,
    )
    preemption_notice: str | None = FAILURE.option(
        None,
        "--preemption-notice SOURCE",
        "Ask whether this machine will be gone: gcp, aws, azure, file:PATH, or auto for"
        " the cloud that the firmware names. All ranks then leave one state first.",
        values.notice_source,
        ours=True,
    )
    signals: tuple[signal.Signals, ...] = FAILURE.option(
        (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT),
        "--signals-to-handle NAMES",
        f"Signals that stop the job in order; default {defaults.SIGNALS_TO_HANDLE}.",
    )
    logs: LogOptions = LogOptions()
    preload: tuple[str, ...] = SCRIPT.option(
        (),
        "--preload MODULE,...",
        "Import modules once, such as torch, and fork every worker from there: starts and"
        " restarts do not wait for imports.",
        values.modules,
        ours=True,
    )
    event_log_handler: str = COMPATIBILITY.option(
        "null",
        "--event-log-handler NAME",
        "null (default) or console.",
        values.one_of("null", "console"),
    )
    checks: CheckOptions | None = None
    """None: nodes are not checked."""
    remarks: tuple[str, ...] = ()
    """Remarks to print once, before the job starts: ignored keys, a missing id."""
    name: str = ""
    """What the report calls the script; empty: as it was given."""

    @property
    def only_checks(self) -> bool:
        """Whether the job ends after the checks: no worker trains."""
        return self.checks is not None and self.checks.spec.only

    @property
    def is_check_of_one(self) -> bool:
        """Whether this node is checked by itself: there is no master."""
        return self.only_checks and self.rendezvous.endpoint is None

    def job_spec(self) -> JobSpec:
        """Return the options that must be the same on all nodes of the job: its fields."""
        same = {
            name: getattr(options, name)
            for options in (self, self.rendezvous)
            for name in names(JobSpec)
            if hasattr(options, name)
        }
        same["checks"] = self.checks.spec if self.checks is not None else None
        same["succession"] = self.rendezvous.timeouts.succession(self.rendezvous.endpoints)
        return JobSpec(**same)


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
