"""The local socket of an agent, and what finds it."""

import asyncio
import contextlib
import json
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ft_run.errors import RendezvousError, UsageError
from ft_run.events.event import Event, Severity
from ft_run.launcher.agent.local_answers import LocalAnswers, Request
from ft_run.launcher.agent.local_socket import LocalSocket, answering
from ft_run.launcher.commands import local_jobs
from ft_run.launcher.commands.local_jobs import (
    About,
    Answer,
    LocalCalls,
    LocalJob,
    connect,
    distinct,
    find_jobs,
    named,
)
from ft_run.launcher.machine import user_folder
from msgspec import convert

ABOUT = {"job_id": "j", "endpoints": []}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of this user's agents."""
    monkeypatch.setattr(user_folder, "_shared_folder", lambda: tmp_path / "own")
    return tmp_path / "own"


class Answers(LocalAnswers):
    def __init__(self) -> None:
        """Ask no master."""

    async def answer(self, request: Request) -> dict[str, Any]:
        return {"job": ABOUT} if request.ask == "job" else {"error": "not here"}

    async def last(self) -> dict[str, Any]:
        return {"status": {"phase": "over"}}


def test_what_agents_say_is_found_and_dead_sockets_are_removed(folder: Path) -> None:
    async def scene() -> None:
        one, two = LocalSocket(Answers), LocalSocket(Answers)
        await one.listen("one")
        await two.listen("two")
        dead = socket.socket(socket.AF_UNIX)
        dead.bind(str(folder / "dead.sock"))
        dead.close()
        assert stat.S_IMODE((folder / "one.sock").stat().st_mode) == 0o600
        jobs = await find_jobs()
        assert [job.about for job in jobs] == [convert(ABOUT, About)] * 2
        assert {job.pid for job in jobs} == {os.getpid()}
        assert set(os.listdir(folder)) == {"one.sock", "two.sock"}
        assert (await jobs[0].ask(60, ask="job")).job == convert(ABOUT, About)
        with pytest.raises(RendezvousError, match="answers: not here"):
            await jobs[0].ask(60, ask="stacks")
        one.close()
        two.close()
        assert os.listdir(folder) == []
        with pytest.raises(RendezvousError, match="has ended"):
            await jobs[0].ask(60, ask="job")

    asyncio.run(scene())


def test_those_that_are_connected_receive_the_last_answer(folder: Path) -> None:
    async def scene() -> None:
        async with answering("a", Answers, lambda _: None):
            watcher = await connect(folder / "a.sock")
            assert await watcher.ask(ask="job") == Answer(convert(ABOUT, About))
        assert await watcher.receive() == Answer(status={"phase": "over"})
        with pytest.raises(RendezvousError, match="has ended"):
            await watcher.receive()
        watcher.close()

    asyncio.run(scene())
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    "line",
    [
        *(b"\n", b"[1]\n", b"\xff\n", b"{}" * 9 + b"\n", b"[" * 50_000 + b"\n"),
        *(b'{"ranks":[[0]]}\n', b'{"ask":[]}\n'),
    ],
    ids=len,
)
def test_a_request_that_is_none_is_refused(folder: Path, line: bytes) -> None:
    async def scene() -> None:
        local = LocalSocket(Answers)
        await local.listen("a")
        reader, writer = await asyncio.open_unix_connection(folder / "a.sock")
        writer.write(line)
        assert "invalid request" in json.loads(await reader.readline())["error"]
        writer.write(b"x" * 1_000_000)  # no line at all: it is disconnected
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()
        local.close()

    asyncio.run(scene())


def test_more_connections_than_a_few_are_closed(folder: Path) -> None:
    async def scene() -> None:
        local = LocalSocket(Answers)
        await local.listen("a")
        opened = [await connect(folder / "a.sock") for _ in range(16)]
        for one in opened:
            await one.ask(ask="job")
        more = await connect(folder / "a.sock")
        with pytest.raises(RendezvousError):
            await more.receive()
        local.close()
        for one in (*opened, more):
            one.close()

    asyncio.run(scene())


def test_silent_connections_make_room_and_others_stay(folder: Path) -> None:
    async def scene() -> None:
        local = LocalSocket(Answers)
        await local.listen("a")
        watching = await connect(folder / "a.sock")
        await watching.ask(ask="job")
        silent = [await connect(folder / "a.sock") for _ in range(40)]
        assert [job.about for job in await find_jobs()] == [convert(ABOUT, About)]
        assert await watching.ask(ask="job") == Answer(convert(ABOUT, About))
        local.close()
        for one in (watching, *silent):
            one.close()

    asyncio.run(scene())


