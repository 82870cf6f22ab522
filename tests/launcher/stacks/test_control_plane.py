"""Dumps from a worker's control-plane server, which is a server of the test."""

import asyncio
import pickle
import socket
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

import pytest
from ft_run.launcher.stacks import control_plane
from ft_run.launcher.stacks.control_plane import ControlPlane
from ft_run.tests.rendezvous.diagnosis.test_verdicts import entry, new_dump

PID = 77


def dump_of(backend: str) -> dict[str, Any]:
    one = entry(0, "0:dp", 1, "all_reduce", is_done=True, backend=backend)
    return {**new_dump(), "entries": [one]}


class Server:
    """As torch's: it answers first, and writes all dumps to one file, bit by bit."""

    def __init__(self, folder: Path, pid: int = PID) -> None:
        self.path, self.file = f"{folder}/c{pid}", folder / "dump_3"
        self.requests: list[str] = []
        self.refused: set[str] = set()
        """Names of backends, as they are in the request."""
        self.is_busy = False
        """Whether requests are accepted and not answered."""
        self._writing: list[asyncio.Task[None]] = []
        self._writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> "Server":
        self._server = await asyncio.start_unix_server(self._answer, self.path)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await asyncio.gather(*self._writing)
        for writer in self._writers:
            writer.close()
            await writer.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        target = head.split()[1].removeprefix("/handler/")
        self.requests.append(target)
        if self.is_busy:
            return
        handler, _, argument = target.partition("?")
        backend = argument.partition("=")[2]
        status, content = b"200 OK", b""
        if handler == "dump_nccl_trace_pickle":
            content = pickle.dumps(dump_of("nccl"), protocol=2)
        elif backend in self.refused:
            status = b"503 Service Unavailable"
        else:
            self._writing.append(asyncio.create_task(self._write(backend)))
        writer.write(b"HTTP/1.1 %s\r\nConnection: close\r\n\r\n%s" % (status, content))
        writer.close()

    async def _write(self, backend: str) -> None:
        data = pickle.dumps(dump_of(backend), protocol=2)
        for end in (0, 100, 200, len(data)):
            self.file.write_bytes(data[:end])
            await asyncio.sleep(0.1)


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 60.0))


async def dumps(
    folder: Path, *backends: str, environ: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return which dump was read for each backend."""
    plane = ControlPlane(environ or {"FT_RUN_RECORDER_SOCKETS": f"{folder}/c"})
    assert plane.ask(3, PID, backends, f"{folder}/dump_3")
    await asyncio.wait(plane._asked.values())
    found = plane.finished()
    assert not plane.finished(), "each is returned once"
    return {backend: dump["entries"][0]["profiling_name"] for backend, dump in found[3].items()}


def test_each_dump_is_read_before_the_file_is_overwritten(tmp_path: Path) -> None:
    async def test() -> None:
        (tmp_path / "dump_3").write_bytes(pickle.dumps(dump_of("nccl2"), protocol=2))
        async with Server(tmp_path) as server:
            found = await dumps(tmp_path, "nccl2", "nccl-lazy", "nccl")
        assert found == {
            "nccl": "nccl:all_reduce",
            "nccl-lazy": "nccl-lazy:all_reduce",
            "nccl2": "nccl2:all_reduce",
        }
        assert server.requests == [
            "dump_nccl_trace_pickle?includestacktraces=false",
            "fr_dump_file?backend=nccl-lazy",
            "fr_dump_file?backend=nccl2",
        ]

    run(test)


def test_backend_without_a_recorder_has_no_dump(tmp_path: Path) -> None:
    async def test() -> None:
        async with Server(tmp_path) as server:
            server.refused = {"nccl-lazy"}
            assert await dumps(tmp_path, "nccl-lazy", "nccl2") == {"nccl2": "nccl2:all_reduce"}

    run(test)


def test_names_of_backends_are_quoted(tmp_path: Path) -> None:
    async def test() -> None:
        async with Server(tmp_path) as server:
            server.refused = {"a%20%26x%3D%0D%0A"}
            assert not await dumps(tmp_path, "a &x=\r\n")
            assert server.requests == ["fr_dump_file?backend=a%20%26x%3D%0D%0A"]

    run(test)


def test_old_file_is_not_taken_for_the_dump(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_plane, "DUMPS_S", 0.5)

    async def test() -> None:
        (tmp_path / "dump_3").write_bytes(pickle.dumps(dump_of("nccl2"), protocol=2))
        async with Server(tmp_path) as server:
            server.is_busy = True
            assert not await dumps(tmp_path, "nccl2")
            assert server.requests

    run(test)


def leave_socket(path: Path) -> None:
    """As a process does that is killed."""
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(path))


def test_nothing_is_requested_without_a_server(tmp_path: Path) -> None:
    async def test() -> None:
        plane = ControlPlane({"FT_RUN_RECORDER_SOCKETS": f"{tmp_path}/c"})
        assert not plane.ask(3, PID, ["nccl2"], "")
        async with Server(tmp_path):
            assert not ControlPlane({}).ask(3, PID, ["nccl2"], "")
        leave_socket(tmp_path / f"c{PID}")
        assert not plane.ask(3, PID, ["nccl2"], ""), "its process has ended"

    run(test)
