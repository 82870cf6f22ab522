"""The Unix socket on which an agent answers processes of the same user, e.g. ``ft-run status``.

Requests and answers are JSON objects, one per line. The agent's event loop serves the socket: no
thread, and no wake-up without a request.
"""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from ...events.event import Event, LogMessage, Severity
from ...training.worker.agent_socket import is_trusted
from ..machine.user_folder import SOCKET_SUFFIX, user_folder
from .local_answers import LocalAnswers, Request

_REQUEST_MAX_BYTES: Final = 64 * 1024
_CONNECTIONS_MAX: Final = 16
"""At this number, a new connection replaces the oldest one without a request, or is closed."""
_PENDING: Final = 16


class LocalSocket:
    """A socket in the user's directory, to which other users cannot connect."""

    def __init__(self, new_answers: Callable[[], LocalAnswers]) -> None:
        self._new_answers = new_answers
        self._answers: LocalAnswers | None = None
        self._server: asyncio.AbstractServer | None = None
        self._path: Path | None = None
        self._open: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._silent: dict[asyncio.Task[None], None] = {}
        """Connections of ``_open`` that have not sent a request, the oldest first."""

    async def listen(self, name: str) -> None:
        """Listen in the user's directory; ``OSError`` e.g. if the path is longer than 107 bytes."""
        folder = user_folder()
        path, hidden = folder / f"{name}{SOCKET_SUFFIX}", folder / f".{name}"
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listening.bind(str(hidden))
            hidden.chmod(0o600)
            listening.listen(_PENDING)
            # Only now: ft-run status removes a socket that refuses connections.
            hidden.rename(path)
        except OSError:
            listening.close()
            hidden.unlink(missing_ok=True)
            raise
        self._path = path
        self._server = await asyncio.start_unix_server(
            self._serve, sock=listening, limit=_REQUEST_MAX_BYTES
        )

    async def say_last(self) -> None:
        """Send the last answer to all connected clients."""
        last = await self._answers.last() if self._open and self._answers is not None else None
        if last is not None:
            for writer in self._open.values():
                writer.write(_line(last))

    def close(self) -> None:
        """Stop listening and disconnect."""
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()
        if self._server is not None:
            self._server.close()
        for task, writer in self._open.items():
            writer.close()
            task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        peer = writer.get_extra_info("socket")
        if len(self._open) >= _CONNECTIONS_MAX and self._silent:
            oldest = next(iter(self._silent))
            self._open.pop(oldest).close()
            del self._silent[oldest]
        if len(self._open) >= _CONNECTIONS_MAX or not is_trusted(peer):
            writer.close()
            return
        self._open[task], self._silent[task] = writer, None
        if self._answers is None:
            self._answers = self._new_answers()
        try:
            while request := await reader.readline():
                self._silent.pop(task, None)
                writer.write(_line(await _answered(request, self._answers)))
                await writer.drain()
        except (ConnectionError, ValueError, asyncio.CancelledError):
            pass  # the client disconnected, its line is too long, or this agent ends
        finally:
            self._open.pop(task, None)
            self._silent.pop(task, None)
            writer.close()


@contextlib.asynccontextmanager
async def answering(
    name: str, new_answers: Callable[[], LocalAnswers], note: Callable[[Event], None]
) -> AsyncIterator[None]:
    """Answer on a socket inside the context; do without it if it cannot be created."""
    local = LocalSocket(new_answers)
    try:
        await local.listen(name)
    except OSError as error:
        reason = error.strerror or str(error)
        note(LogMessage(f"ft-run status does not find this job: {reason}", Severity.DEBUG))
    try:
        yield
        await local.say_last()
    finally:
        local.close()


async def _answered(line: bytes, answers: LocalAnswers) -> dict[str, Any]:
    try:
        request = msgspec.json.decode(line, type=Request)
    except (ValueError, RecursionError) as error:
        return {"error": f"invalid request: {error}"}
    return await answers.answer(request)


def _line(answer: Mapping[str, Any]) -> bytes:
    # Unlike msgspec, json escapes lone surrogates: undecodable bytes of a path.
    return json.dumps(answer, separators=(",", ":")).encode() + b"\n"
