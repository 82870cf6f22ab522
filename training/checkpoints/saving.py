"""The result of each checkpoint, whether the workers write it or the saver of ft-run."""

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from ..ranks import Ranks
from ..worker.log import log
from ..worker.snapshot_memory import SaverLink, report_written
from .folder import CheckpointFolder
from .storage_timeout import StorageTimeout, StorageTimeoutError, log_while_waiting

_RETRIES_S = (1, 2, 4, 8)
"""Pauses before the last checkpoint is retried: object stores fail temporarily."""
_RETRY_LIMIT_S = 900.0
"""No retry begins after this time."""


class Checkpoints:
    """Tracks the checkpoint that was begun last. All ranks call the methods together."""

    def __init__(
        self, folder: CheckpointFolder, ranks: Ranks, rank: int, timeout: StorageTimeout
    ) -> None:
        """Begin without a checkpoint.

        Args:
            folder: where checkpoints are written.
            ranks: of the job.
            rank: of this process, as its agent knows it.
            timeout: of the storage.
        """
        self._folder, self._ranks, self._rank, self._timeout = folder, ranks, rank, timeout
        self.saver: SaverLink | None = None
        """Writes checkpoints asynchronously; None: the workers write them."""
        self.owner = 0
        """Owner of the snapshots that the saver writes."""
        self.newest = -1
        """The step of the newest complete checkpoint that this process knows of; -1: none."""
        self._step = -1
        """The step of the checkpoint that was begun last."""
        self._is_being_written = False
        self._error: str | None = None
        """Why it was not written; None: it is complete, or none was begun."""
        self._timed_out = ""
        """Why this rank no longer waits for the saver; empty: it does."""

    def begin(self, step: int) -> bool:
        """Begin a checkpoint after the previous one has ended.

        Args:
            step: completed steps.

        Returns:
            Whether it may be written now; if not, the failure has been logged.
        """
        self._step, self._is_being_written, self._error = step, True, None
        error = self._ranks.first_text(self._wait_for_saver())
        if error is not None:
            self._finish(error)
            self._log_failure(error)
        return error is None

    def write(self, state: Mapping[str, Any]) -> bool:
        """Write the checkpoint that was begun, synchronously; return whether it is complete.

        Args:
            state: the nested state dict of this rank.
        """
        started, step = time.monotonic(), self._step
        error = self._folder.save(step, state)
        self._finish(error)
        if error is not None:
            self._log_failure(error)
        elif self._ranks.rank == 0:
            took_s = time.monotonic() - started
            path = self._folder.path(step)
            log(f"checkpoint of step {step} saved: {path} ({took_s:.1f} s)")
            report_written(self._rank, step, self._folder.folder)
        return error is None

    def wait_for_result(self) -> str | None:
        """Wait for the saver; return why the last checkpoint was not written.

        None: it is complete, or none was begun.
        """
        timed_out = self._wait_for_saver()
        if self._is_being_written:
            # The node of rank 0 makes the checkpoint visible, so it knows the result.
            known = ""
            if self.saver is not None and self._ranks.rank == 0:
                known = self.saver.error(self.owner)
            self._finish(self._ranks.first_text(timed_out or known or None))
        return self._error

    def write_last(self, step: int, save: Callable[[int], object]) -> None:
        """Write the checkpoint at the end of training, wait for it, and retry if it fails.

        Args:
            step: completed steps.
            save: begins or writes a checkpoint.
        """
        until = time.monotonic() + _RETRY_LIMIT_S
        with self._log_wait(step):
            if step != self._step:
                save(step)
            for pause_s in _RETRIES_S:
                if self.wait_for_result() is None:
                    return
                is_stuck = bool(self._timed_out) or self._folder.is_stuck
                if not self._ranks.all_true(not is_stuck and time.monotonic() < until):
                    return
                if self._ranks.rank == 0:
                    log(f"retrying the last checkpoint in {pause_s} s")
                time.sleep(pause_s)
                save(step)

    def wait_or_raise(self) -> None:
        """Wait for the saver.

        Raises:
            RuntimeError: the last checkpoint was not written.
        """
        with self._log_wait(self._step):
            error = self.wait_for_result()
        if error is not None:
            raise RuntimeError(
                f"the checkpoint of step {self._step} could not be written to "
                f"{self._folder.folder}: {error}"
            )

    def _wait_for_saver(self) -> str | None:
        """Wait until the saver is idle; return why this rank stopped waiting, or None."""
        saver = self.saver
        if saver is None:
            return None
        if not self._timed_out or not saver.is_busy:
            self._timed_out = ""
            try:
                self._timeout.wait(saver.wait, lambda: saver.progress)
            except StorageTimeoutError as error:
                self._timed_out = str(error)
        return self._timed_out or None

    def _log_wait(self, step: int) -> AbstractContextManager[None]:
        what = f"the checkpoint of step {step} to be written to {self._folder.folder}"
        return log_while_waiting(what, self._timeout.limit_s, is_enabled=self._ranks.rank == 0)

    def _log_failure(self, error: str) -> None:
        if self._ranks.rank == 0:
            newest = f"; the newest complete one is that of step {self.newest}"
            has = newest if self.newest >= 0 else ""
            log(f"checkpoint of step {self._step} not saved: {error}{has}")

    def _finish(self, error: str | None) -> None:
        self._error, self._is_being_written = error, False
        if error is None:
            self.newest = self._step
