"""``--tune-file``: values that a job has found, for the next start of the same job.

JSON with a version, the fingerprint of the job, its values and a date. The values apply to a job
with the same fingerprint: script, arguments, torch, devices, CPU limit, workers and nodes.
"""

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from ...events.event import Event
from ...events.tuning import TuneFileIgnored, TuneFileNotWritten
from ..machine.accelerators import device_names
from ..machine.cpu_limit import read_cpu_limit
from ..options import LaunchOptions, ScriptMode
from ..processes.regular_file import head_of_file

_READ_MAX_BYTES = 1 << 20


_Setting = Annotated[int, Meta(ge=1, le=1000)]
_Module = Annotated[str, Meta(pattern=r"\A[^\W\d]\w*(\.[^\W\d]\w*)*\Z")]


class Settings(Struct, frozen=True):
    """Loader settings of ``--auto-tune on``; others, of earlier versions, are ignored."""

    num_workers: _Setting | UnsetType = UNSET
    prefetch_factor: _Setting | UnsetType = UNSET

    def by_name(self) -> dict[str, int]:
        """Return the settings that have a value."""
        found: dict[str, int] = msgspec.to_builtins(self)
        return found


class TunedValues(Struct, frozen=True):
    """The values that a job has found."""

    micro_batch: Annotated[int, Meta(ge=0, le=10**9)] = 0
    """Value of ``--on-failure device-oom=shrink``; 0 if none."""
    preload: Annotated[tuple[_Module, ...], Meta(max_length=100)] = ()
    """Modules of ``--preload auto``."""
    settings: Settings = Settings()
    gain: float = 0.0
    """Increase in steps per second with the settings, as a share."""


class _Content(Struct, frozen=True):
    version: Literal[1]
    fingerprint: dict[str, Any]
    values: TunedValues
    date: str = ""


class TuneFile:
    """The file of a job on this node; node rank 0 writes it."""

    def __init__(self, path: str, fingerprint: Mapping[str, Any]) -> None:
        self._path = os.path.abspath(path)
        self._fingerprint = dict(fingerprint)
        self.ignored: TuneFileIgnored | None = None
        """Why the values of the file are not used; None if they are, or there are none."""
        self.values = self._read()
        """The current values, from the file or since."""

    def _read(self) -> TunedValues:
        data = head_of_file(self._path, _READ_MAX_BYTES)
        if data is None:
            if os.path.lexists(self._path):
                self.ignored = TuneFileIgnored(self._path, "it is not a file that can be read")
            return TunedValues()
        try:
            found = msgspec.json.decode(data, type=_Content)
        except (ValueError, RecursionError):
            self.ignored = TuneFileIgnored(self._path, "it is not a tune file of this version")
            return TunedValues()
        known, own = found.fingerprint, self._fingerprint
        differing = sorted(n for n in own.keys() | known.keys() if known.get(n) != own.get(n))
        if differing:
            why = f"it is of a job with another value for: {', '.join(differing)}"
            self.ignored = TuneFileIgnored(self._path, why)
            return TunedValues()
        return found.values

    def keep(self, values: TunedValues, note: Callable[[Event], None]) -> None:
        """Write the values if they are new; atomically, and readable only by the owner."""
        if values == self.values:
            return
        self.values = values
        date = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        content = msgspec.to_builtins(_Content(1, self._fingerprint, values, date))
        draft = f"{self._path}.{os.getpid()}"
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            with os.fdopen(os.open(draft, flags, 0o600), "w", encoding="utf-8") as file:
                json.dump(content, file, indent=2)
                file.write("\n")
            os.replace(draft, self._path)
        except OSError as error:
            with suppress(OSError):
                os.unlink(draft)
            note(TuneFileNotWritten(self._path, error.strerror or str(error)))


def fingerprint(options: LaunchOptions, workers: int) -> dict[str, Any]:
    """Return the properties of a job to which tuned values apply, as values of JSON.

    It may query the driver of GPUs, which takes time: call it before the event loop.
    """
    rendezvous, limit = options.rendezvous, read_cpu_limit()
    return {
        "script": options.script,
        "script_sha256": _hash_of(options),
        "arguments": list(options.script_args),
        "torch": _version_of("torch"),
        "devices": device_names(options.accelerator, os.environ),
        "cpus": limit.cpus if limit is not None else os.cpu_count(),
        "workers": workers,
        "nodes": f"{rendezvous.min_nodes}:{rendezvous.max_nodes}",
    }


def _hash_of(options: LaunchOptions) -> str:
    """Return a hash of the script's text; empty for a module or a program."""
    if options.mode not in (ScriptMode.SCRIPT, ScriptMode.RUN_PATH):
        return ""
    data = head_of_file(os.path.realpath(options.script), _READ_MAX_BYTES)
    return hashlib.sha256(data).hexdigest() if data is not None else ""


def _version_of(package: str) -> str:
    from importlib import metadata  # with email and zipfile, 10 ms of each start

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
