"""The job of ``ft-run status`` and ``ft-run stacks``, on this host or elsewhere."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from msgspec import Struct
from msgspec.structs import replace

from ... import defaults
from ...errors import RendezvousError, UsageError
from ...rendezvous.protocol.endpoint import Endpoint
from ..cli.master_flags import JobOptions
from ..flags.values import shown
from ..reporting.standard_output import standard_output
from .asking import MasterCalls
from .job_list import print_jobs
from .local_jobs import LocalCalls, LocalJob, distinct, find_jobs, named

_DEFAULT = Endpoint("localhost", defaults.ENDPOINT_PORT)


class Target(Struct, frozen=True):
    """The job that the options name: ``job`` or ``endpoint``, or neither if several match."""

    jobs: Sequence[LocalJob] = ()
    """All agents of this user on this host, if the options do not name a job."""
    job: LocalJob | None = None
    """The agent that hosts the job's master."""
    endpoint: Endpoint | None = None
    is_guess: bool = False
    """Whether the endpoint is the default one, since there is no job on this host."""

    @property
    def is_list(self) -> bool:
        """Whether there are several jobs to choose from."""
        return self.job is None and self.endpoint is None

    @asynccontextmanager
    async def calls(self, options: JobOptions) -> AsyncIterator[LocalCalls | MasterCalls]:
        """Connect to the master of the job."""
        try:
            if self.job is not None:
                async with LocalCalls(self.job, options.timeout_s) as local:
                    yield local
                return
            assert self.endpoint is not None
            async with MasterCalls(self.endpoint, options.trust, options.timeout_s) as master:
                yield master
        except RendezvousError as error:
            if options.may_be_job and self.endpoint == options.endpoint:
                raise RendezvousError(
                    "no job of this user on this host has the ID"
                    f" {shown(options.may_be_job)}, and {error.sentence}"
                ) from error
            if not self.is_guess:
                raise
            raise RendezvousError(
                "no job of this user runs on this host, and no ft-run master answers at"
                f" {self.endpoint}; expected HOST[:PORT], the --rdzv-endpoint of a job."
            ) from error


async def find_target(options: JobOptions) -> Target:
    """Find the job that the options name, or the jobs of this host."""
    name = options.job or options.may_be_job
    if options.endpoint is not None and not name:
        return Target(endpoint=options.endpoint)
    jobs = await find_jobs()
    if name:
        job = named(jobs, name)
        if job is not None:
            return _target_of(job)
        if options.endpoint is not None:
            return Target(endpoint=options.endpoint)
        raise RendezvousError(
            f"no job of this user on this host has the ID {shown(name)}; ft-run status lists them."
        )
    if not jobs:
        return Target(endpoint=_DEFAULT, is_guess=True)
    only = distinct(jobs)
    if len(only) > 1:
        return Target(jobs)
    return _target_of(only[0], jobs)


async def one_target(options: JobOptions) -> Target:
    """Find the only job that the options can mean; if there are several, list them and raise."""
    target = await find_target(options)
    if target.is_list:
        with standard_output():
            print_jobs(target.jobs)
        raise UsageError(
            "several jobs run on this host; expected one of them as JOB, by its ID or process ID."
        )
    return target


def _target_of(job: LocalJob, jobs: Sequence[LocalJob] = ()) -> Target:
    """Return where to send requests: the agent with the master, or the master elsewhere."""
    endpoints = job.about.endpoints if job.about is not None else ()
    if endpoints and not job.hosts_master:
        first, *others = map(Endpoint.parse, endpoints)
        return Target(jobs, endpoint=replace(first, others=tuple(others)))
    return Target(jobs, job)
