"""Stops the workers of a round: what each step waits for, and for how long.

    delayed → SIGTERM → SIGKILL → no process is left, or some processes survive SIGKILL

SIGTERM is delayed while a worker that is exiting on its own may still show its exit code.
"""

import asyncio
from collections.abc import Callable

from msgspec import Struct

from ...events.event import Event
from ...events.workers import KillOutlived, LeftoversEnded, WorkersKilled
from ..machine.nvml import has_driver
from ..processes.dying import DEVICES_SURVIVE_KILL_S, SURVIVES_KILL_S, Dying
from ..spawner.client import SpawnerClient
from ..workers.worker_group import WorkerGroup, WorkerGroupState
from .lifecycle import StopWorkers

SETTLE_S = 0.2
"""Delay of SIGTERM if the known failure may be a consequence of the failure of a worker that is
just exiting: SIGTERM would hide that worker's exit code."""
HUNG_S = 2.0
"""Time from SIGTERM to SIGKILL for workers that hang or wait for a hung one; they save nothing."""
LEFTOVERS_S = 5.0
"""Time from SIGTERM to SIGKILL for processes that workers left running, unless the rest of
``--shutdown-timeout`` is shorter."""


class TimeOver(Struct, frozen=True):
    """The timeout of the current state of a worker group has expired."""

    group: WorkerGroup
    state: WorkerGroupState


class GroupStop:
    """The stop of one worker group, from its first step until no process is left."""

    def __init__(
        self,
        group: WorkerGroup,
        spawner: SpawnerClient,
        shutdown_timeout_s: float,
        post: Callable[[TimeOver], None],
        note: Callable[[Event], None],
    ) -> None:
        """``post`` queues an expired timer; the agent passes it to ``time_over``."""
        self._group, self._spawner = group, spawner
        self._shutdown_timeout_s = self._limit_s = shutdown_timeout_s
        self._post, self._note = post, note
        self._timer: asyncio.TimerHandle | None = None
        self._is_held_back = False
        self._dying: Dying | None = None
        """Workers that were killed."""

    def stop(self, order: StopWorkers = StopWorkers()) -> None:  # noqa: B008 - a value
        """Send the signal to the workers, or delay it; a second call has no effect."""
        group = self._group
        before = group.state
        if order.is_hung and not before.is_ending:
            self._limit_s = min(self._limit_s, HUNG_S)
        if before is WorkerGroupState.RUNNING and order.lets_settle and group.alive:
            if not self._is_held_back:
                self._is_held_back = True
                self._arm(SETTLE_S)
            return
        self._is_held_back = False
        group.stop(order.number)
        if group.state is before:
            return  # it is already being stopped, with a timeout
        if order.patience_s is not None:
            self._limit_s = min(self._limit_s, order.patience_s)
        self._arm()

    def kill(self) -> None:
        """Kill the workers and all of their descendants."""
        self._is_held_back = False
        self._group.kill()
        self._arm()

    def end_leftovers(self) -> None:
        """Stop processes that successful workers left running, with SIGTERM first."""
        if leftovers := self._leftovers():
            self._note(LeftoversEnded(leftovers))
        self._group.end_leftovers()
        self._limit_s = min(self._limit_s, LEFTOVERS_S)
        self._arm()

    def exited(self) -> None:
        """Handle the exit of a worker, which the group has recorded."""
        if self._group.state is WorkerGroupState.KILLING:
            self._arm()
        elif self._is_held_back and not self._group.alive:
            self.stop()  # nothing is left to wait for
        elif self._group.state is WorkerGroupState.STOPPING and not self._group.alive:
            self._limit_leftovers()

    def time_over(self) -> tuple[int, ...]:
        """Take the next step; return the processes that survive SIGKILL, once that is certain."""
        group = self._group
        if group.state is WorkerGroupState.RUNNING:
            self.stop()  # the workers that were exiting have exited
            return ()
        if group.state is WorkerGroupState.STOPPING:
            self._note_killed()
            self.kill()
            return ()
        pids = tuple(self._spawner.left())
        if not pids:  # all were killed, but the spawner does not report it: it is unusable
            self._spawner.give_up()
            return ()
        assert self._dying is not None
        if not self._dying.go_on(pids, asyncio.get_running_loop().time()):
            return pids
        if self._dying.looks == 1:
            self._note(KillOutlived(pids, SURVIVES_KILL_S, DEVICES_SURVIVE_KILL_S))
        self._arm()
        return ()

    def _limit_leftovers(self) -> None:
        until = asyncio.get_running_loop().time() + LEFTOVERS_S
        if self._timer is None or until < self._timer.when():
            self._limit_s = LEFTOVERS_S
            self._arm()

    def close(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _leftovers(self) -> tuple[int, ...]:
        return tuple(pid for pid in self._spawner.left() if pid != self._group.store_pid)

    def _note_killed(self) -> None:
        at, workers, limit_s = self._group.assignment, self._group.alive, self._limit_s
        left = 0 if workers else len(self._leftovers())
        if workers or left:
            is_option = limit_s == self._shutdown_timeout_s
            self._note(WorkersKilled(at.round, at.node_rank, workers, limit_s, is_option, left))

    def _arm(self, held_back_s: float = 0.0) -> None:
        """Limit the time that the group spends in its current state."""
        self.close()
        group, loop = self._group, asyncio.get_running_loop()
        seconds = held_back_s
        if group.state is WorkerGroupState.STOPPING:
            seconds = self._limit_s
        elif group.state is WorkerGroupState.KILLING:
            seconds = SURVIVES_KILL_S
            if self._dying is None:
                self._dying = Dying(group.pids, loop.time(), have_devices=has_driver())
        self._timer = loop.call_later(seconds, self._post, TimeOver(group, group.state))
