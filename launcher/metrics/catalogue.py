"""All metrics: their names, types, labels and help texts.

Code that measures something adds it to ``Samples`` under a metric of this module; ``exposition``
writes the samples for Prometheus, and ``docs/generate.py`` the reference page.
"""

import enum
from typing import Final, NamedTuple


class Source(enum.Enum):
    """The endpoints that have a metric; the value is the text of the reference."""

    ALL = "all"
    NODE = "nodes"
    MASTER = "master"
    """The ``ft-run`` process that hosts the master."""


class Metric(NamedTuple):
    """A metric family; a counter if its name ends in ``_total``, else a gauge."""

    name: str
    help: str
    source: Source
    labels: tuple[str, ...] = ()

    @property
    def is_counter(self) -> bool:
        """Whether the value only grows until the process restarts."""
        return self.name.endswith("_total")


def _metric(name: str, text: str, source: Source, *labels: str) -> Metric:
    return Metric(f"ftrun_{name}", text, source, labels)


JOB_INFO: Final = _metric(
    "job_info",
    "Always 1; the labels name the job, its attempt (how often the scheduler has started it "
    "again), the node (empty for ft-run master) and the version of ft-run.",
    Source.ALL,
    *("job_id", "attempt", "node", "version"),
)
RESTARTS: Final = _metric(
    "restarts_total",
    "Restarts of the job since this process started, by the kind of failure.",
    Source.ALL,
    "cause",
)
ROUND: Final = _metric("round", "Number of the current or last round.", Source.ALL)
LAST_STEP: Final = _metric(
    "last_step_timestamp_seconds",
    "Unix time of the last progress of a worker: a step, or a batch of an evaluation.",
    Source.ALL,
)
STEP: Final = _metric(
    "step", "Completed steps of the furthest worker, as the script counts them.", Source.ALL
)
LAST_CHECKPOINT: Final = _metric(
    "last_checkpoint_timestamp_seconds",
    "Unix time at which the last checkpoint was complete, on the node that completed it.",
    Source.ALL,
)

DATA_WAIT: Final = _metric(
    "data_wait_ratio",
    "Share of the last seconds in which training waited for data; from a separate ft-run master, "
    "that of the node with rank 0.",
    Source.ALL,
)

NODES: Final = _metric("nodes", "Number of nodes by state.", Source.MASTER, "state")
NODE_SECONDS: Final = _metric(
    "node_seconds_total", "Time of all nodes together, by state.", Source.MASTER, "state"
)

WORK_ITEMS: Final = _metric(
    "shared_work_items", "Items of shared_work, of the newest 20 names.", Source.MASTER, "name"
)
WORK_DONE: Final = _metric(
    "shared_work_done_items", "Confirmed items of shared_work.", Source.MASTER, "name"
)

NODE_RANK: Final = _metric(
    "node_rank", "Rank of this node in its current or last round; -1 before the first.", Source.NODE
)
PHASE_SECONDS: Final = _metric(
    "phase_seconds_total",
    "Time of this node by what it did; each second is in exactly one phase.",
    Source.NODE,
    "phase",
)
LOST_SECONDS: Final = _metric(
    "lost_seconds_total",
    "Training that a failure discarded, by the kind of failure: the steps after the one from which "
    "the job resumed.",
    Source.NODE,
    "cause",
)
LAST_SNAPSHOT: Final = _metric(
    "last_snapshot_timestamp_seconds",
    "Unix time of the first scrape that found the newest snapshot in the memory of this node.",
    Source.NODE,
)
CHECKPOINT_INTERVAL: Final = _metric(
    "checkpoint_interval_seconds", "Time between the last two checkpoints.", Source.NODE
)
CHECKPOINT_FAILURES: Final = _metric(
    "checkpoint_failures_total", "Checkpoints that could not be written.", Source.NODE
)

RANK_STEPS: Final = _metric(
    "rank_steps_total",
    "Steps that the rank has done, those that were done again included.",
    Source.NODE,
    "rank",
)
RANK_DATA_WAIT: Final = _metric(
    "rank_data_wait_seconds_total",
    "Time for which the worker process waited for torch's DataLoader in training; on a GPU, only "
    "while it was idle.",
    Source.NODE,
    "rank",
)
RANK_CPU: Final = _metric(
    "rank_cpu_seconds_total",
    "CPU time of the worker process, without its child processes.",
    Source.NODE,
    "rank",
)
RANK_MEMORY: Final = _metric(
    "rank_resident_memory_bytes", "Resident memory of the worker process.", Source.NODE, "rank"
)

METRICS: Final = tuple(value for value in list(globals().values()) if isinstance(value, Metric))
"""All metrics, in the order of the source."""


class Samples(dict[Metric, dict[tuple[str, ...], float]]):
    """The values of metrics, by their labels."""

    def put(self, metric: Metric, value: float | None, *labels: object) -> None:
        """Set a value; without a sample if it is None (unknown)."""
        if value is not None:
            self.setdefault(metric, {})[tuple(map(str, labels))] = float(value)
