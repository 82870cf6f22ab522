"""Notices of clouds, whose metadata services are played here as they are documented."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from email.utils import formatdate
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from ft_run.events.node import PreemptionNoticesUnavailable
from ft_run.launcher.preemption import clouds
from ft_run.launcher.preemption import watch as watching
from ft_run.launcher.preemption.metadata import BODY_MAX, MetadataError, Service
from ft_run.launcher.preemption.notice import PreemptionNotice
from ft_run.launcher.preemption.watch import cloud_of, watch

TIMEOUT_S = 30.0


class Asked(NamedTuple):
    """A request as it arrived."""

    method: str
    path: str
    headers: Mapping[str, str]


Answer = Callable[[Asked], bytes]


def reply(status: int, body: str = "", **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} Words", f"Content-Length: {len(body.encode())}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n" + body).encode()


@asynccontextmanager
async def playing(*answers: Answer) -> AsyncIterator[tuple[Service, list[Asked]]]:
    """A service that answers one request after the other, the last ones all alike."""
    asked: list[Asked] = []
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.strip().split("\r\n")
        method, path, _ = first.split()
        pairs = (line.split(": ", 1) for line in lines)
        asked.append(Asked(method, path, {name.lower(): value for name, value in pairs}))
        writer.write(answers[min(len(asked), len(answers)) - 1](asked[-1]))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield Service("127.0.0.1", port), asked
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()
        await asyncio.sleep(0)


def run(test: Callable[[], Any]) -> Any:
    return asyncio.run(asyncio.wait_for(test(), TIMEOUT_S))


# --- Google ----------------------------------------------------------------------------------


def google_says(body: str, etag: str, status: int = 200) -> Answer:
    def answer(asked: Asked) -> bytes:
        if asked.headers.get("metadata-flavor") != "Google":
            return reply(403, "Missing Metadata-Flavor:Google header.")
        return reply(status, body, Metadata_Flavor="Google", ETag=etag)

    return answer


def test_google_says_so_in_answer_to_a_request_that_waits() -> None:
    async def test() -> None:
        says = google_says("FALSE", "a1"), google_says("FALSE", "a1"), google_says("TRUE", "b2")
        async with playing(*says) as (service, asked):
            assert await clouds.google(service) == 30.0
        first, *others = asked
        assert first.path == "/computeMetadata/v1/instance/preempted"
        assert len(others) == 2
        for one in others:
            assert one.path == f"{first.path}?wait_for_change=true&timeout_sec=60&last_etag=a1"

    run(test)


def test_what_answers_for_google_must_say_that_it_is_google() -> None:
    async def test() -> None:
        async with playing(lambda _: reply(200, "TRUE")) as (service, _):
            with pytest.raises(MetadataError, match="not the metadata service of Google"):
                await clouds.google(service)

    run(test)


# --- AWS -------------------------------------------------------------------------------------


def aws_says(*actions: bytes) -> Answer:
    """Tokens that are good for three requests, and what is to be done."""
    tokens: list[str] = []
    left = list(actions)

    def answer(asked: Asked) -> bytes:
        if asked.path == "/latest/api/token":
            if asked.method != "PUT":
                return reply(405)
            assert asked.headers["x-aws-ec2-metadata-token-ttl-seconds"] == "21600"
            tokens.append(f"token-{len(tokens)}")
            return reply(200, tokens[-1])
        assert asked.path == "/latest/meta-data/spot/instance-action"
        if asked.headers.get("x-aws-ec2-metadata-token") != (tokens or [""])[-1]:
            return reply(401, "Unauthorized")
        if len(left) > 1:
            action = left.pop(0)
            if action == b"expire":
                tokens.append("another")
                return reply(401, "Unauthorized")
            return action
        return left[0]

    return answer


NOT_FOUND = reply(404, "<?xml version='1.0'?><html><h1>404 - Not Found</h1></html>")


def test_aws_says_it_two_minutes_before() -> None:
    async def test() -> None:
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 120))
        action = reply(200, json.dumps({"action": "terminate", "time": at}))
        answer = aws_says(NOT_FOUND, NOT_FOUND, b"expire", NOT_FOUND, action)
        async with playing(answer) as (service, asked):
            assert 60 < await clouds.aws(service, every_s=0.01) <= 120
        assert [one.method for one in asked] == ["PUT", *["GET"] * 3, "PUT", "GET", "GET"]

    run(test)


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        ({"action": "stop", "time": "soon"}, 120.0),
        ({"action": "stop"}, 120.0),
        ({"action": "stop", "time": "2017-09-18T08:22:00Z"}, 1.0),
        ({"action": "stop", "time": "9999-09-18T08:22:00Z"}, 900.0),
    ],
)
def test_a_time_that_cannot_be_is_not_believed(action: Mapping[str, str], expected: float) -> None:
    async def test() -> None:
        async with playing(aws_says(reply(200, json.dumps(action)))) as (service, _):
            assert await clouds.aws(service) == expected

    run(test)


# --- Azure -----------------------------------------------------------------------------------


def azure_says(*events: Sequence[Mapping[str, object]]) -> Answer:
    left = list(events)

    def answer(asked: Asked) -> bytes:
        if asked.headers.get("metadata") != "true":
            return reply(400, '{"error": "Bad request. Required metadata header not specified"}')
        if asked.path.startswith("/metadata/instance/compute/name?"):
            return reply(200, "vm_1")
        assert asked.path == "/metadata/scheduledevents?api-version=2020-07-01"
        now = left.pop(0) if len(left) > 1 else left[0]
        return reply(200, json.dumps({"DocumentIncarnation": 2, "Events": now}))

    return answer


def azure_event(kind: str, *names: str, **more: str) -> dict[str, object]:
    return {
        "EventId": "A123BC45-1234-5678-AB90-ABCDEF123456",
        "EventType": kind,
        "ResourceType": "VirtualMachine",
        "Resources": list(names),
        "EventStatus": "Scheduled",
        "NotBefore": "",
        "DurationInSeconds": -1,
        **more,
    }


def test_azure_lists_what_happens_to_this_machine_and_to_others() -> None:
    async def test() -> None:
        before = [azure_event("Preempt", "vm_0"), azure_event("Freeze", "vm_1")]
        at = formatdate(time.time() + 30, usegmt=True)
        preempted = azure_event("Preempt", "vm_0", "vm_1", NotBefore=at)
        answer = azure_says([], before, [*before, preempted])
        async with playing(answer) as (service, asked):
            assert 10 < await clouds.azure(service, every_s=0.01) <= 30
        assert len(asked) == 4

    run(test)


def test_azure_may_leave_out_the_time() -> None:
    async def test() -> None:
        async with playing(azure_says([azure_event("Preempt", "vm_1")])) as (service, _):
            assert await clouds.azure(service) == 30.0

    run(test)


# --- what goes wrong -------------------------------------------------------------------------

WRONG = {
    "an error": lambda _: reply(503, "try again"),
    "no HTTP": lambda _: b"220 mail.example ESMTP\r\n\r\n",
    "nothing": lambda _: b"",
    "an endless head": lambda _: b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 100_000,
    "half an answer": lambda _: b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf",
    "a length that is none": lambda _: b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
    "a list": lambda _: reply(200, "[1]"),
    "no JSON": lambda _: reply(200, "{" * 10_000),
    "deep JSON": lambda _: reply(200, '{"Events":' * 10_000),
    "no list": lambda _: reply(200, '{"Events": 5}'),
    "no event": lambda _: reply(200, '{"Events": [[]]}'),
    "no name": lambda _: reply(200, '{"Events": [{"EventType": "Preempt", "Resources": "vm_1"}]}'),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_answer_of_a_service_is_an_error(name: str) -> None:
    async def test() -> None:
        first = reply(200, "vm_1")
        async with playing(lambda _: first, WRONG[name]) as (service, _):
            with pytest.raises(MetadataError):
                await clouds.azure(service)

    run(test)


@pytest.mark.parametrize("head", ["", f"Content-Length: {10**12}\r\n"])
def test_an_answer_without_end_is_cut(head: str) -> None:
    async def test() -> None:
        async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writers.append(writer)
            writer.write(f"HTTP/1.1 200 OK\r\n{head}\r\n".encode() + b"x" * 2 * BODY_MAX)
            # It stays open: more could come.

        writers: list[asyncio.StreamWriter] = []
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        service = Service("127.0.0.1", server.sockets[0].getsockname()[1])
        reply = await service.get("/", {}, 20.0)
        assert len(reply.body) == BODY_MAX
        server.close()
        for writer in writers:
            writer.transport.abort()
        await asyncio.sleep(0)

    run(test)


def test_no_answer_is_not_waited_for_without_end() -> None:
    async def test() -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            service = Service("127.0.0.1", silent.getsockname()[1])
            with pytest.raises(MetadataError, match=r"no answer .* within 0.01 s"):
                await service.get("/", {}, 0.01)

    run(test)


def test_errors_are_told_once_and_a_notice_after_them_is_heard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watching, "_AGAIN_S", (0.01,))

    async def test() -> None:
        said: list[object] = []
        bad: Answer = lambda _: reply(503)  # noqa: E731 - one answer of many
        async with playing(bad, bad, google_says("TRUE", "a")) as (service, asked):
            where = f"127.0.0.1:{service._port}"
            await watch("gcp", {"GCE_METADATA_HOST": where}, said.append, said.append)
        assert len(asked) == 3
        first, last = said
        assert isinstance(first, PreemptionNoticesUnavailable)
        assert last == PreemptionNotice("notice of gcp", 30.0)

    run(test)


def test_aws_is_asked_at_the_address_that_its_own_tools_take() -> None:
    async def test() -> None:
        said: list[object] = []
        async with playing(aws_says(reply(200, '{"action": "stop"}'))) as (service, _):
            where = f"http://127.0.0.1:{service._port}/"
            variables = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": where}
            await watch("aws", variables, said.append, said.append)
        assert said == [PreemptionNotice("notice of aws", 120.0)]

    run(test)


# --- a file, and the cloud that the firmware names -------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("", 30.0), ("45\n", 45.0), ("nan", 30.0), ("-3", 0.0), ("1e99", 86400.0), ("x" * 9999, 30.0)],
)
def test_a_file_may_say_how_long_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, seconds: float
) -> None:
    monkeypatch.setattr(watching, "_FILE_EVERY_S", 0.01)

    async def test() -> None:
        said: list[object] = []
        path = tmp_path / "notice"
        task = asyncio.create_task(watch(f"file:{path}", {}, said.append, said.append))
        await asyncio.sleep(0)
        assert not said
        path.write_text(text)
        await task
        assert said == [PreemptionNotice(f"notice of file:{path}", seconds)]

    run(test)


def test_the_firmware_names_the_cloud(tmp_path: Path) -> None:
    assert cloud_of(str(tmp_path)) == ""
    (tmp_path / "sys_vendor").write_text("Amazon EC2\n")
    assert cloud_of(str(tmp_path)) == "aws"
    (tmp_path / "sys_vendor").write_text("Google\n")
    assert cloud_of(str(tmp_path)) == "gcp"
    (tmp_path / "sys_vendor").write_text("Microsoft Corporation\n")  # also of Hyper-V elsewhere
    assert cloud_of(str(tmp_path)) == ""
    (tmp_path / "chassis_asset_tag").write_text("7783-7084-3265-9085-8269-3286-77\n")
    assert cloud_of(str(tmp_path)) == "azure"


def test_no_cloud_is_told_and_the_node_runs_on(tmp_path: Path) -> None:
    said: list[object] = []
    asyncio.run(watch("auto", {}, said.append, said.append, str(tmp_path)))
    (told,) = said
    assert isinstance(told, PreemptionNoticesUnavailable)
    assert "gcp, aws, azure" in told.reason


def test_without_a_thread_a_service_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(MetadataError, match=r"127\.0\.0\.1:80: no thread can be started"):
        asyncio.run(Service("127.0.0.1", 80).get("/", {}))
