"""The metrics of this node's GPUs. A driver that hangs costs one scrape a few seconds, once."""

import os
import select
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from ..machine import nvml
from ..machine.gpu_readings import GpuReading
from ..machine.nvml import NvmlFailedError, answer_of, has_library
from . import catalogue as c
from .catalogue import Metric, Samples

_ANSWER_S: Final = 5.0
"""For one scrape, which may last 10 s by default."""
_AGAIN_S: Final = 60.0
"""After which a driver that has not answered is queried again."""
_LINE_MAX: Final = 1 << 20
_VALUES: Final[dict[str, Metric]] = {
    "utilization": c.GPU_UTILIZATION,
    "memory_used_bytes": c.GPU_MEMORY_USED,
    "memory_bytes": c.GPU_MEMORY,
    "temperature_celsius": c.GPU_TEMPERATURE,
    "power_watts": c.GPU_POWER,
}


class Gpus:
    """Asks the process that reads the GPUs; it is started by the first scrape."""

    def __init__(self) -> None:
        self._command: Sequence[str] = nvml.READINGS
        self._is_there: bool | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._failed_at: float | None = None
        self._xids: Counter[tuple[str, int]] = Counter()

    def add(self, samples: Samples) -> None:
        """Add the samples of all GPUs; called in the thread of a scrape."""
        if self._is_there is None:
            self._is_there = has_library()
        if not self._is_there:
            return
        failed_at = self._failed_at
        if failed_at is not None and time.monotonic() - failed_at < _AGAIN_S:
            samples.put(c.NVML_UP, 0)
            return
        try:
            found, xids = self._ask()
        except (NvmlFailedError, OSError):
            self.close()
            self._failed_at = time.monotonic()
            samples.put(c.NVML_UP, 0)
            return
        self._failed_at = None
        samples.put(c.NVML_UP, 1)
        self._xids.update((uuid, xid) for uuid, xid in xids)
        for values in found:
            self._add(samples, GpuReading(*values))

    def _add(self, samples: Samples, gpu: GpuReading) -> None:
        for name, metric in _VALUES.items():
            samples.put(metric, getattr(gpu, name), gpu.number, gpu.uuid)
        samples.put(c.GPU_ECC, gpu.ecc_corrected, gpu.number, gpu.uuid, "corrected")
        samples.put(c.GPU_ECC, gpu.ecc_uncorrected, gpu.number, gpu.uuid, "uncorrected")
        for (uuid, xid), count in self._xids.items():
            if uuid == gpu.uuid:
                samples.put(c.GPU_XID, count, gpu.number, uuid, xid)

    def _ask(self) -> Any:
        if self._process is None:
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(
                self._command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, bufsize=0
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(b"\n")
        output = self._process.stdout.fileno()
        poll = select.poll()  # select takes no descriptors above 1,023
        poll.register(output, select.POLLIN)
        deadline, line = time.monotonic() + _ANSWER_S, b""
        while not line.endswith(b"\n") and len(line) < _LINE_MAX:
            if not poll.poll(1000 * max(0.0, deadline - time.monotonic())):
                raise NvmlFailedError("the driver hangs")
            part = os.read(output, 65536)
            if not part:
                break
            line += part
        return answer_of(line)

    def close(self) -> None:
        """End the process; one that hangs in the driver is waited for by a thread."""
        process, self._process = self._process, None
        if process is None:
            return
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        process.kill()
        ending = threading.Thread(target=process.wait, name="ft-run gpus", daemon=True)
        ending.start()
        ending.join(1.0)