@pytest.mark.parametrize("answer", [b'{"job":[3]}', b'{"job":{"job_id":7}}', b"[" * 50_000, b"{}"])
def test_a_socket_with_another_answer_hides_no_job(folder: Path, answer: bytes) -> None:
    async def nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(answer + b"\n")
        writer.close()

    async def scene() -> None:
        local = LocalSocket(Answers)
        await local.listen("a")
        other = await asyncio.start_unix_server(nonsense, folder / "b.sock")
        assert [job.about for job in await find_jobs()] == [convert(ABOUT, About)]
        local.close()
        other.close()

    asyncio.run(scene())


@pytest.mark.parametrize(
    "answer", [b"[3]", b"[" * 50_000, b"{}", b'{"status":[3]}', b'{"stacks":"a"}', b'{"error":{}}']
)
def test_invalid_answers_are_one_error(folder: Path, answer: bytes) -> None:
    async def nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(answer + b"\n")
        writer.close()

    folder.mkdir(mode=0o700)

    async def scene() -> None:
        other = await asyncio.start_unix_server(nonsense, folder / "b.sock")
        calls = LocalCalls(LocalJob(folder / "b.sock", 1, None), 60)
        for request in (calls.status(), calls.stacks([])):
            with pytest.raises(RendezvousError, match="gives no valid answer"):
                await request
        other.close()

    asyncio.run(scene())


def test_nothing_is_made_for_a_job_that_nobody_asks(folder: Path) -> None:
    async def scene() -> None:
        def new_answers() -> Answers:
            raise AssertionError

        async with answering("a", new_answers, lambda _: None):
            pass

    asyncio.run(scene())
    assert list(folder.iterdir()) == []


def test_a_path_that_is_too_long_is_a_line_for_those_that_debug(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 100)
    monkeypatch.setattr(user_folder, "_shared_folder", lambda: long)
    events: list[Event] = []

    async def scene() -> None:
        async with answering("a", Answers, events.append):
            pass

    asyncio.run(scene())
    (event,) = events
    assert event.severity is Severity.DEBUG
    assert "AF_UNIX path too long" in str(event)
    assert list(long.iterdir()) == []


STRANGER = """
import os, socket, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
with socket.socket(socket.AF_UNIX) as channel:
    channel.settimeout(60)
    channel.connect(sys.argv[1])
    try:
        channel.sendall(b'{"ask": "job"}\\n')
        print(channel.recv(100))
    except OSError:  # it was closed before
        print(b"")
"""


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
def test_another_user_is_refused_whatever_the_mode_says(tmp_path: Path) -> None:
    os.chmod("/tmp", 0o1777)

    async def scene(path: Path) -> bytes:
        local = LocalSocket(Answers)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(user_folder, "_shared_folder", lambda: path)
            await local.listen("a")
        os.chmod(path, 0o777)
        os.chmod(path / "a.sock", 0o777)
        own = await connect(path / "a.sock")
        assert (await own.ask(ask="job")).job == convert(ABOUT, About)
        own.close()
        stranger = await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-c", STRANGER, path / "a.sock", stdout=subprocess.PIPE
        )
        out, _ = await stranger.communicate()
        local.close()
        return out

    path = Path(f"/tmp/ft-run-test-{os.getpid()}")
    assert asyncio.run(scene(path)) == b"b''\n"
    path.rmdir()


def test_an_agent_that_does_not_answer_is_listed_by_its_process(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_jobs, "_ANSWER_S", 0.05)
    folder.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as stopped:
        stopped.bind(str(folder / "stopped.sock"))
        stopped.listen()

        async def scene() -> None:
            (job,) = await find_jobs()
            assert (job.pid, job.about) == (os.getpid(), None)
            with pytest.raises(RendezvousError, match="may be stopped"):
                await job.ask(0.05, ask="status")

        asyncio.run(scene())


def job(pid: int, job_id: str, *endpoints: str, hosts: bool = True) -> LocalJob:
    about = About(job_id=job_id, endpoints=endpoints, hosts_master=hosts)
    return LocalJob(Path("x"), pid, about)


def test_agents_of_one_job_are_one_and_that_with_the_master_answers() -> None:
    node, master = job(1, "a", "h:1", hosts=False), job(2, "a", "[::]:1")
    alone, other = job(3, "none"), job(4, "none")
    jobs = [node, master, alone, other]
    assert distinct(jobs) == [master, alone, other]
    assert named(jobs, "a") is master
    assert named(jobs, "1") is node
    assert named(jobs, "b") is None
    assert named([*jobs, job(5, "4")], "4") == job(5, "4")
    with pytest.raises(UsageError, match=r"2 jobs .* 'none'; expected the process ID .*: 3, 4\."):
        named(jobs, "none")
