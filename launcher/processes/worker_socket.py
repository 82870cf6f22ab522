"""A socket for requests of this node's workers to the agent; other users have no access."""

import asyncio
import os
import socket
from collections.abc import Callable

from ...training.worker.agent_socket import address_of, is_trusted

_WAITING_MAX = 128
"""Maximum number of connections that wait to be accepted."""
_CONNECTIONS_MAX = 1024
"""Far above the number of loops of a node's workers; more connections are closed immediately."""


class WorkerSocket:
    """The socket and its connections."""

    def __init__(
        self,
        what: str,
        answer: Callable[[socket.socket], object],
        gone: Callable[[socket.socket], object] = lambda _: None,
    ) -> None:
        self._what, self._answer, self._gone = what, answer, gone
        self._server: socket.socket | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._connections: set[socket.socket] = set()

    @property
    def connections(self) -> tuple[socket.socket, ...]:
        """Return the open connections."""
        return tuple(self._connections)

    def listen(self, loop: asyncio.AbstractEventLoop) -> None:
        """Listen for workers; without effect if that fails."""
        server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            server.bind(address_of(self._what, os.getpid()))
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
        if len(self._connections) >= _CONNECTIONS_MAX or not is_trusted(connection):
            connection.close()
            return
        connection.setblocking(False)
        assert self._loop is not None
        self._connections.add(connection)
        self._loop.add_reader(connection, self._answer, connection)

    def hang_up(self, connection: socket.socket) -> None:
        """Close a connection, if it is still open."""
        if connection in self._connections:
            assert self._loop is not None
            self._loop.remove_reader(connection)
            self._connections.remove(connection)
            connection.close()
            self._gone(connection)

    def close(self) -> None:
        """Close the socket and all connections."""
        if self._loop is not None and self._server is not None:
            self._loop.remove_reader(self._server)
            self._server.close()
            self._server = None
        for connection in self.connections:
            self.hang_up(connection)
