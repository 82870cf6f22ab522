"""Kubernetes: LeaderWorkerSet, JobSet, Indexed Job; also Kubeflow, whose ``PET_*`` override.

Their controllers set ``LWS_*`` and ``JOB_COMPLETION_INDEX``. A pod needs the labels of a JobSet as
variables: see examples/kubernetes/jobset.yaml.
"""

from .environment import (
    GIVE_COUNT,
    LISTED,
    PORT,
    Environment,
    Found,
    Variables,
    endpoints,
    known,
    of_attempt,
)


def _no_count(kind: str) -> str:
    return f"the pods of {kind} have no variable with their number; expected {GIVE_COUNT}"


def read(variables: Variables) -> Environment | None:
    """Return Kubernetes' settings for this pod; None for other kinds of pods."""
    if variables.text("LWS_LEADER_ADDRESS") is not None:
        return _leader_worker_set(variables)
    index = variables.whole("JOB_COMPLETION_INDEX")
    if index is None:
        return None
    if variables.text("JOBSET_NAME") is not None:
        return _job_set(variables, index)
    return _indexed_job(variables, index)


def _leader_worker_set(variables: Variables) -> Environment:
    nodes = variables.whole("LWS_GROUP_SIZE", low=1)
    rank = variables.whole("LWS_WORKER_INDEX")
    leader = variables.text("LWS_LEADER_ADDRESS")
    assert leader is not None
    name, _, service = leader.text.partition(".")
    # The leader's pod has the name of its group, worker N has that name and "-N", in one service.
    size = 1 if nodes is None else int(nodes.text)
    hosts = [leader.text, *(f"{name}-{index}.{service}" for index in range(1, min(size, LISTED)))]
    return Environment(
        "LeaderWorkerSet",
        known(
            nnodes=nodes,
            node_rank=rank,
            rdzv_endpoint=Found(endpoints(hosts, PORT), leader.source),
            rdzv_id=Found(name, leader.source),
        ),
    )


def _job_set(variables: Variables, index: Found) -> Environment:
    name = variables.text("JOBSET_NAME")
    job = variables.text("JOBSET_REPLICATEDJOB_NAME")
    again = variables.whole("JOBSET_RESTART_ATTEMPT")
    assert name is not None
    replicas = variables.whole("JOBSET_REPLICATEDJOB_REPLICAS", low=1)
    endpoint, pods = None, ""
    if job is not None:
        pods = f"{name.text}-{job.text}-0-{{}}.{name.text}:{PORT}"
        endpoint = Found(pods.format(0), f"{name.source}, {job.source}")
    # The index counts within one of the replicated Jobs.
    is_one_job = replicas is None or replicas.text == "1"
    rank = index if is_one_job else None
    return Environment(
        "JobSet",
        known(
            node_rank=rank,
            rdzv_endpoint=endpoint,
            rdzv_id=of_attempt(name, again),
        ),
        pods=pods if is_one_job else "",
        why_no_count=_no_count("a JobSet"),
    )


def _indexed_job(variables: Variables, index: Found) -> Environment:
    """Parse the pod's name, ``<job>-<index>.<service>``; the first pod has index 0."""
    own = variables.own_name()
    pod, _, service = own.partition(".")
    job = pod.removesuffix(f"-{index.text}")
    flags, pods = known(node_rank=index), ""
    source = f"{index.source} and the host name {own}"
    if job != pod:
        flags["rdzv_id"] = Found(job, source)
        if service:
            pods = f"{job}-{{}}.{service}:{PORT}"
            flags["rdzv_endpoint"] = Found(pods.format(0), source)
    return Environment(
        "Indexed Job",
        flags,
        pods=pods,
        why_no_count=_no_count("an Indexed Job"),
    )
