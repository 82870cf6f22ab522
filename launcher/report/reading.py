"""Reads the event files of all nodes of a job, merged by time.

Files can be damaged, e.g. truncated by a full disk: lines that are not events of this version are
counted and skipped.
"""

import heapq
import json
import os
import re
import resource
import stat
from collections.abc import Iterator, Mapping, Sequence
from io import BufferedReader
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct, field

from ...errors import UsageError
from ...events.record import VERSION, Record
from ...events.workers import RoundProgressed
from ..flags.values import shown
from ..history.accounting import seconds_of
from .validity import Check, check, checks

_LINE_MAX: Final = 1 << 24
"""Limit for the bytes of a line, longer than any event."""
_DIGITS_MAX: Final = 18
_ODD: Final = re.compile(
    rb"NaN|Infinity|(?<![\d.])\d{19}|[\s:,\[]-?\d+(?:\.\d+)?[eE]\+?\d|\\u[dD][89a-fA-F]"
)
"""Lines with a number that may be too large or not finite, or with half a surrogate pair."""
_ALL_MAX_BYTES: Final = 1 << 20
"""Files up to this size keep all progress reports; it is enough for about two days."""
_READ_BYTES: Final = 1 << 20
_PROGRESSED: Final = b'"round.progressed"'
_RENAMED: Final = b'"agent.renamed"'
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", re.ASCII)
_UNNAMED_MAX: Final = 100
"""A start has a few; the limit avoids holding a file in memory that never names its node."""
_SAME_START_S: Final = 2.0
_EXPECTED: Final = "expected files of --events, or a folder that has events*.jsonl"


class _Progress(RoundProgressed, frozen=True, kw_only=True):
    """A progress report; reports of one stretch differ only in amounts."""

    kind: str = field(name="name")
    version: int
    node: str


class _Event(Struct, frozen=True):
    """The fields that all events have."""

    time: str
    uptime_s: Annotated[float, Meta(ge=0, lt=1e9)]
    name: str
    version: int
    job: str
    attempt: int
    node: str
    text: str


_is_event = check(_Event)


class Reading(Struct):
    """Counts of records read and skipped."""

    events: int = 0
    unknown: int = 0
    """Events that a later release added."""
    torn: int = 0
    """Lines that are not events, e.g. incomplete ones, or have fields of other types."""
    lost: int = 0
    """Events that could not be written, as counted by ``events.lost``."""
    files: dict[str, set[str]] = field(default_factory=dict)
    """The files that contain events of a node, by node."""

    @property
    def note(self) -> str:
        """Return a line that describes missing events; empty if none."""
        parts = {
            "of a later release skipped": self.unknown,
            "that could not be written when they happened": self.lost,
        }
        found = [f"{count} event(s) {what}" for what, count in parts.items() if count]
        if self.torn:
            found.append(f"{self.torn} incomplete or invalid line(s) skipped")
        return "; ".join(found)


def event_files(paths: Sequence[str]) -> list[str]:
    """Return the files of some paths: a directory stands for all ``events*.jsonl`` under it.

    A rotated file (``PATH.1``) comes before its successor, even if it was not named.

    Raises:
        UsageError: If a path does not exist, or a directory contains no such file.
    """
    found: dict[str, None] = {}
    for path in paths:
        if os.path.isdir(path):
            inside = sorted(str(one) for one in Path(path).rglob("events*.jsonl*"))
            named = [one for one in inside if re.search(r"\.jsonl(\.1)?$", one)]
            if not named:
                raise UsageError(f"no event files in {shown(path)}: {_EXPECTED}.")
        elif os.path.exists(path):
            named = [path]
        else:
            raise UsageError(f"cannot read events from {shown(path)}: no such file; {_EXPECTED}.")
        for one in named:
            if os.path.exists(f"{one}.1"):
                found[os.path.realpath(f"{one}.1")] = None
            found[os.path.realpath(one)] = None
    return list(found)


