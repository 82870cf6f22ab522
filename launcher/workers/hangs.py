"""This node's part in hang detection: reports late workers, and the stacks of its workers."""

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

from msgspec.structs import replace

from ...events.event import Event
from ...events.workers import HangDismissed, HangSuspected, StacksKept
from ...rendezvous.protocol.collectives import GROUPS_MAX, GROUPS_OF_NODE_MAX, RankCollectives
from ...rendezvous.protocol.messages import HangSpec, Stop
from ...rendezvous.protocol.stacks import NoHang, RankStack, StackReport, Suspicion
from ...tasks import in_thread, show_bug
from ..stacks import recorded
from ..stacks.collect import AskedWorker, collect
from ..stacks.control_plane import ControlPlane
from ..stacks.flight_recorder import FlightRecorders
from ..stacks.lateness import Lateness
from .worker_group import WorkerGroup, WorkerGroupState

STACKS_FILE = "hang.txt"
"""File name in the directory of the attempt."""


class Hangs:
    """Sleeps until a worker could be late, and reports each late worker to the master once.

    Without ``spec``, it only reports stacks on request.
    """

    def __init__(
        self,
        spec: HangSpec | None,
        host: str,
        send: Callable[[StackReport | Suspicion], None],
        note: Callable[[Event], None],
        environ: Mapping[str, str] = MappingProxyType({}),
        note_of: Callable[[int], str] = lambda _rank: "",
    ) -> None:
        self._host, self._environ, self._note_of = host, environ, note_of
        self._lateness = Lateness(spec.timeout_s, spec.start_s) if spec is not None else None
        self._send = send
        self._note = note
        self._group: WorkerGroup | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._reporting: asyncio.Task[None] | None = None
        self._inquiry = 0
        self._recorders, self._servers = FlightRecorders({}), ControlPlane({})
        """Recorders of the current inquiry that read a pipe, and servers that dump the others."""
        self._backends: dict[int, tuple[str, ...]] = {}
        """Backends of the process groups of each rank, if known."""
        self._collectives: dict[int, RankCollectives | None] = {}
        """Recorded collectives by rank; None if the file is unusable."""

    def report(self, number: int, group: WorkerGroup | None, inquiry: int = 0) -> None:
        """Collect the stacks of the workers, which the master has requested, and send them."""
        if self._reporting is not None and not self._reporting.done():
            return  # the master sends one request at a time; this one was canceled
        self._reporting = asyncio.create_task(self._report(number, group, inquiry))
        self._reporting.add_done_callback(partial(show_bug, "a report of stacks"))

    async def _report(self, number: int, group: WorkerGroup | None, inquiry: int) -> None:
        stacks: tuple[RankStack, ...] = ()
        if group is not None and (running := group.running):
            workers = [replace(one, note=self._note_of(one.rank)) for one in running]
            if inquiry and inquiry != self._inquiry:
                self._ask_recorders(workers, inquiry)
            stacks = await collect(workers, group.assignment.node_rank, self._host)
            if inquiry:
                await self._read(max(1, min(GROUPS_MAX, GROUPS_OF_NODE_MAX // len(workers))))
                stacks = tuple(
                    replace(stack, collectives=self._collectives.get(stack.rank))
                    for stack in stacks
                )
        self._send(StackReport(number, stacks))

    def _ask_recorders(self, workers: Sequence[AskedWorker], inquiry: int) -> None:
        """Request dumps: from the server of a worker, else through its pipe."""
        self._servers.close()
        self._inquiry, self._collectives, self._backends = inquiry, {}, {}
        self._recorders, self._servers = FlightRecorders(self._environ), ControlPlane(self._environ)
        for worker in workers:
            file = f"{self._recorders.files}{worker.rank}"
            progress = worker.watch.progress() if worker.watch is not None else None
            if worker.watch is not None and progress is not None:
                backends = self._backends[worker.rank] = worker.watch.backends()
                if self._servers.ask(worker.rank, progress.pid, backends, file):
                    continue
            self._recorders.ask([worker.rank])

    async def _read(self, most: int) -> None:
        """Read the dumps that are complete, and summarize each rank once."""
        self._recorders.look()
        found: dict[int, Mapping[str, Any] | str] = {
            rank: f"{self._recorders.files}{rank}"
            for rank in self._recorders.written
            if rank not in self._collectives
        }
        for rank, dumps in (found | self._servers.finished()).items():
            backends = self._backends.get(rank, ())
            self._collectives[rank] = await in_thread(partial(_summary, dumps, backends, most))

    def begin(self, group: WorkerGroup | None) -> None:
        """Start to watch the workers of a round, which have been started."""
        self._group = group
        if self._lateness is not None and group is not None:
            self._lateness.begin(time.monotonic())
            self._look()

    def answered(self, answer: NoHang) -> None:
        """Handle the master's decision that late workers do not hang."""
        if self._lateness is None or (group := self._running) is None:
            return
        at = group.assignment
        if answer.round == at.round:
            self._lateness.excuse(time.monotonic())
            self._note(HangDismissed(at.round, at.node_rank, answer.sentence))
            self._look()

    def repeat(self) -> None:
        """Report late workers again, because the master may be a new one."""
        if self._lateness is not None:
            self._lateness.repeat()
            self._look()

    def keep(self, stop: Stop, group: WorkerGroup) -> None:
        """Write the stacks of all ranks of the hang to the log directory, if log files are kept."""
        directory = group.logs.directory
        if not stop.stacks or directory is None:
            return
        path = os.path.join(directory, STACKS_FILE)
        with contextlib.suppress(OSError):  # a full disk: the report contains the first part
            with open(path, "w", encoding="utf-8", errors="backslashreplace") as file:
                file.write(f"{stop.reason}\n\n{stop.stacks}\n")
            at = group.assignment
            self._note(StacksKept(at.round, at.node_rank, path))

    def close(self) -> None:
        """Stop watching and reporting."""
        if self._reporting is not None:
            self._reporting.cancel()
        self._servers.close()
        self._look_no_more()

    def _look_no_more(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    @property
    def _running(self) -> WorkerGroup | None:
        group = self._group
        return group if group is not None and group.state is WorkerGroupState.RUNNING else None

    def _look(self) -> None:
        self._look_no_more()
        if self._lateness is None or (group := self._running) is None:
            return
        now = time.monotonic()
        workers = {
            worker.rank: worker.watch.progress() if worker.watch is not None else None
            for worker in group.running
        }
        look = self._lateness.look(workers, now)
        if look.late:
            at = group.assignment
            self._note(HangSuspected(at.round, at.node_rank, look.late, look.idle_s))
            trials = [worker.watch.trial for worker in group.running if worker.watch is not None]
            trial = next(filter(None, trials), "")
            self._send(Suspicion(at.round, look.late, look.idle_s, trial))
        if workers:
            delay_s = max(0.0, look.again_at - now)
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._look)


def _summary(
    dumps: Mapping[str, Any] | str, backends: Sequence[str], most: int
) -> RankCollectives | None:
    """Summarize dumps by backend, or the file of a recorder that reads a pipe."""
    try:
        by_backend = {"nccl": recorded.read(dumps)} if isinstance(dumps, str) else dumps
        return recorded.merged(by_backend, backends, most) if by_backend else None
    except recorded.BadDumpError:
        return None
