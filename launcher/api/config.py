"""The configuration of a job from Python: torch's ``LaunchConfig`` field by field, and its flags.

The fields have the names, the order and, except for ``rdzv_backend``, the defaults of
``torch.distributed.launcher.api.LaunchConfig`` (torch 2.13). This module does not import torch; it
reads the attributes of torch's objects.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...errors import UsageError
from ..flags.values import BadValue, refuse

StreamsSpec = int | str | Mapping[int, int]
"""0 (none), 1 (stdout), 2 (stderr) or 3 (both) for all local ranks, or a mapping from local rank.

torch's ``Std`` is such an integer. A string is parsed like ``--redirects``."""


@dataclass
class LogsSpecs:
    """Where the workers' output goes; torch's ``DefaultLogsSpecs`` is accepted as well."""

    log_dir: str | None = None
    """If None, a temporary directory, which is removed after success."""
    redirects: StreamsSpec = 0
    """Streams that go to files instead of the console."""
    tee: StreamsSpec = 0
    """Streams that go to files as well as to the console."""
    local_ranks_filter: Iterable[int] | None = None
    """Local ranks that the console shows; None for all."""


@dataclass
class LaunchConfig:
    """A job to start with ``elastic_launch``, the same on every node of the job.

    A field without a description works like the flag of that name. Some fields have no effect:
    ``monitor_interval`` (nothing polls), ``metrics_cfg`` (there are no metrics handlers), and
    ``start_method`` (a function always runs in a fresh interpreter, as with ``spawn``).
    """

    min_nodes: int
    max_nodes: int
    nproc_per_node: int
    logs_specs: Any = None
    """A ``LogsSpecs``, or torch's ``DefaultLogsSpecs``."""
    run_id: str = ""
    """The job ID. If empty, a single node generates one, and several nodes use ``none``."""
    role: str = "default_role"
    rdzv_endpoint: str = ""
    """``host[:port]``, the same on every node; empty for a single node without an open port."""
    rdzv_backend: str = "grpc"
    """``grpc``, ``c10d`` or ``static``, all of which mean the master of ft-run; torch's default
    ``etcd`` would need another service and is refused."""
    rdzv_configs: dict[str, Any] = field(default_factory=dict)
    """The keys of ``--rdzv-conf``; ``rank``, a key of torch's static backend, is the node rank."""
    rdzv_timeout: int = -1
    """Seconds, like ``rdzv_configs["timeout"]``; -1 if not given."""
    max_restarts: int = 3
    monitor_interval: float = 0.1
    start_method: str = "spawn"
    log_line_prefix_template: str | None = None
    """Like ``--log-line-prefix-template``."""
    metrics_cfg: dict[str, str] = field(default_factory=dict)
    local_addr: str | None = None
    event_log_handler: str = "null"
    numa_options: Any = None
    """A mode of ``--numa-binding``, or torch's ``NumaOptions``."""
    signals_to_handle: str = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
    duplicate_stdout_filters: list[str] | None = None
    duplicate_stderr_filters: list[str] | None = None
    virtual_local_rank: bool = False
    shutdown_timeout: int | None = None
    """Seconds. If None, ``TORCH_ELASTIC_SHUTDOWN_TIMEOUT`` applies, or else 30."""


def command_line(config: LaunchConfig) -> list[str]:
    """Return the flags that are equivalent to ``config``; ``cli`` parses their values.

    Raises:
        UsageError: If a value cannot be written as the value of a flag.
    """
    words = [
        f"--nnodes={config.min_nodes}:{config.max_nodes}",
        f"--nproc-per-node={config.nproc_per_node}",
        f"--rdzv-backend={config.rdzv_backend}",
        f"--rdzv-endpoint={config.rdzv_endpoint}",
        f"--rdzv-id={config.run_id}",
        f"--role={config.role}",
        f"--max-restarts={config.max_restarts}",
        f"--monitor-interval={config.monitor_interval}",
        f"--start-method={config.start_method}",
        f"--event-log-handler={config.event_log_handler}",
        f"--signals-to-handle={config.signals_to_handle}",
        f"--duplicate-stdout-filters={_filters(config.duplicate_stdout_filters)}",
        f"--duplicate-stderr-filters={_filters(config.duplicate_stderr_filters)}",
    ]
    if config.log_line_prefix_template:
        words.append(f"--log-line-prefix-template={config.log_line_prefix_template}")
    if config.local_addr:
        words.append(f"--local-addr={config.local_addr}")
    if config.virtual_local_rank:
        words.append("--virtual-local-rank")
    if config.shutdown_timeout is not None:
        words.append(f"--shutdown-timeout={config.shutdown_timeout}")
    return [*words, *_rendezvous(config), *_logs(config.logs_specs), *_numa(config.numa_options)]


def _rendezvous(config: LaunchConfig) -> list[str]:
    settings = dict(config.rdzv_configs)
    if config.rdzv_timeout != -1:
        settings["timeout"] = config.rdzv_timeout
    rank = settings.pop("rank", None)
    words = [] if rank is None else [f"--node-rank={rank}"]
    pairs = []
    for key, value in settings.items():
        if "," in str(value):
            bad = BadValue("a value without a comma")
            raise refuse(f"rdzv_configs[{key!r}]", str(value), bad)
        pairs.append(f"{key}={value}")
    return [*words, f"--rdzv-conf={','.join(pairs)}"] if pairs else words


def _logs(specs: Any) -> list[str]:
    if specs is None:
        return []
    if isinstance(specs, LogsSpecs):
        log_dir, redirects, tee = specs.log_dir, specs.redirects, specs.tee
        shown_ranks = specs.local_ranks_filter
    else:
        try:  # torch's class has no public names for its arguments
            log_dir, redirects, tee = specs._root_log_dir, specs._redirects, specs._tee
            shown_ranks = specs._local_ranks_filter
        except AttributeError:
            raise UsageError(
                f"invalid type {type(specs).__name__} for logs_specs: expected a LogsSpecs of"
                " ft_run.launcher.api, or torch's DefaultLogsSpecs."
            ) from None
    words = [f"--redirects={_streams(redirects)}", f"--tee={_streams(tee)}"]
    if log_dir:
        words.append(f"--log-dir={os.fspath(log_dir)}")
    if shown_ranks:
        words.append(f"--local-ranks-filter={','.join(map(str, sorted(shown_ranks)))}")
    return words


def _streams(spec: StreamsSpec) -> str:
    if isinstance(spec, Mapping):
        return ",".join(f"{rank}:{int(streams)}" for rank, streams in spec.items()) or "0"
    return spec if isinstance(spec, str) else str(int(spec))


def _numa(options: Any) -> list[str]:
    if options is None:
        return []
    mode = options if isinstance(options, str) else options.affinity_mode.value
    return [f"--numa-binding={mode}"]


def _filters(words: Iterable[str] | None) -> str:
    return ",".join(word.replace(",", ",,") for word in words or ())
