"""A socket at which workers of this node speak to the agent, and no process of another user."""

import asyncio
import socket
from collections.abc import Callable

from ...training.worker.agent_socket import is_trusted

_WAITING_MAX = 128
"""Workers that ask at the same moment."""


class WorkerSocket:
    """The socket and its connections; ``close`` it."""

    def __init__(
        self,
        answer: Callable[[socket.socket], object],
        gone: Callable[[socket.socket], object] = lambda _: None,
    ) -> None:
        """Listen to nothing yet.

        Args:
            answer: is called with a connection that there is something to read of.
            gone: is called with a connection that is closed.
        """
        self._answer, self._gone = answer, gone
        self._server: socket.socket | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._connections: set[socket.socket] = set()

    @property
    def connections(self) -> tuple[socket.socket, ...]:
        """Those that are open."""
        return tuple(self._connections)

    def listen(self, loop: asyncio.AbstractEventLoop, address: bytes) -> None:
        """Answer workers that ask; where that is not possible, none is answered."""
        server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            server.bind(address)
            server.listen(_WAITING_MAX)
        except OSError:
            server.close()
            return
        server.setblocking(False)
        self._server, self._loop = server, loop
        loop.add_reader(server, self._accept, server)

    def _accept(self, server: socket.socket) -> None:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        if not is_trusted(connection):
            connection.close()
            return
        connection.setblocking(False)
        assert self._loop is not None
        self._connections.add(connection)
        self._loop.add_reader(connection, self._answer, connection)

    def hang_up(self, connection: socket.socket) -> None:
        """Close a connection, if that was not done yet."""
        if connection in self._connections:
            assert self._loop is not None
            self._loop.remove_reader(connection)
            self._connections.remove(connection)
            connection.close()
            self._gone(connection)

    def close(self) -> None:
        """Close everything."""
        if self._loop is not None and self._server is not None:
            self._loop.remove_reader(self._server)
            self._server.close()
            self._server = None
        for connection in self.connections:
            self.hang_up(connection)
