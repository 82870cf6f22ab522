"""Metrics of ``ft-run master``: the metrics of its job, and the progress of rank 0."""

import time

from ..version import VERSION
from . import catalogue as c
from .catalogue import Samples
from .job_metrics import JobMetrics


async def master_samples(job_metrics: JobMetrics, attempt: int) -> Samples:
    """Return the current samples; runs on the loop of the master."""
    samples = job_metrics.now()
    master = job_metrics.master
    job = master.group.job if master is not None else None
    samples.put(c.JOB_INFO, 1, job.job_id if job is not None else "", attempt, "", VERSION)
    if master is None or master.group.round < 0:
        return samples
    found = await master.steps(only_first=True)
    now = time.time()
    if found.steps:
        idle_s = min(rank.idle_s for rank in found.steps)
        samples.put(c.LAST_STEP, round(now - idle_s, 3))
        samples.put(c.STEP, max(rank.steps for rank in found.steps))
        samples.put(c.DATA_WAIT, max(rank.data_wait for rank in found.steps))
    step, age_s = found.checkpoint
    samples.put(c.LAST_CHECKPOINT, round(now - age_s, 3) if step else None)
    return samples
