"""``--preemption-notice``: waits for a preemption notice of a cloud or a file."""

import asyncio
import math
import os
from collections.abc import Awaitable, Callable, Mapping

from ...events.event import Event
from ...events.node import PreemptionNoticesUnavailable
from .clouds import aws, azure, google
from .metadata import MetadataError, Service
from .notice import PreemptionNotice

CLOUDS = ("gcp", "aws", "azure")
FILE_S = 30.0
"""Time from the file's creation to the end of this machine, if the file does not contain it."""
_FILE_LONGEST_S = 86400.0
_FILE_MAX = 4096
_FILE_EVERY_S = 0.5
_AGAIN_S = (1.0, 2.0, 5.0, 10.0, 30.0)
"""The delay after consecutive failures."""
_ADDRESS = "169.254.169.254"
_DMI = "/sys/class/dmi/id"
_VENDORS = {
    "gcp": ("sys_vendor", "Google"),
    "aws": ("sys_vendor", "Amazon EC2"),
    "azure": ("chassis_asset_tag", "7783-7084-3265-9085-8269-3286-77"),
}
"""The firmware (DMI) file that identifies the cloud, and its content."""


async def watch(
    source: str,
    environ: Mapping[str, str],
    found: Callable[[PreemptionNotice], None],
    tell: Callable[[Event], None],
    dmi: str = _DMI,
) -> None:
    """Wait for a notice, without a time limit; report only the first error."""
    cloud = source
    if source == "auto":
        cloud = cloud_of(dmi)
        if not cloud:
            tell(PreemptionNoticesUnavailable(source, f"{dmi} names none of {', '.join(CLOUDS)}"))
            return
    if cloud.startswith("file:"):
        seconds = await _file(cloud.removeprefix("file:"))
    else:
        seconds = await _persistently(_asker(cloud, environ), source, tell)
    found(PreemptionNotice(f"notice of {cloud}", seconds))


def cloud_of(dmi: str) -> str:
    """Return the cloud of this machine according to its firmware; empty if unknown."""
    for cloud, (name, word) in _VENDORS.items():
        if _content(os.path.join(dmi, name)) == word:
            return cloud
    return ""


def _content(path: str) -> str | None:
    """Return the content of a small file; None if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(_FILE_MAX).decode("ascii", "replace").strip()
    except OSError:
        return None


def _asker(cloud: str, environ: Mapping[str, str]) -> Callable[[], Awaitable[float]]:
    if cloud == "gcp":  # this variable is from Google's libraries, the next one from AWS's
        service = _service(environ.get("GCE_METADATA_HOST") or _ADDRESS)
        return lambda: google(service)
    if cloud == "aws":
        where = environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", "").removeprefix("http://")
        service = _service(where.strip("/") or _ADDRESS)
        return lambda: aws(service)
    service = _service(_ADDRESS)
    return lambda: azure(service)


def _service(where: str) -> Service:
    host, colon, port = where.rpartition(":")
    if not colon or not port.isdecimal() or not port.isascii() or int(port) > 65535:
        return Service(where.strip("[]"), 80)
    return Service(host.strip("[]"), int(port))


async def _persistently(
    ask: Callable[[], Awaitable[float]], source: str, tell: Callable[[Event], None]
) -> float:
    failures = 0
    while True:
        try:
            return await ask()
        except MetadataError as error:
            if not failures:
                tell(PreemptionNoticesUnavailable(source, str(error)))
        await asyncio.sleep(_AGAIN_S[min(failures, len(_AGAIN_S) - 1)])
        failures += 1


async def _file(path: str) -> float:
    """Wait for the file; return the seconds that it contains."""
    while (text := _content(path)) is None:  # noqa: ASYNC110 - any file system, even network ones
        await asyncio.sleep(_FILE_EVERY_S)
    try:
        seconds = float(text)
    except ValueError:
        return FILE_S
    return min(max(seconds, 0.0), _FILE_LONGEST_S) if not math.isnan(seconds) else FILE_S
