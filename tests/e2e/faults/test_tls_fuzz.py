"""A running job whose closed port hears broken handshakes, and such as never end.

10,000: FT_RUN_TLS_FUZZ=10000 pytest -s tests/e2e/faults/test_tls_fuzz.py; as many with FT_RUN_SLOW.
"""

import asyncio
import os
import random
import resource
import ssl
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from ft_run.tests.e2e.faults.test_wire_fuzz import WORKER, high_water_mb

if TYPE_CHECKING:
    from ft_run.tests.e2e.conftest import Launcher

BROKEN = int(os.environ.get("FT_RUN_TLS_FUZZ", "200"))
AT_ONCE = 64
MEMORY_MAX_MB = 400
"""Each connection that is half open takes some 30 kB for the 10 s that it has."""


class Attack:
    """Handshakes of strangers."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._random = random.Random(11)
        self._hello = _client_hello(_context())
        self._odd = [_client_hello(context) for context in _odd_contexts()]
        self.half_open: list[asyncio.StreamWriter] = []
        self._slow: list[asyncio.Task[None]] = []
        self.answers = 0

    async def run(self, handshakes: int) -> None:
        """Begin so many, the half of which are left open."""
        places = asyncio.Semaphore(AT_ONCE)

        async def one(number: int) -> None:
            async with places:
                await (self._leave_open() if number % 2 else self._break())

        await asyncio.gather(*(one(number) for number in range(handshakes)))

    def end(self) -> None:
        """Close what is open."""
        for task in self._slow:
            task.cancel()
        for writer in self.half_open:
            writer.close()

    async def _leave_open(self) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", self._port)
        begun = (b"", self._hello[:1], self._hello[:100], self._hello)
        writer.write(self._random.choice(begun))
        self.half_open.append(writer)
        if self._random.random() < 0.1:
            self._slow.append(asyncio.create_task(self._dribble(writer)))

    async def _dribble(self, writer: asyncio.StreamWriter) -> None:
        """Go on with a handshake, one byte a second."""
        for byte in self._hello:
            await asyncio.sleep(1.0)
            writer.write(bytes((byte,)))

    async def _break(self) -> None:
        kind = self._random.randrange(8)
        if kind == 0:
            await self._finish_as_a_client_without_a_certificate()
            return
        data = bytearray(self._hello)
        if kind == 1:
            data = bytearray(self._random.randbytes(500))
        elif kind == 2:
            data = bytearray(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        elif kind == 3:  # a record of 64 kB, and a handshake of 16 MB
            data = bytearray(b"\x16\x03\x01\xff\xff\x01\xff\xff\xff" + b"x" * 70_000)
        elif kind == 4:
            data = bytearray(self._random.choice(self._odd))
        else:
            for _ in range(self._random.randrange(1, 5)):
                data[self._random.randrange(len(data))] = self._random.randrange(256)
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(bytes(data[: self._random.randrange(1, len(data) + 1)]))
        try:
            writer.write_eof()
            self.answers += len(await reader.read()) > 0
        except OSError:
            pass  # the master has hung up
        finally:
            writer.close()

    async def _finish_as_a_client_without_a_certificate(self) -> None:
        context = _context(self._random.choice(("h2", "http/1.1", "")))
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port, ssl=context)
            writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0")
            assert await reader.read() == b""
            writer.close()
        except (ssl.SSLError, ConnectionError):
            pass  # the master has hung up


def _context(protocol: str = "h2") -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if protocol:
        context.set_alpn_protocols([protocol])
    return context


def _odd_contexts() -> list[ssl.SSLContext]:
    """Return clients of versions of TLS that are no longer spoken, and of another protocol."""
    contexts = [_context("http/1.1"), _context("")]
    for version in (ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            old = _context()
            old.set_ciphers("ALL:@SECLEVEL=0")
            old.minimum_version = old.maximum_version = version
        contexts.append(old)
    return contexts


def _client_hello(context: ssl.SSLContext) -> bytes:
    outgoing = ssl.MemoryBIO()
    begun = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="x")
    with pytest.raises(ssl.SSLWantReadError):
        begun.do_handshake()
    return outgoing.read()


@pytest.mark.parametrize(
    "handshakes", [BROKEN, pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.long])]
)
def test_a_running_job_does_not_care_what_knocks(
    ft: "Launcher", free_port: int, handshakes: int
) -> None:
    endpoint, gate, token = f"127.0.0.1:{free_port}", ft.folder / "gate", ft.folder / "job.token"
    assert ft.run("token", token).process.returncode == 0
    closed = ("--token-file", token)
    master = ft.start("master", "--bind", endpoint, *closed)
    master.expect("listening at")
    agents = [
        ft.start(
            "--nnodes", 2, "--rdzv-id", f"tls-{ft.mark}", "--rdzv-endpoint", endpoint, *closed,
            "--max-restarts", 2, ft.script(WORKER), gate,
        )
        for _ in range(2)
    ]  # fmt: skip
    for agent in agents:
        agent.expect("^up ")
    before = high_water_mb(master.pid)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    try:
        attack, took_s, asked_s = asyncio.run(_attacked(free_port, handshakes, ft, endpoint, token))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    after = high_water_mb(master.pid)
    print(
        f"\n{handshakes} handshakes, {len(attack.half_open)} of them left open, in {took_s:.1f} s:"
        f" the master took {before} MB before and {after} MB at most; status meanwhile after"
        f" {asked_s:.2f} s, with the start of the command"
    )
    assert after < MEMORY_MAX_MB
    gate.touch()
    assert [agent.wait() for agent in agents] == [0, 0]
    assert master.wait() == 0
    assert "round=1" not in master.stderr
    assert "Traceback" not in master.stderr
    for agent in agents:
        assert agent.stdout.count("up ") == 1
        assert "no connection" not in agent.stderr


async def _attacked(
    port: int, handshakes: int, ft: "Launcher", endpoint: str, token: Path
) -> tuple[Attack, float, float]:
    attack, began = Attack(port), time.monotonic()
    await attack.run(handshakes)
    took_s, asked = time.monotonic() - began, time.monotonic()
    status = await asyncio.to_thread(ft.run, "status", endpoint, "--token-file", token)
    asked_s = time.monotonic() - asked
    attack.end()
    assert "round 0" in status.stdout, status.stderr
    assert "restarts 0/2" in status.stdout
    return attack, took_s, asked_s
