"""The options of one ``ft-run`` invocation, validated and typed, with their flags.

``cli`` creates a ``LaunchOptions`` for the agent; only ``cli`` parses text. The help lists the
flags under each heading in the order of the fields. A field with one flag has its value;
``cli.parse`` sets the other fields.
"""

import enum
import signal
from collections.abc import Sequence

from msgspec import Struct

from .. import defaults
from ..rendezvous.protocol.check_messages import CheckSpec
from ..rendezvous.protocol.endpoint import Endpoint
from ..rendezvous.protocol.messages import HangSpec, JobSpec, PolicySpec
from ..rendezvous.protocol.timeouts import CONF_KEYS, NO_TIMEOUTS_GIVEN, Timeouts
from ..rendezvous.trust.source import TrustOptions
from .flags import values
from .flags.flag import option
from .flags.headings import CHECKS, COMPATIBILITY, FAILURES, RENDEZVOUS, SCRIPT, WORKERS
from .log_options import LogOptions


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


class RendezvousOptions(Struct, frozen=True):
    """How this node finds the others. All times are in seconds."""

    min_nodes: int = RENDEZVOUS.option(
        1,
        "--nnodes N|MIN:MAX",
        "Number of nodes, or a range for an elastic job (default: 1).",
        values.nnodes,
    )
    max_nodes: int = 1
    node_unit: int = RENDEZVOUS.option(
        defaults.NODE_UNIT,
        "--node-unit N",
        "Run on a multiple of N nodes; the others are spares (default: 1).",
        values.whole(1),
        ours=True,
    )
    segment: str | None = RENDEZVOUS.option(
        None,
        "--segment LABEL",
        "Rack, switch or NVLink domain of this node, or none. The nodes of a unit (--node-unit)"
        " have the same segment, and a spare of the same segment replaces a lost node if there is"
        " one (default: with --node-unit, the NVLink domain of the GPUs).",
        values.segment,
        ours=True,
    )
    """Empty for none; None if not given."""
    max_restarts: int = FAILURES.option(
        defaults.MAX_RESTARTS,
        "--max-restarts N",
        "Restarts before the job fails, counted for the whole job (default: 0).",
        values.whole(0),
    )
    endpoint: Endpoint | None = RENDEZVOUS.option(
        None,
        "--rdzv-endpoint HOST[:PORT],...",
        f"Address of the rendezvous master (default port: {defaults.ENDPOINT_PORT}). List three or"
        " five hosts, and the job survives the loss of one or two of them.",
        values.listed_endpoints,
    )
    """If None (standalone), there is one node, no socket is opened, and the master is in the agent.
    """
    endpoints: tuple[Endpoint, ...] = ()
    """All hosts that may lead, if there are several; ``endpoint`` is the first."""
    job_id: str = option(
        defaults.JOB_ID,
        RENDEZVOUS("--rdzv-id ID", "Job ID, the same on every node."),
        RENDEZVOUS("--standalone", "Run on this node only, without an endpoint or an open port."),
    )
    timeouts: Timeouts = RENDEZVOUS.option(
        NO_TIMEOUTS_GIVEN,
        "--rdzv-conf K=V,...",
        f"Rendezvous settings. Durations: {CONF_KEYS}, connect_timeout; with several master"
        " hosts also lease and fence. is_host=true|false: whether this node hosts the master.",
    )
    rescale_delay_s: float | None = RENDEZVOUS.option(
        None,
        "--rescale-delay DURATION|never",
        "How long to wait for more nodes before an elastic job grows (default:"
        f" {defaults.RESCALE_DELAY_S:g}s). never: new nodes join at the next restart.",
        values.seconds_or_never,
        ours=True,
    )
    """Infinity means never. If None (not given), the master's value applies."""
    hosts_master: bool | None = COMPATIBILITY.option(
        None,
        "--rdzv-backend NAME",
        "grpc, c10d or static; all of them use the master of ft-run.",
        values.backend,
    )
    """True or False if the user decided (``is_host``, ``--node-rank`` with ``--master-addr``). If
    None, the node that the endpoint names hosts the master."""
    node_rank: int | None = RENDEZVOUS.option(
        None,
        "--node-rank N",
        "Rank of this node (default: assigned by the master). With --master-addr, node 0 hosts the"
        " master.",
        values.whole(0),
    )
    master_addr: str | None = option(
        None,
        RENDEZVOUS(
            "--master-addr HOST",
            f"Host of node 0, instead of --rdzv-endpoint (default: {defaults.MASTER_ADDR}).",
            values.host,
        ),
        RENDEZVOUS(
            "--master-port PORT",
            f"Port on --master-addr (default: {defaults.MASTER_PORT}). On a single node it is the"
            " workers' MASTER_PORT.",
            values.whole(0, values.MAX_PORT),
        ),
    )
    """The workers' ``MASTER_ADDR``, if the user set it for a job of one node."""
    local_addr: str | None = RENDEZVOUS.option(
        None,
        "--local-addr ADDR",
        "Address at which other nodes reach this one (default: that of the route to the master).",
        values.host,
    )
    worker_ports: Sequence[int] | None = RENDEZVOUS.option(
        None,
        "--worker-port PORT|LO-HI",
        "Port, or port range, for the workers' MASTER_PORT (default: any free port).",
        values.ports,
        ours=True,
    )
    worker_ports_flag: str = "--worker-port"
    trust: TrustOptions | None = None
    """The security of connections; None for plain text."""

    @property
    def where(self) -> str:
        """The endpoints, for display."""
        return ", ".join(map(str, self.endpoints or (self.endpoint,)))