def merged(files: Sequence[str], reading: Reading, job: str | None = None) -> Iterator[Record]:
    """Yield the records of all files in order of time, without duplicates; count in ``reading``.

    If ``job`` is None, the files must contain events of only one job.

    Raises:
        UsageError: If a file cannot be read or has no event, or there are several jobs.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # all files are open simultaneously
    known = checks()
    streams = [_records(path, reading, known, job) for path in files]
    jobs: set[str] = set()
    at = ""
    seen: set[bytes] = set()
    for line, record in heapq.merge(*streams, key=lambda found: found[1]["time"]):
        if record["time"] != at:
            at = record["time"]
            seen.clear()
        if line in seen:
            continue  # a node may have written it to two files
        seen.add(line)
        jobs.update(filter(None, [record["job"]]))  # unknown to ft-run master before its first node
        if len(jobs) > 1:
            several = " and ".join(shown(one) for one in sorted(jobs))
            raise UsageError(
                f"events of several jobs, {several}: expected those of one job, or --rdzv-id ID."
            )
        reading.events += record.get("reports", 1)
        yield record
    if not reading.events:
        of = f" of job {shown(job)}" if job is not None else ""
        raise UsageError(f"no events{of} in {shown(', '.join(files))}: {_EXPECTED}.")


def _records(
    path: str, reading: Reading, known: Mapping[str, Check], job: str | None
) -> Iterator[tuple[bytes, Record]]:
    renamed = _renamed(path)
    has_event, torn = False, 0
    unnamed: list[tuple[bytes, dict[str, Any]]] = []
    """Records of an ``ft-run`` that does not have its node ID yet."""
    for line, reports in _thinned(path):
        record = _record(line)
        if record is None:
            torn += bool(line.strip())
            continue
        if reports > 1:
            record["reports"] = reports
        has_event = True
        if job is not None and record["job"] not in ("", job):
            continue
        is_valid = known.get(record["name"]) if record["version"] == VERSION else None
        if is_valid is None:
            reading.unknown += 1
            continue
        if not is_valid(record):
            torn += 1
            continue
        if record["name"] == "events.lost":
            reading.lost += record["lines"]
        if renamed:
            record["node"] = _name_given(record, renamed)
        unnamed.append((line, record))
        if not record["node"] and len(unnamed) < _UNNAMED_MAX:
            continue
        reading.files.setdefault(record["node"], set()).add(path)
        for _, earlier in unnamed:
            earlier["node"] = record["node"]
        yield from unnamed
        unnamed.clear()
    if unnamed:
        reading.files.setdefault("", set()).add(path)
    yield from unnamed
    if torn and not has_event:
        raise UsageError(f"no line of {shown(path)} is an event in JSON: {_EXPECTED}.")
    reading.torn += torn


def _thinned(path: str) -> Iterator[tuple[bytes, int]]:
    """Yield each line, and the number of progress reports that it represents: several if many.

    The amounts in a report are sums since the start of the round. The first and the last report of
    a stretch stay.
    """
    every = 1 + os.path.getsize(path) // _ALL_MAX_BYTES
    decode = msgspec.json.Decoder(_Progress).decode
    stretch: tuple[object, ...] = ()
    held, count = b"", 0
    for line in _lines(path):
        now: tuple[object, ...] = ()
        if every > 1 and _PROGRESSED in line:
            try:
                at = decode(line)
                now = at.kind, at.version, at.node, at.round, at.node_rank, at.doing
            except (ValueError, RecursionError):
                pass  # it is read, and counted, like any other line
        if now and now == stretch:
            held, count = line, count + 1
            if count == every:
                yield held, count
                held, count = b"", 0
            continue
        if held:
            yield held, count
        yield line, 1
        stretch, held, count = now, b"", 0
    if held:
        yield held, count


def _record(line: bytes) -> dict[str, Any] | None:
    """Return the record of a line; None if it is not one."""
    try:
        record = _strictly_read(line) if _ODD.search(line) is not None else json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if _is_event(record) and _is_time(record["time"]) else None


def _is_time(value: str) -> bool:
    if _TIME.fullmatch(value) is None:
        return False
    try:
        seconds_of(value)
    except ValueError:  # e.g. February 30
        return False
    return True


def _strictly_read(line: bytes) -> Any:
    """Return the value of a line; halves of surrogate pairs, which UTF-8 lacks, are replaced.

    Raises:
        ValueError: If it is not JSON, or a number is too large for calculations.
    """
    value = json.loads(line, parse_int=_whole, parse_float=_finite, parse_constant=_finite)
    return json.loads(json.dumps(value, ensure_ascii=False).encode(errors="replace"))


def _whole(text: str) -> int:
    if len(text) > _DIGITS_MAX:
        raise ValueError(f"invalid value {text[:40]}: expected at most {_DIGITS_MAX} digits")
    return int(text)


def _finite(text: str) -> float:
    value = float(text)
    if not abs(value) < 10.0**_DIGITS_MAX:  # rejects NaN too
        raise ValueError(f"invalid value {text[:40]}: expected less than 1e{_DIGITS_MAX}")
    return value


def _lines(path: str, containing: bytes = b"") -> Iterator[bytes]:
    try:
        # A blocking open of a FIFO would wait for a writer.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise UsageError(
                    f"cannot read events from {shown(path)}: it is not a regular file; {_EXPECTED}."
                )
            if containing and not _contains(file, containing):
                return
            while line := file.readline(_LINE_MAX):
                if containing in line:
                    yield line
    except OSError as error:
        raise UsageError(
            f"cannot read events from {shown(path)}: {error.strerror}; {_EXPECTED}."
        ) from error


def _contains(file: BufferedReader, part: bytes) -> bool:
    last = b""
    while data := file.read(_READ_BYTES):
        if part in last + data:
            file.seek(0)
            return True
        last = data[-len(part) :]
    return False


def _renamed(path: str) -> list[tuple[str, str, float]]:
    """Return the nodes that the master has renamed: the first ID, the new one, and their start."""
    found = []
    for line in _lines(path, _RENAMED):
        record = _record(line)
        if record is not None and record["name"] == "agent.renamed":
            began_s = _began_s(record)
            found.append((str(record.get("proposed")), str(record.get("given")), began_s))
    return found


def _name_given(record: Record, renamed: Sequence[tuple[str, str, float]]) -> str:
    for proposed, given, began_s in renamed:
        if record["node"] == proposed and abs(_began_s(record) - began_s) < _SAME_START_S:
            return given
    return str(record["node"])


def _began_s(record: Record) -> float:
    return seconds_of(record["time"]) - float(record["uptime_s"])
