"""``ft-run status --watch``: live view of a job in a terminal, until it ends or the user quits."""

import asyncio
import os
import signal
import sys
import time
from contextlib import suppress
from typing import Any, Final

from ... import exit_codes
from ...errors import RendezvousError, UsageError
from ...printable import printable
from ..cli.master_flags import StatusOptions
from ..reporting.full_screen import FullScreen
from ..reporting.standard_output import discard
from ..reporting.status_lines import furthest_worker, status_lines
from ..reporting.watch_view import view
from ..startup import unblock
from .asking import MasterCalls
from .local_jobs import LocalCalls
from .targets import Target

_POLL_S: Final = 1.0
_NODES_PER_S: Final = 500
"""For each status, the master queries every node, so a large job is polled less often."""
_SLOW_S: Final = 1.5
_QUITS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def require_terminal() -> None:
    """Raise ``UsageError`` if standard output is not a terminal."""
    if not sys.stdout.isatty() or os.environ.get("TERM", "dumb") in ("", "dumb"):
        raise UsageError(
            "--watch needs a terminal on standard output; expected ft-run status without it, or"
            " ft-run status --json for programs."
        )


async def watch(target: Target, options: StatusOptions) -> int:
    """Show a job until it ends or the user quits.

    Returns:
        0 if the job succeeded or the user quit with q; 1 if it failed, or its agent was killed; 128
        + n after signal n, e.g. Ctrl-C.
    """
    async with target.calls(options) as calls:
        job = _Watched(calls)
        await job.ask()
        if not job.over.done():
            await _show(job, FullScreen())
    for line in job.last_lines():
        print(printable(line))
    return job.over.result()


class _Watched:
    """A job: its status, the state of the connection, and whether the job has ended."""

    def __init__(self, calls: LocalCalls | MasterCalls) -> None:
        self._calls = calls
        self.status: dict[str, Any] = {}
        self.over: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        """The exit code, once there is nothing more to show."""
        self.changed = asyncio.Event()
        self._final: dict[str, Any] | None = None
        self._is_gone = False
        self._answered_at = time.monotonic()
        self._asked_at: float | None = None
        """Time of the request that is not answered yet; None if there is none."""
        self._took_s = 0.0
        self._is_lost = False

    async def ask(self) -> None:
        self._asked_at = time.monotonic()
        try:
            self._take(await self._calls.status())
        finally:
            self._took_s, self._asked_at = time.monotonic() - self._asked_at, None

    async def follow(self) -> None:
        while True:
            nodes = len(self.status["nodes"])
            await asyncio.sleep(max(_POLL_S, nodes / _NODES_PER_S))
            try:
                await self.ask()
            except RendezvousError:
                self._is_lost = True
            self.changed.set()

    async def await_end(self) -> None:
        while True:
            try:
                last = await self._calls.ended()
            except RendezvousError:
                self._is_lost = True
            else:
                if last is None:
                    self._is_gone = True
                    self.quit(exit_codes.WORKERS_FAILED)
                    return
                self._take(last)
            await asyncio.sleep(_POLL_S)  # the master did not answer, or does not lead

    def quit(self, status: int) -> None:
        if not self.over.done():
            self.over.set_result(status)

    def ended_badly(self, task: "asyncio.Task[None]") -> None:
        """Pass on an error of a task, e.g. that the master does not trust this process."""
        error = None if task.cancelled() else task.exception()
        if error is not None and not self.over.done():
            self.over.set_exception(error)

    def link(self) -> str:
        """Return the problem with the connection; empty if there is none."""
        now = time.monotonic()
        if self._is_lost:
            return f"no answer for {now - self._answered_at:.0f} s"
        if self._asked_at is not None and now - self._asked_at > _SLOW_S:
            return f"no answer for {now - self._asked_at:.0f} s"
        return f"slow: answers take {self._took_s:.1f} s" if self._took_s > _SLOW_S else ""

    def last_lines(self) -> list[str]:
        """Return the lines to print at the end; empty if the user quits."""
        if self._is_gone:
            return [f"job {self.status['job_id']}: its ft-run has ended without a result"]
        if (final := self._final) is None:
            return []
        word = "succeeded" if final["exit_code"] == exit_codes.SUCCESS else "FAILED"
        lines = [f"job {final['job_id']} {word}: {final['ended']}"]
        if (worker := furthest_worker(self.status)) is not None:
            lines.append(f"last step seen: {worker['steps']}")
        return [*lines, *status_lines(final)[1:]]

    def _take(self, status: dict[str, Any]) -> None:
        self._is_lost, self._answered_at = False, time.monotonic()
        if status.get("exit_code") is None:
            self.status = status
            return
        self._final = status
        is_success = status["exit_code"] == exit_codes.SUCCESS
        self.quit(exit_codes.SUCCESS if is_success else exit_codes.WORKERS_FAILED)


async def _show(job: _Watched, screen: FullScreen) -> None:
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(one) for one in (job.follow(), job.await_end(), _draw(job, screen))]
    for task in tasks:
        task.add_done_callback(job.ended_badly)
    for number in _QUITS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, job.quit, exit_codes.SIGNAL_BASE + number)
            unblock([number])
    for number in (signal.SIGWINCH, signal.SIGCONT):
        loop.add_signal_handler(number, _drawn_anew, job, screen)
    loop.add_signal_handler(signal.SIGTSTP, _suspend, screen)
    try:
        screen.enter()
        if screen.has_keys:
            loop.add_reader(0, _pressed, job)
        await job.over
    finally:
        if screen.has_keys:
            loop.remove_reader(0)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        screen.leave()


async def _draw(job: _Watched, screen: FullScreen) -> None:
    while True:
        clock = time.strftime("%H:%M:%S")
        try:
            screen.draw(view(job.status, job.link(), clock, *screen.size))
        except OSError:  # the terminal is closed
            discard(sys.stdout)
            job.quit(exit_codes.SUCCESS)
            return
        job.changed.clear()
        try:
            await asyncio.wait_for(job.changed.wait(), 1.0 - time.time() % 1.0)
        except asyncio.TimeoutError:
            continue


def _drawn_anew(job: _Watched, screen: FullScreen) -> None:
    if not screen.is_shown:
        screen.enter()  # continued after Ctrl-Z
    job.changed.set()


def _suspend(screen: FullScreen) -> None:
    screen.leave()
    os.kill(os.getpid(), signal.SIGSTOP)


def _pressed(job: _Watched) -> None:
    keys = b""
    with suppress(OSError):  # the terminal is closed
        keys = os.read(0, 64)
    if not keys or b"q" in keys.lower():
        job.quit(exit_codes.SUCCESS)
