"""Where ``ft-run status --watch`` gets the status of a job: an agent on this host, or a master."""

from typing import Any, TypeAlias

from ...errors import RendezvousError
from ..cli.master_flags import StatusOptions
from .asking import MasterCalls
from .local_jobs import LocalConnection, LocalJob, connect
from .targets import Target


class LocalSource:
    """The agent that hosts the master, on this host; with the methods of ``MasterCalls``."""

    def __init__(self, calls: LocalConnection, news: LocalConnection) -> None:
        self._calls, self._news = calls, news

    @classmethod
    async def open(cls, job: LocalJob, timeout_s: float) -> "LocalSource":
        """Connect to an agent.

        Raises:
            RendezvousError: it is gone, or does not answer in time.
        """
        await job.ask(timeout_s, ask="job")
        try:
            return cls(await connect(job.path), await connect(job.path))
        except OSError as error:
            raise RendezvousError("the ft-run of the job has ended.") from error

    async def status(self) -> dict[str, Any]:
        """Return the present status, in any time.

        Raises:
            RendezvousError: there is no answer.
        """
        # Without a limit: a dead agent closes the connection, and a live one may be stopped.
        return dict((await self._calls.ask(ask="status"))["status"])

    async def ended(self) -> dict[str, Any] | None:
        """Wait for the end of the job; return the last status, or None if its agent was killed."""
        try:
            return dict((await self._news.receive())["status"])
        except RendezvousError:
            return None

    async def close(self) -> None:
        """Disconnect."""
        self._calls.close()
        self._news.close()


Source: TypeAlias = MasterCalls | LocalSource
"""A job whose status can be polled."""


async def source_of(target: Target, options: StatusOptions) -> Source:
    """Return the source of a job.

    Raises:
        RendezvousError: its agent is gone.
        UsageError: the token or a certificate cannot be used.
    """
    if target.job is not None:
        return await LocalSource.open(target.job, options.timeout_s)
    assert target.endpoint is not None
    return MasterCalls(target.endpoint, options.trust, options.timeout_s)
