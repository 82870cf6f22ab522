"""Tests of where the master lives."""

import asyncio
import logging
import socket
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast

import pytest
from ft_run.errors import UsageError
from ft_run.launcher.agent import Agent
from ft_run.launcher.hosting import Hosting
from ft_run.launcher.options import RendezvousOptions
from ft_run.rendezvous.endpoint import Endpoint
from ft_run.rendezvous.link import LinkEvent, LocalLink
from ft_run.rendezvous.messages import (
    PROTOCOL_VERSION,
    Attend,
    JobSpec,
    NodeSpec,
    Offer,
    Start,
)
from ft_run.tests.ports import free_port

TIMEOUT_S = 60.0
FOREIGN = "198.51.100.1"  # of a block for documentation: no host has it


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), TIMEOUT_S))


def hosting(endpoint: Endpoint | None, *, hosts_master: bool | None = None) -> Hosting:
    options = RendezvousOptions(job_id="j", endpoint=endpoint, hosts_master=hosts_master)
    return Hosting(options, lambda _text, _level: None)


@pytest.fixture
def port() -> int:
    return free_port()


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 5).close()
    except ConnectionRefusedError:
        return False
    return True


def test_standalone_has_a_master_and_no_socket() -> None:
    async def test() -> None:
        here = hosting(None)
        await here.start()
        assert here.master is not None
        assert here.where == "standalone"
        await here.stop(wait=False)

    run(test)


@pytest.mark.parametrize(
    ("host", "hosts_master", "here"),
    [
        ("127.0.0.1", None, True),
        ("127.0.0.1", True, True),
        ("127.0.0.1", False, False),
        (FOREIGN, None, False),
        (FOREIGN, False, False),
        (FOREIGN, True, True),  # a service's or a translated address in front of this host
    ],
)
def test_who_hosts_the_master(port: int, host: str, hosts_master: bool | None, here: bool) -> None:
    async def test() -> None:
        node = hosting(Endpoint(host, port), hosts_master=hosts_master)
        await node.start()
        assert (node.master is not None) is here
        assert listens(port) is here
        assert ("hosted here" in node.where) is here
        await node.stop(wait=False)
        assert not listens(port)

    run(test)


def test_of_several_agents_on_a_host_the_first_has_it(port: int) -> None:
    async def test() -> None:
        first, second = (hosting(Endpoint("127.0.0.1", port)) for _ in range(2))
        await first.start()
        await second.start()
        assert first.master is not None
        assert second.master is None
        await second.stop(wait=True)  # not its own to wait for
        assert listens(port)
        await first.stop(wait=False)

    run(test)


def test_the_agent_beside_the_master_needs_no_socket(port: int) -> None:
    async def test() -> None:
        here = hosting(Endpoint("127.0.0.1", port))
        await here.start()
        events: asyncio.Queue[LinkEvent] = asyncio.Queue()
        first = Attend(
            protocol=PROTOCOL_VERSION,
            version="1",
            job=JobSpec("j", 1, 1, 1, 0),
            node=NodeSpec("h/0", "i0", "h", "127.0.0.1", "r", 1, None),
            offer=Offer("127.0.0.1", 1000),
            claim=None,
        )
        agent = SimpleNamespace(attend=lambda: first, post=events.put_nowait)
        link = here.connect(cast(Agent, agent))
        assert isinstance(link, LocalLink)
        assert isinstance(await events.get(), Start)
        await link.close()
        await here.stop(wait=False)

    run(test)


def test_an_address_of_another_host_cannot_be_listened_at(port: int) -> None:
    async def test() -> None:
        from ft_run.rendezvous.server import check_can_bind

        with pytest.raises(UsageError, match="give an address of this host"):
            check_can_bind(Endpoint(FOREIGN, port))

    run(test)


def test_what_the_master_has_to_say_is_for_debugging() -> None:
    async def test() -> None:
        notes: list[tuple[str, int]] = []
        here = Hosting(RendezvousOptions(job_id="j"), lambda *note: notes.append(note))
        await here.start()
        assert here.master is not None
        here.master._note("x")
        assert notes == [("master: x", logging.DEBUG)]
        await here.stop(wait=False)

    run(test)
