"""Reasons of failed handshakes, where they cannot be found out."""

import asyncio
import threading

import pytest
from ft_run.rendezvous.protocol.endpoint import Endpoint
from ft_run.rendezvous.trust.handshake_errors import handshake_error


def test_connection_is_tried_again_if_no_thread_can_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def found() -> object:
        monkeypatch.setattr(threading.Thread, "start", start)
        return await handshake_error("Socket closed", Endpoint("127.0.0.1", 1), None)

    assert asyncio.run(found()) is None
