"""Collects the stacks of this node's workers, or the kernel's description of each process.

The hook of ``training`` has ``faulthandler`` write all stacks of a worker on a signal, even while
its main thread is inside a C call. The signal would kill a process without that hook. It is sent
only if the kernel reports that the process catches it, and that the descriptor is still ours.
"""

import asyncio
import linecache
import os
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from msgspec import Struct

from ...rendezvous.protocol import stacks
from ...rendezvous.protocol.stacks import Frame, RankStack, RankState
from ...tasks import in_thread
from ...training.worker.page_layout import STACKS_FILE
from ...training.worker.start import STACKS_SIGNAL
from ..processes.worker_watch import WorkerWatch
from .dump import main_thread

ANSWER_S = 2.0
"""Time limit for a worker to write its stacks."""

_LOOK_AGAIN_S = 0.01
_DUMP_MAX_BYTES = 1 << 20
_FRAME_BYTES = 24
"""Bytes of a frame in a message, in addition to its strings."""
_GPUS = ("/dev/nvidia-uvm", "/dev/kfd")
"""Devices that CUDA and ROCm open when they start; NVML does not."""
_SIGNAL_BIT = 1 << (STACKS_SIGNAL - 1)


class AskedWorker(Struct, frozen=True):
    """A worker that has not exited."""

    rank: int
    pid: int
    """The process that was started; the watched process may be another one (``--no-python``)."""
    watch: WorkerWatch | None
    note: str = ""
    """As in ``RankStack``."""


async def collect(
    workers: Sequence[AskedWorker], node_rank: int, host: str, timeout_s: float = ANSWER_S
) -> tuple[RankStack, ...]:
    """Return the stacks of workers, in the same order."""
    linecache.checkcache()
    answers = await asyncio.gather(*(_ask(worker, timeout_s) for worker in workers))
    most = min(stacks.STACK_MAX_BYTES, stacks.REPORT_MAX_BYTES // max(1, len(workers)))
    return tuple(
        _stack(worker, node_rank, host, state, _short(frames, most), remark)
        for worker, (state, frames, remark) in zip(workers, answers, strict=True)
    )


_Answer = tuple[RankState, tuple[Frame, ...], str]


async def _ask(worker: AskedWorker, timeout_s: float) -> _Answer:
    progress = worker.watch.progress() if worker.watch is not None else None
    if progress is None or worker.watch is None:
        return await _without_hook(worker.pid, "not watched", timeout_s)
    pid, watch = progress.pid, worker.watch
    if (letter := _state(pid)) in ("T", "t"):
        return _described(pid, letter, RankState.SILENT, "")
    if not _takes_signal(pid, watch.stacks_fd_there):
        return await _without_hook(pid, "the stacks hook was removed", timeout_s)
    watch.clear_stacks()
    try:
        os.kill(pid, STACKS_SIGNAL)
    except (ProcessLookupError, PermissionError) as error:
        return RankState.UNKNOWN, (), error.strerror or ""
    loop = asyncio.get_running_loop()
    until = loop.time() + timeout_s
    while watch.is_closed or not _has_answered(pid, watch):
        if watch.is_closed or loop.time() >= until:
            return _described(pid, _state(pid), RankState.SILENT, "")
        await asyncio.sleep(_LOOK_AGAIN_S)
    dump = watch.stacks(_DUMP_MAX_BYTES)
    frames = await in_thread(partial(main_thread, dump))  # in a thread: it reads source files
    return RankState.ANSWERED, frames, ""


async def _without_hook(pid: int, remark: str, timeout_s: float) -> _Answer:
    """Describe a process; a process that only waits for a disk leaves that state soon."""
    loop = asyncio.get_running_loop()
    until = loop.time() + timeout_s
    while (letter := _state(pid)) == "D":
        if loop.time() >= until:
            break
        await asyncio.sleep(_LOOK_AGAIN_S)
    return _described(pid, letter, RankState.UNKNOWN, remark)


def _has_answered(pid: int, watch: WorkerWatch) -> bool:
    """Whether the stacks are complete: the signal is blocked while it is handled."""
    if not watch.has_stacks:
        return False
    masks = _status(pid)
    names = ("SigPnd", "ShdPnd", "SigBlk")
    return not any(int(masks.get(name, "0"), 16) & _SIGNAL_BIT for name in names)


def _takes_signal(pid: int, fd: int) -> bool:
    try:
        target = os.readlink(f"/proc/{pid}/fd/{fd}")
    except OSError:
        return False
    caught = int(_status(pid).get("SigCgt", "0"), 16)
    return target.startswith(f"/memfd:{STACKS_FILE}") and bool(caught & _SIGNAL_BIT)


def _described(pid: int, letter: str, otherwise: RankState, remark: str) -> _Answer:
    """Describe a process that did not reply by its state in the kernel."""
    if letter in ("T", "t"):
        return RankState.STOPPED, (), "by a signal" if letter == "T" else "by a debugger"
    if letter == "D":
        return RankState.UNINTERRUPTIBLE, (), _in_kernel(pid)
    words = {"": "it has ended", "Z": "it has ended"}.get(letter, remark)
    return otherwise, (), words or _in_kernel(pid)


def _in_kernel(pid: int) -> str:
    """Return the kernel function in which a process waits, if it is readable."""
    words = []
    for name in ("wchan", "syscall"):
        with suppress(OSError), open(f"/proc/{pid}/{name}") as file:
            value = file.read().split(maxsplit=1)
            if value and value[0] not in ("0", "running"):
                words.append(f"{name} {value[0]}")
    return ", ".join(words)[: stacks.TEXT_MAX]


def uses_gpu(pid: int) -> bool:
    """Return whether a process has started CUDA or ROCm, as far as its descriptors are readable."""
    with suppress(OSError):
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                if os.readlink(f"/proc/{pid}/fd/{fd}") in _GPUS:
                    return True
    return False


def _state(pid: int) -> str:
    """Return the state letter of a process; empty if there is no such process."""
    return _status(pid).get("State", "")[:1]


def _status(pid: int) -> dict[str, str]:
    try:
        with open(f"/proc/{pid}/status") as file:
            pairs = (line.partition(":") for line in file)
            return {name: value.strip() for name, _, value in pairs}
    except OSError:
        return {}


def _stack(
    worker: AskedWorker,
    node_rank: int,
    host: str,
    state: RankState,
    frames: tuple[Frame, ...],
    remark: str,
) -> RankStack:
    progress = worker.watch.progress() if worker.watch is not None else None
    steps = -1 if progress is None else min(progress.steps, stacks.STEPS_MAX)
    ticks = 0 if progress is None else progress.ticks % stacks.STEPS_MAX
    pid = worker.pid if progress is None else progress.pid
    uses = uses_gpu(pid)
    return RankStack(
        worker.rank, node_rank, host, state, frames, steps, remark, ticks, uses, note=worker.note
    )


def _short(frames: tuple[Frame, ...], most_bytes: int) -> tuple[Frame, ...]:
    """Omit the outermost frames of a stack that is too long for a message."""
    size = 0
    for index, frame in enumerate(frames):
        size += len(f"{frame.file}{frame.function}{frame.source}".encode()) + _FRAME_BYTES
        if size > most_bytes:
            return frames[:index]
    return frames
