"""Reads preemption notices from the metadata services of three clouds, as documented by them.

Each function returns when this machine is being preempted, and raises ``MetadataError`` if the
service cannot be queried. The polling intervals follow the clouds' recommendations.

- Google: ``instance/preempted`` becomes ``TRUE``; 30 s later the machine is off. A request can wait
  for the change.
- AWS: ``spot/instance-action`` does not exist until 2 min before the action; then it contains the
  action and its time. Requests carry a token (IMDSv2).
- Azure: ``scheduledevents`` lists events of this machine and its neighbors, 30 s before.
"""

import asyncio
import time
from calendar import timegm
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from typing import TypeVar
from urllib.parse import quote

import msgspec
from msgspec import Struct

from .metadata import MetadataError, Reply, Service

GOOGLE_S = AZURE_S = 30.0
AWS_S = 120.0
"""Time from the notice to the end of the machine, if the notice does not contain it."""
_LONGEST_S = 900.0
_LONG_POLL_S = 60
_TOKEN_S = 21600
_AZURE_FIRST_S = 150.0
"""The first request enables the service, which takes up to 2 minutes."""

_T = TypeVar("_T")


class _Action(Struct, frozen=True):
    time: str = ""


class _Event(Struct, frozen=True, rename="pascal"):
    event_type: str
    resources: tuple[str, ...] = ()
    not_before: str = ""


class _Events(Struct, frozen=True, rename="pascal"):
    events: tuple[_Event, ...] = ()


_FLAVOR = {"Metadata-Flavor": "Google"}
_AZURE = {"Metadata": "true"}
_AZURE_ENDS = ("Preempt", "Terminate")


async def google(service: Service) -> float:
    """Wait for a notice of Google; return the seconds until the machine is stopped."""
    path, answer_s = "/computeMetadata/v1/instance/preempted", 5.0
    while True:
        reply = await service.get(path, _FLAVOR, answer_s)
        if reply.headers.get("metadata-flavor") != "Google":
            raise MetadataError("not the metadata service of Google")
        _expect(reply, 200)
        if reply.body.strip() == "TRUE":
            return GOOGLE_S
        etag = quote(reply.headers.get("etag", "0"), safe="")
        wait = f"?wait_for_change=true&timeout_sec={_LONG_POLL_S}&last_etag={etag}"
        path, answer_s = f"/computeMetadata/v1/instance/preempted{wait}", _LONG_POLL_S + 10.0


async def aws(service: Service, every_s: float = 5.0) -> float:
    """Wait for a notice of AWS; return the seconds until the machine is stopped."""
    token = ""
    while True:
        if not token:
            ttl = {"X-aws-ec2-metadata-token-ttl-seconds": str(_TOKEN_S)}
            reply = await service.get("/latest/api/token", ttl, method="PUT")
            _expect(reply, 200)
            token = reply.body.strip()
        reply = await service.get(
            "/latest/meta-data/spot/instance-action", {"X-aws-ec2-metadata-token": token}
        )
        if reply.status == 401:  # the token has expired
            token = ""
            continue
        if reply.status != 404:
            _expect(reply, 200)
            return _until(AWS_S, _aws_time, _read(reply, _Action).time)
        await asyncio.sleep(every_s)


async def azure(service: Service, every_s: float = 1.0) -> float:
    """Wait for a notice of Azure; return the seconds until the machine is stopped."""
    path = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
    reply = await service.get(path, _AZURE)
    _expect(reply, 200)
    name, answer_s = reply.body.strip(), _AZURE_FIRST_S
    while True:
        path = "/metadata/scheduledevents?api-version=2020-07-01"
        reply = await service.get(path, _AZURE, answer_s)
        answer_s = 5.0
        _expect(reply, 200)
        for event in _read(reply, _Events).events:
            if event.event_type in _AZURE_ENDS and name in event.resources:
                return _until(AZURE_S, _azure_time, event.not_before)
        await asyncio.sleep(every_s)


def _expect(reply: Reply, status: int) -> None:
    if reply.status != status:
        raise MetadataError(f"the answer has status {reply.status}, not {status}")


def _read(reply: Reply, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(reply.body, type=kind)
    except (ValueError, RecursionError) as error:
        raise MetadataError(f"the answer is invalid: {error}") from None


def _aws_time(text: str) -> float:
    return timegm(time.strptime(text, "%Y-%m-%dT%H:%M:%SZ"))


def _azure_time(text: str) -> float:
    return parsedate_to_datetime(text).timestamp()


def _until(usual_s: float, read: Callable[[str], float], text: str) -> float:
    """Return the seconds until a time; the cloud's default if the time cannot be parsed."""
    try:
        left_s = read(text) - time.time()
    except (ValueError, TypeError, OverflowError):
        return usual_s
    return min(max(left_s, 1.0), _LONGEST_S)
