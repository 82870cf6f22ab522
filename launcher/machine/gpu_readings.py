"""Main module of the processes that query NVIDIA's driver; their commands are in ``nvml``.

They print lines of JSON.
"""

import ctypes
import json
import os
import select
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

from . import nvml as library
from .nvml import Nvml, NvmlFailedError

_LOOK_S: Final = 1.0


class GpuReader:
    """Reads the Xid errors of the visible GPUs; the library must be open."""

    def __init__(self, nvml: Nvml) -> None:
        self._nvml = nvml
        gpus = library.read_gpus(nvml)
        self._gpus = [gpus[index] for index in library.visible_gpus(gpus, os.environ)]
        self._events: Any = None
        self._uuids: dict[int | None, str] = {}
        """UUIDs by handle: a lost GPU does not report its UUID."""
        with suppress(nvml.NVMLError, AttributeError):
            self._events = nvml.nvmlEventSetCreate()
        for gpu in self._gpus:
            with suppress(nvml.NVMLError, AttributeError):
                handle = nvml.nvmlDeviceGetHandleByIndex(gpu.nvml_index)
                self._uuids[_address(handle)] = gpu.uuid
                nvml.nvmlDeviceRegisterEvents(
                    handle, nvml.nvmlEventTypeXidCriticalError, self._events
                )

    def xids(self) -> Iterator[tuple[str, int]]:
        """Yield the UUID of the GPU and the number of each Xid error since the last call."""
        nvml = self._nvml
        with suppress(nvml.NVMLError, AttributeError):  # no more events, or no such function
            while self._events is not None:
                event = nvml.nvmlEventSetWait_v2(self._events, 0)
                yield self._uuids.get(_address(event.device), ""), int(event.eventData)

    def number_of(self, uuid: str) -> int:
        """Return the NVML index of a GPU; -1 if unknown."""
        return next((gpu.nvml_index for gpu in self._gpus if gpu.uuid == uuid), -1)


def _address(handle: Any) -> int | None:
    """Return the pointer in a handle, which is equal for two handles of the same GPU."""
    return ctypes.cast(handle, ctypes.c_void_p).value


def main() -> None:
    """Run the command in the first argument: ``gpus`` or ``watch``."""
    try:
        nvml = library.load_nvml()
        if nvml is None:
            raise NvmlFailedError("there is no driver")
        try:
            with library.opened(nvml):
                _serve(nvml, *sys.argv[1:])
        except nvml.NVMLError as error:
            raise NvmlFailedError(str(error)) from error
    except NvmlFailedError as error:
        print(json.dumps({"error": str(error)}), flush=True)


def _serve(nvml: Nvml, what: str) -> None:
    if what == "gpus":
        print(json.dumps({"answer": library.read_gpus(nvml)}))
    else:
        _watch(nvml, GpuReader(nvml))


def _watch(nvml: Nvml, reader: GpuReader, asking: int = 0) -> None:
    """Serve requests until end of input (standard input by default), see ``nvml.WATCH``."""
    while True:
        asked, *_ = select.select([asking], [], [], _LOOK_S)
        for uuid, xid in reader.xids():  # before the answer, which can end the round or the job
            print(json.dumps({"xid": [reader.number_of(uuid), uuid, xid]}), flush=True)
        if asked:
            if not os.read(asking, 1):
                return
            print(json.dumps({"answer": library.used_bytes(nvml)}), flush=True)
