"""The jobs of this user on this host, from the local sockets of their agents."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from ...errors import RendezvousError, UsageError
from ..flags.values import shown
from ..machine.user_folder import SOCKET_SUFFIX, user_folder
from ..processes.typed_messages import reader

_ANSWER_S: Final = 2.0
"""Time limit for an agent to describe its job; a stopped process never answers."""
_ANSWER_MAX_BYTES: Final = 64 << 20


class About(Struct, frozen=True):
    """Description of a job by an agent or ``ft-run master``; times are in seconds."""

    job_id: str = ""
    script: str = ""
    phase: str = ""
    round: int = -1
    nodes: int = 0
    min_nodes: int = 0
    max_nodes: int = 0
    restarts: int = 0
    max_restarts: int = 0
    steps: int | None = None
    steps_per_s: float | None = None
    idle_s: float | None = None
    uptime_s: float = 0.0
    node_id: str = ""
    pid: int = 0
    endpoints: tuple[str, ...] = ()
    """Endpoints of the master; empty for a job of a single node."""
    hosts_master: bool = False


class Answer(Struct, frozen=True):
    """An answer of an agent, which sets the field of the request, or ``error``."""

    job: About | None = None
    status: dict[str, Any] | None = None
    stacks: dict[str, Any] | None = None
    error: str = ""


_read_answer = reader(Answer)


class LocalConnection:
    """A connection to an agent; ``close`` it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @property
    def pid(self) -> int:
        """The ID of the process at the other end, from the kernel."""
        peer: socket.socket = self._writer.get_extra_info("socket")
        pid, _, _ = struct.unpack("3I", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return int(pid)

    async def ask(self, **request: Any) -> Answer:
        """Send a request; return the answer, or raise ``RendezvousError``."""
        try:
            self._writer.write(msgspec.json.encode(request) + b"\n")
            await self._writer.drain()
        except OSError as error:
            raise RendezvousError("the ft-run of the job has ended.") from error
        return await self.receive()

    async def receive(self) -> Answer:
        """Return the next answer; raise ``RendezvousError`` if the agent has ended or refuses."""
        try:
            line = await self._reader.readline()
        except (OSError, ValueError):
            line = b""
        if not line:
            raise RendezvousError("the ft-run of the job has ended.")
        try:
            answer: Answer = _read_answer(line)
        except ValueError as error:
            raise _invalid(error) from None
        if answer.error:
            raise RendezvousError(f"the ft-run of the job answers: {answer.error}.")
        return answer

    def close(self) -> None:
        """Disconnect."""
        self._writer.close()


async def connect(path: Path) -> LocalConnection:
    """Connect to an agent; raise ``OSError`` if no process listens on this socket."""
    return LocalConnection(*await asyncio.open_unix_connection(path, limit=_ANSWER_MAX_BYTES))


class LocalJob(Struct, frozen=True):
    """An agent on this host."""

    path: Path
    pid: int
    about: About | None
    """None after two seconds without an answer."""

    @property
    def job_id(self) -> str:
        """The ID of its job; empty if unknown."""
        return self.about.job_id if self.about is not None else ""

    @property
    def key(self) -> tuple[object, ...]:
        """Key that is equal for agents of one job; agents of a single node have no endpoint.

        It has only the ports of endpoints, because ``ft-run master`` may listen at all addresses.
        """
        endpoints = (self.about.endpoints if self.about is not None else ()) or (str(self.pid),)
        return self.job_id, *(endpoint.rpartition(":")[2] for endpoint in endpoints)

    def as_dict(self) -> dict[str, Any]:
        """Return the description as JSON values."""
        return {"pid": self.pid} | (asdict(self.about) if self.about is not None else {})

    @property
    def hosts_master(self) -> bool:
        """Whether its process contains the master of the job."""
        return self.about is not None and self.about.hosts_master

    async def ask(self, timeout_s: float, **request: Any) -> Answer:
        """Send one request; return the answer, or raise ``RendezvousError``."""
        try:
            connection = await connect(self.path)
        except OSError as error:
            raise RendezvousError("the ft-run of the job has ended.") from error
        try:
            return await asyncio.wait_for(connection.ask(**request), timeout_s)
        except asyncio.TimeoutError as error:
            raise self.silent(timeout_s) from error
        finally:
            connection.close()

    def silent(self, timeout_s: float) -> RendezvousError:
        """Return the error for an agent that does not answer in time."""
        return RendezvousError(
            f"the ft-run with process ID {self.pid} does not answer within {timeout_s:g} s; it may"
            " be stopped, e.g. by Ctrl-Z."
        )


class LocalCalls:
    """Requests to the agent that hosts the job's master, with the methods of ``MasterCalls``.

    They raise ``RendezvousError`` if the agent has ended or does not answer in time.
    """

    def __init__(self, job: LocalJob, timeout_s: float) -> None:
        self._job, self._timeout_s = job, timeout_s

    async def __aenter__(self) -> "LocalCalls":
        """Connect, to receive the end of the job."""
        try:
            self._news = await connect(self._job.path)
            # A connection without a request may be closed in favor of another one.
            await asyncio.wait_for(self._news.ask(ask="job"), self._timeout_s)
        except asyncio.TimeoutError as error:  # an OSError since Python 3.11
            self._news.close()
            raise self._job.silent(self._timeout_s) from error
        except OSError as error:
            raise RendezvousError("the ft-run of the job has ended.") from error
        return self

    async def __aexit__(self, *_: object) -> None:
        self._news.close()

    async def status(self) -> dict[str, Any]:
        """Return the status of the job."""
        status = (await self._job.ask(self._timeout_s, ask="status")).status
        if status is None:
            raise _invalid("it has no status")
        return status

    async def ended(self) -> dict[str, Any] | None:
        """Wait for the end of the job; return the last status, or None if its agent was killed."""
        try:
            return (await self._news.receive()).status
        except RendezvousError:
            return None

    async def stacks(self, ranks: Sequence[int]) -> dict[str, Any]:
        """Return the stacks of ranks, with ``lines``."""
        stacks = (await self._job.ask(self._timeout_s, ask="stacks", ranks=[*ranks])).stacks
        if stacks is None:
            raise _invalid("it has no stacks")
        return stacks


async def find_jobs() -> list[LocalJob]:
    """Return the agents of this user on this host; remove the sockets of dead ones."""
    try:
        paths = [*user_folder().glob(f"*{SOCKET_SUFFIX}")]
    except OSError:  # the directory belongs to another user: no agent has a socket there
        return []
    found = await asyncio.gather(*map(_look, paths))
    return sorted(filter(None, found), key=lambda job: (job.job_id, job.pid))


async def _look(path: Path) -> LocalJob | None:
    try:
        connection = await connect(path)
    except ConnectionRefusedError:
        _remove(path)  # its agent was killed
        return None
    except OSError:
        return None
    try:
        about = (await asyncio.wait_for(connection.ask(ask="job"), _ANSWER_S)).job
        if about is None:
            return None
    except RendezvousError:  # it has ended, or is not an agent
        return None
    except asyncio.TimeoutError:
        about = None
    finally:
        connection.close()
    return LocalJob(path, connection.pid, about)


def _invalid(why: object) -> RendezvousError:
    return RendezvousError(f"the ft-run of the job gives no valid answer: {why}.")


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


def distinct(jobs: Sequence[LocalJob]) -> list[LocalJob]:
    """Return one agent of each job, preferably the agent with the master."""
    best: dict[object, LocalJob] = {}
    for job in jobs:
        if job.key not in best or job.hosts_master:
            best[job.key] = job
    return list(best.values())


def named(jobs: Sequence[LocalJob], text: str) -> LocalJob | None:
    """Return the job with this ID, or of the ft-run with this process ID; None if there is none.

    Raises:
        UsageError: If several jobs have the ID.
    """
    found = distinct([job for job in jobs if job.job_id == text])
    if len(found) > 1:
        pids = ", ".join(str(job.pid) for job in found)
        raise UsageError(
            f"{len(found)} jobs of this host have the ID {shown(text)}; expected the process ID of"
            f" one of them: {pids}."
        )
    by_pid = [job for job in jobs if str(job.pid) == text]
    return next(iter(found or by_pid), None)
