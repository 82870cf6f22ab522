"""Slurm: the step that ``srun`` started, or its allocation.

Recorded from Slurm 22.05; the names have been the same since 14.11.
"""

from ...errors import UsageError
from ..flags.values import BadValue, refuse
from .environment import (
    PORT,
    Environment,
    Found,
    Variables,
    endpoints,
    gpus,
    known,
    of_attempt,
    refuse_count,
)
from .hostlist import BadHostListError, expand

_SRUN = "srun --ntasks-per-node=1 ft-run --auto-config"
_INTERACTIVE = "4294967290"
"""The step ID of a shell that ``salloc`` started on a node."""
_PORTS = 1000
"""Jobs with the same first node use different ports: from 29400, below Linux' ephemeral ports."""


def read(variables: Variables, mpi: Environment | None) -> Environment | None:
    """Return Slurm's settings; None outside of Slurm. Refuse several tasks on a node.

    ``mpi`` is the launcher between Slurm and this process. ``mpirun`` starts its own daemons with
    ``srun``, so the step's rank and number of nodes belong to the daemons.
    """
    job = variables.whole("SLURM_JOB_ID", "SLURM_JOBID")
    if job is None:
        return None
    job_id, port = _job_id(variables, job)
    allocated = variables.whole("SLURM_JOB_NUM_NODES", "SLURM_NNODES", low=1)
    flags = known(rdzv_id=job_id, nproc_per_node=_workers(variables))
    if mpi is not None:
        hosts = variables.text("SLURM_JOB_NODELIST", "SLURM_NODELIST")
        if hosts is not None and mpi.nodes == len(_hosts(hosts)):
            flags["rdzv_endpoint"] = Found(endpoints(_hosts(hosts), port), hosts.source)
        return Environment("Slurm", flags, mpi.start)
    nodes = variables.whole("SLURM_STEP_NUM_NODES", low=1)
    step = variables.text("SLURM_STEP_ID", "SLURM_STEPID")
    if nodes is None or (step is not None and step.text == _INTERACTIVE):
        if allocated is not None and allocated.text != "1":
            why_no_count = (
                f"not started by srun, but the Slurm allocation has {allocated.text} nodes"
                f" ({allocated.source}); expected {_SRUN} SCRIPT."
            )
            return Environment("Slurm", flags, _SRUN, why_no_count)
        return Environment("Slurm", flags | known(nnodes=allocated), _SRUN)
    return Environment(
        "Slurm", flags | _step(variables, nodes, port), _SRUN, _part(variables, nodes)
    )


def _step(variables: Variables, nodes: Found, port: int) -> dict[str, Found]:
    tasks = variables.whole("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", low=1)
    if tasks is not None and int(tasks.text) > int(nodes.text):
        raise UsageError(
            f"{tasks.source} is {tasks.text}, but {nodes.source} is {nodes.text}, and one ft-run"
            f" per node starts all its workers; expected {_SRUN} SCRIPT."
        )
    rank = variables.whole("SLURM_PROCID")
    hosts = variables.text("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
    endpoint = None
    if hosts is not None:
        names = _hosts(hosts)
        refuse_count(nodes, names, hosts.source)
        endpoint = Found(endpoints(names, port), hosts.source)
    segment = _block(variables)
    return known(nnodes=nodes, node_rank=rank, rdzv_endpoint=endpoint, segment=segment)


def _block(variables: Variables) -> Found | None:
    """Return the block of this node; None unless Slurm's topology has blocks.

    With ``topology/block`` the address is ``BLOCK.NODE``. A switch of ``topology/tree`` is not a
    segment: Slurm does not allocate whole units below it, so ``--node-unit`` would leave out the
    rest of each unit.
    """
    address = variables.text("SLURM_TOPOLOGY_ADDR")
    pattern = variables.text("SLURM_TOPOLOGY_ADDR_PATTERN")
    if address is None or pattern is None or pattern.text != "block.node":
        return None
    return Found(address.text.partition(".")[0], address.source)


def _part(variables: Variables, nodes: Found) -> str:
    """Return why a step has only the first part of a heterogeneous job (the default); else ""."""
    parts = variables.whole("SLURM_HET_SIZE", "SLURM_PACK_SIZE")
    if parts is None:
        return ""
    counts = [
        variables.whole(f"SLURM_JOB_NUM_NODES_HET_GROUP_{part}")
        for part in range(min(int(parts.text), 1000))
    ]
    total = sum(int(count.text) for count in counts if count is not None)
    if int(nodes.text) >= total:
        return ""
    return (
        f"the step has {nodes.text} ({nodes.source}) of the {total} nodes of a heterogeneous"
        f" job of {parts.text} parts ({parts.source}); expected srun"
        f" --het-group=0-{int(parts.text) - 1} ft-run --auto-config SCRIPT, or --nnodes"
        f" {nodes.text} for these alone."
    )


def _hosts(listed: Found) -> tuple[str, ...]:
    try:
        return expand(listed.text)
    except BadHostListError as error:
        right = "a list of hosts, e.g. gpu[001-016,020], or --rdzv-endpoint HOST:PORT"
        raise refuse(listed.source, listed.text, BadValue(right, str(error))) from error


def _job_id(variables: Variables, job: Found) -> tuple[Found, int]:
    """Return the ID of the job as in Slurm's commands, and the port of its rendezvous."""
    array = variables.whole("SLURM_ARRAY_JOB_ID")
    task = variables.whole("SLURM_ARRAY_TASK_ID")
    text, source = job.text, job.source
    if array is not None and task is not None:
        text, source = f"{array.text}_{task.text}", f"{array.source}, {task.source}"
    number = int(job.text)
    step = variables.whole("SLURM_STEP_ID", "SLURM_STEPID")
    if step is not None and 0 < int(step.text) < _PORTS:  # larger IDs are special steps
        text, source = f"{text}.{step.text}", f"{source}, {step.source}"
        number += int(step.text)
    again = variables.whole("SLURM_RESTART_COUNT")
    return of_attempt(Found(text, source), again), PORT + number % _PORTS


def _workers(variables: Variables) -> Found | None:
    """Return the step's number of GPUs here; raise ``UsageError`` if more or fewer are visible."""
    count = gpus(variables.whole("SLURM_GPUS_ON_NODE"))
    visible = variables.text("CUDA_VISIBLE_DEVICES")
    if count is not None and visible is not None:
        shown = len(visible.text.split(","))
        if shown != int(count.text):
            raise UsageError(
                f"{count.source} is {count.text}, but {visible.source} shows {shown}"
                f" ({visible.text[:80]}); expected --nproc-per-node {shown}, or"
                f" {count.text} with all of them visible."
            )
    return count
