"""SkyPilot, SageMaker training, and multi-node parallel jobs of AWS Batch."""

import msgspec

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


def skypilot(variables: Variables) -> Environment | None:
    """Return SkyPilot's settings; None outside of it."""
    addresses = variables.text("SKYPILOT_NODE_IPS")
    if addresses is None:
        return None
    hosts = tuple(addresses.text.split())
    nodes = variables.whole("SKYPILOT_NUM_NODES", low=1)
    refuse_count(nodes, hosts, addresses.source)
    nodes = nodes or Found(str(len(hosts)), addresses.source)
    rank = variables.whole("SKYPILOT_NODE_RANK")
    return Environment(
        "SkyPilot",
        known(
            nnodes=nodes,
            node_rank=rank,
            rdzv_endpoint=Found(endpoints(hosts, PORT), addresses.source),
            rdzv_id=variables.text("SKYPILOT_TASK_ID"),
            nproc_per_node=gpus(variables.whole("SKYPILOT_NUM_GPUS_PER_NODE")),
        ),
    )


def sagemaker(variables: Variables) -> Environment | None:
    """Return SageMaker's settings; None outside of it."""
    listed, own = variables.text("SM_HOSTS"), variables.text("SM_CURRENT_HOST")
    if listed is None or own is None:
        return None
    try:
        hosts = msgspec.json.decode(listed.text, type=list[str])
    except (ValueError, RecursionError):
        hosts = []
    if not hosts:
        right = 'a JSON list of hosts, e.g. ["algo-1","algo-2"], or no --auto-config'
        raise refuse(listed.source, listed.text, BadValue(right))
    if own.text not in hosts:
        raise UsageError(
            f"{own.source} is {own.text[:80]}, but {listed.source} is {listed.text[:80]};"
            " expected one of these hosts, or --nnodes and --node-rank."
        )
    return Environment(
        "SageMaker",
        known(
            nnodes=Found(str(len(hosts)), listed.source),
            node_rank=Found(str(hosts.index(own.text)), f"{listed.source}, {own.source}"),
            rdzv_endpoint=Found(endpoints(hosts, PORT), listed.source),
            rdzv_id=variables.text("TRAINING_JOB_NAME"),
            nproc_per_node=gpus(variables.whole("SM_NUM_GPUS")),
        ),
    )


def aws_batch(variables: Variables) -> Environment | None:
    """Return AWS Batch's settings; None outside of a multi-node parallel job."""
    rank = variables.whole("AWS_BATCH_JOB_NODE_INDEX")
    if rank is None:
        return None
    nodes = variables.whole("AWS_BATCH_JOB_NUM_NODES", low=1)
    main = variables.whole("AWS_BATCH_JOB_MAIN_NODE_INDEX")
    address = variables.text("AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS")
    if address is None and main is not None and main.text == rank.text:
        address = Found(
            variables.own_name(), f"{main.source}: this node"
        )  # the other nodes have the variable
    job, again = variables.text("AWS_BATCH_JOB_ID"), variables.whole("AWS_BATCH_JOB_ATTEMPT", low=1)
    if job is not None:  # <job>#<index of the node>
        job = Found(job.text.partition("#")[0], job.source)
        if again is not None:
            job = of_attempt(job, Found(str(int(again.text) - 1), again.source))
    endpoint = None if address is None else Found(f"{address.text}:{PORT}", address.source)
    return Environment(
        "AWS Batch",
        known(nnodes=nodes, node_rank=rank, rdzv_endpoint=endpoint, rdzv_id=job),
    )
