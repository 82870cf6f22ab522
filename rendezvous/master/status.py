"""The master's response to ``ft-run status``."""

from collections.abc import Mapping

from ..diagnosis.stack_calls import Whereabouts
from ..group.roster import Node
from ..protocol.status import NodeStatus, StatusReply
from ..protocol.steps import RankSteps
from .master import Master


async def job_status(master: Master, version: str, report: str = "") -> StatusReply:
    """Return the status of a job."""
    group, verdict = master.group, master.group.verdict
    # When the job has ended there are no workers to query.
    progress = await master.steps() if verdict is None else Whereabouts((), ())
    steps = {one.rank: one for one in progress.steps}
    uptime_s, round_uptime_s = master.uptime_s()
    job = group.job
    return StatusReply(
        phase=group.phase.value,
        round=group.round,
        version=version,
        job_id=job.job_id if job is not None else "",
        restarts=group.state.restarts_in_budget,
        max_restarts=job.max_restarts if job is not None else 0,
        min_nodes=job.min_nodes if job is not None else 0,
        max_nodes=job.max_nodes if job is not None else 0,
        world_nodes=group.state.world_nodes,
        uptime_s=uptime_s,
        round_uptime_s=round_uptime_s if group.round >= 0 else 0.0,
        nodes=tuple(_node(node, group.round, steps) for node in group.roster),
        last_stop=group.last_stop,
        checkpoint_step=progress.checkpoint[0],
        checkpoint_age_s=progress.checkpoint[1],
        exit_code=verdict.exit_code if verdict is not None else None,
        ended=verdict.sentence if verdict is not None else "",
        report=report,
        work=master.progress(),
    )


def _node(node: Node, round_number: int, steps: Mapping[int, RankSteps]) -> NodeStatus:
    rank = node.rank if node.round == round_number else None
    first, size = node.rank_offset, node.spec.local_world_size
    return NodeStatus(
        node_id=node.spec.node_id,
        host=node.spec.host,
        address=node.spec.address,
        role=node.spec.role,
        phase=node.phase.value,
        node_rank=-1 if rank is None else rank,
        rank_offset=-1 if rank is None else first,
        local_world_size=size,
        attached=node.link is not None,
        segment=node.spec.segment,
        workers=()
        if rank is None
        else tuple(steps[one] for one in range(first, first + size) if one in steps),
    )