class CheckOptions(Struct, frozen=True):
    """How the nodes of a job are checked, and the destination of the report."""

    spec: CheckSpec
    report: str | None = CHECKS.option(
        None,
        "--check-report FILE",
        "File to which one node of the job writes the results as JSON.",
        values.string_or_none,
        ours=True,
    )
    """On the node to which the master sends the results."""
    json: bool = False
    """With ``only``: whether the report is JSON instead of a table."""
    log_dir: str | None = None
    """With ``only``: the directory whose disk must have free space; nothing is created in it."""


class LaunchOptions(Struct, frozen=True):
    """The options of one ``ft-run script.py`` or ``ft-run check``."""

    script: str
    rendezvous: RendezvousOptions
    script_args: tuple[str, ...] = ()
    mode: ScriptMode = option(
        ScriptMode.SCRIPT,
        SCRIPT("-m, --module", "Run SCRIPT as a module, as python -m does."),
        SCRIPT("--no-python", "Run SCRIPT as a program, without Python."),
        SCRIPT("--run-path", "Run SCRIPT with runpy.run_path; overrides --no-python."),
    )
    nproc_per_node: str = WORKERS.option(
        defaults.NPROC_PER_NODE,
        "--nproc-per-node N|auto|cpu|gpu|xpu",
        "Number of workers on this node (default: 1). auto: one per accelerator; without"
        " accelerators, the CPU limit of the container.",
        values.nproc_per_node,
    )
    accelerator: str = WORKERS.option(
        "auto",
        "--accelerator TYPE",
        "Type of device that auto and gpu count: auto, nvidia.com/gpu, amd.com/gpu, ascend-npu or"
        " cpu (default: auto).",
        values.accelerator,
        ours=True,
    )
    role: str = WORKERS.option(
        defaults.ROLE, "--role NAME", "Role of this node's workers (default: default)."
    )
    virtual_local_rank: bool = WORKERS.option(
        False,
        "--virtual-local-rank",
        "Set LOCAL_RANK=0 in every worker, and make only its own device visible to it.",
    )
    numa_binding: str | None = WORKERS.option(
        None,
        "--numa-binding MODE",
        "Bind each worker to the CPUs near its GPU: node, socket, exclusive or core-complex"
        " (default: no binding).",
        values.one_of("node", "socket", "exclusive", "core-complex"),
    )
    watch_workers: bool = WORKERS.option(
        False,
        "--watch-workers",
        "Count the steps of Python workers, and let ft-run stacks show their stack traces.",
        ours=True,
    )
    """Other options imply it, see ``are_workers_watched``."""
    auto_tune: str = WORKERS.option(
        "off",
        "--auto-tune off|advise|on",
        "Measure how the job uses CPUs and waits for data. advise: recommend settings at the end,"
        " in ft-run status and ft-run report. on: try num_workers and prefetch_factor of the"
        " ElasticBatches loader, and keep values that are measurably faster (default: off).",
        values.one_of("off", "advise", "on"),
        ours=True,
    )
    capture_errors: bool = WORKERS.option(
        True,
        "--no-capture-errors",
        "Do not record the exception that ends a Python worker. By default the failure report has"
        " its type, message and traceback.",
        ours=True,
    )
    separate_store: bool = RENDEZVOUS.option(
        False,
        "--store worker|separate",
        "Process that hosts the TCPStore of each round: rank 0 (worker), or one that outlives rank"
        " 0 (separate) (default: worker).",
        values.is_second("worker", "separate"),
        ours=True,
    )
    policy: PolicySpec | None = None
    """The failure policy (``cli.policy_flags``); None for all defaults."""
    hang: HangSpec | None = option(
        None,
        FAILURES(
            "--hang-timeout DURATION|auto|never",
            "Restart a job that hangs: a worker completes no step and takes no batch for this long,"
            " and then no stack trace changes for 10s (default: never). auto: ten times the"
            " longest step, at least 60s.",
            values.hang_timeout,
            ours=True,
        ),
        FAILURES(
            "--hang-timeout-start DURATION",
            "Hang timeout before the first step, and while a checkpoint is saved or loaded or a"
            f" model is compiled (default: {defaults.HANG_TIMEOUT_START_S:g}s).",
            values.seconds_above_zero,
            ours=True,
        ),
    )
    """When workers are suspected to hang; None for never."""
    propagate_exit_code: bool = FAILURES.option(
        False,
        "--propagate-exit-code",
        "When no restarts are left, return the exit code of the worker that failed first (128+N for"
        " signal N) instead of 1.",
        ours=True,
    )
    shutdown_timeout_s: float = FAILURES.option(
        defaults.SHUTDOWN_TIMEOUT_S,
        "--shutdown-timeout DURATION",
        "Time from SIGTERM to SIGKILL when workers are stopped (default:"
        f" {defaults.SHUTDOWN_TIMEOUT_S:g}s, or TORCH_ELASTIC_SHUTDOWN_TIMEOUT).",
        values.seconds,
        variable="TORCH_ELASTIC_SHUTDOWN_TIMEOUT",
    )
    save_on_exit: bool = option(
        True,
        FAILURES(
            "--save-on-exit",
            "Write the newest snapshot of ft_run.training.Checkpointer to storage before the job"
            " fails or this node leaves, within --shutdown-timeout (the default).",
            ours=True,
            also="--save-at-breakpoint",
        ),
        FAILURES(
            "--no-save-on-exit",
            "Write only the checkpoints that the script requests.",
            ours=True,
            also="--no-save-at-breakpoint",
        ),
    )
    snapshot_replicas: int = FAILURES.option(
        0,
        "--snapshot-replicas R",
        "Number of other nodes that keep a copy of each sharded snapshot, so that no state is lost"
        " with a host (default: 0). A copy takes twice the memory of a rank's state.",
        values.whole(0, 16),
        ours=True,
    )
    preemption_notice: str | None = FAILURES.option(
        None,
        "--preemption-notice SOURCE",
        "Where to look for a preemption notice: gcp, aws, azure, file:PATH, or auto to detect the"
        " cloud. When there is one, all ranks save a consistent snapshot.",
        values.notice_source,
        ours=True,
    )
    tune_file: str | None = FAILURES.option(
        None,
        "--tune-file FILE",
        "JSON file in which the node with rank 0 keeps what a job finds out, e.g. the micro_batch"
        " of device-oom=shrink. The next start of the same job uses it.",
        values.string_or_none,
        ours=True,
    )
    signals: tuple[signal.Signals, ...] = FAILURES.option(
        (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT),
        "--signals-to-handle NAMES",
        f"Signals that stop the job gracefully (default: {defaults.SIGNALS_TO_HANDLE}).",
    )
    logs: LogOptions = LogOptions()
    preload: tuple[str, ...] = SCRIPT.option(
        (),
        "--preload MODULE,...|auto",
        "Modules to import once, e.g. torch, or auto. Every worker is forked from the process that"
        " imported them, so that starts and restarts skip the imports. An optimizer also imports"
        " torch._dynamo. auto: the modules that the workers have imported by their first step, for"
        " restarts; it includes --watch-workers.",
        values.modules,
        ours=True,
    )
    event_log_handler: str = COMPATIBILITY.option(
        "null",
        "--event-log-handler NAME",
        "null or console (default: null).",
        values.one_of("null", "console"),
    )
    checks: CheckOptions | None = None
    warnings: tuple[str, ...] = ()
    """Printed once, before the job starts, e.g. ignored keys, a missing ID."""
    name: str = ""
    """The name of the script in reports; if empty, the script as given."""

    @property
    def are_workers_watched(self) -> bool:
        """Whether the workers have the hook of ``training``."""
        learns = self.auto_tune != "off" or self.preload == values.AUTO_PRELOAD
        return self.watch_workers or self.hang is not None or learns

    @property
    def only_checks(self) -> bool:
        """Whether the job ends after the checks: no worker trains."""
        return self.checks is not None and self.checks.spec.only

    def job_spec(self) -> JobSpec:
        """Return the options that must be the same on all nodes of the job."""
        nodes = self.rendezvous
        return JobSpec(
            job_id=nodes.job_id,
            min_nodes=nodes.min_nodes,
            max_nodes=nodes.max_nodes,
            node_unit=nodes.node_unit,
            max_restarts=nodes.max_restarts,
            policy=self.policy,
            checks=self.checks.spec if self.checks is not None else None,
            separate_store=self.separate_store,
            rescale_delay_s=nodes.rescale_delay_s,
            hang=self.hang,
            succession=nodes.timeouts.succession_spec(nodes.endpoints),
        )
