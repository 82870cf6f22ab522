"""The socket for requests of workers."""

import asyncio
import os
import socket

import pytest
from ft_run.launcher.processes import worker_socket
from ft_run.launcher.processes.worker_socket import WorkerSocket
from ft_run.training.worker.agent_socket import address_of


def test_connections_over_the_limit_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_socket, "_CONNECTIONS_MAX", 2)
    name = "test-of-the-limit"

    def opened() -> socket.socket:
        client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        client.setblocking(False)
        client.connect(address_of(name, os.getpid()))
        return client

    async def scene() -> None:
        loop = asyncio.get_running_loop()
        server = WorkerSocket(name, lambda connection: connection.send(connection.recv(9)))
        server.listen(loop)
        first, second, third = clients = [opened() for _ in range(3)]
        assert await loop.sock_recv(third, 9) == b""
        for client in (first, second):
            client.send(b"a")
            assert await loop.sock_recv(client, 9) == b"a"
        server.hang_up(server.connections[0])
        clients.append(fourth := opened())
        fourth.send(b"b")
        assert await loop.sock_recv(fourth, 9) == b"b"
        server.close()
        for client in clients:
            client.close()

    asyncio.run(asyncio.wait_for(scene(), 60))
